"""The built-in backends prove themselves by the kit, as a stranger's backend would.

`make conformance` has the larger sizes.
"""

import pytest

from dnncore.testing import conformance

TestReference = conformance("reference")
TestReferenceByTorch = pytest.mark.peer(conformance("reference"))  # which the kit uses if installed
TestCpu = conformance(
    "cpu_numba", size="tiny", unsupported={r"re:^cpu_numba(?!.*--reorder).*f16": "it takes f32"}
)
TestPoCL = conformance(
    "opencl", size="tiny", engine="pocl",
    unsupported={"re:--(conv|matmul).*f16": "products of f16 and bf16 need an NVIDIA GPU"},
)  # fmt: skip
