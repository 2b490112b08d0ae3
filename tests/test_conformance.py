"""The built-in backends prove themselves by the kit, as a stranger's backend would."""

from dnncore.testing import conformance

TestReference = conformance("reference")
TestCpu = conformance("cpu_numba")
TestPoCL = conformance("opencl", engine="pocl")
