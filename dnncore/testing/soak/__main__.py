"""`python -m dnncore.testing.soak`."""

import sys

from dnncore.testing.soak.run import main

sys.exit(main())
