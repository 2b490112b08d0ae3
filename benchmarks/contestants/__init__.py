"""The contestants: implementations of dnncore and of its peers, which are other libraries.

`contestant.py` has their common interface. Each `by_*.py` has one library. `onednn.py` gives oneDNN
dnncore's interface, through the modules of `examples/third_party_backend`.
"""

import sys
from pathlib import Path

# Let benchmarks and tests import the package dnncore_onednn. It is not installed, because dnncore
# would then load it as a backend and rank its implementations with all others.
sys.path.append(str(Path(__file__).parents[2] / "examples" / "third_party_backend"))
