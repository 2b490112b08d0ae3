"""`python -m dnncore.testing.scenarios`."""

import sys

from dnncore.testing.scenarios.run import main

sys.exit(main())
