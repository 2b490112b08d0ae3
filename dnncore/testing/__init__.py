"""The conformance kit: is an implementation right, on this problem, on this engine?

from dnncore.testing import run_case
result = run_case(read("--conv ic3ih8oc4kh3")[0], dnncore.engine("cpu"))
"""

from dnncore.testing.checks import CHECKS, run_case
from dnncore.testing.results import CaseResult, CheckFailed, Failure

__all__ = ["CHECKS", "CaseResult", "CheckFailed", "Failure", "run_case"]
