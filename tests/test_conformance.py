"""The built-in backends prove themselves by the kit, as a stranger's backend would.

`make conformance` has the larger sizes.
"""

import pytest

from dnncore.testing import conformance

TestReference = conformance("reference")
TestReferenceByTorch = pytest.mark.peer(conformance("reference"))  # which the kit uses if installed
TestCpu = conformance("cpu_numba", size="tiny")
TestPoCL = conformance("opencl", size="tiny", engine="pocl")
