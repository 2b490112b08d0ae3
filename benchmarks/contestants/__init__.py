"""The contestants: implementations of dnncore and of its peers, which are other libraries.

`contestant.py` has their common interface. Each `by_*.py` has one library. `onednn.py` gives oneDNN
dnncore's interface, through the modules of `examples/third_party_backend`.
"""

import sys
from pathlib import Path

# The package dnncore_onednn. It is not installed here, because dnncore would then find the backend,
# and it would take part in every ranking. Benchmarks and tests find the package by this line.
sys.path.append(str(Path(__file__).parents[2] / "examples" / "third_party_backend"))
