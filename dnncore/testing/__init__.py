"""The conformance kit, which checks the implementations of a backend.

For an installed backend, in any folder:

    pytest --pyargs dnncore.testing.suite --dnncore-backend=mine --dnncore-size=smoke

In the tests of the backend's own repository:

    from dnncore.testing import conformance

    TestMine = conformance("mine", unsupported={"*f16*": "no half type"})

In a notebook: `dnncore.testing.check_backend("mine")`; for one problem:

    run_case(read("--conv ic3ih8oc4kh3")[0], dnncore.engine("cpu"))

Sub-packages: `problems` lists the problems; `checks` has the checks and the expected results;
`running` plans and runs cases in worker processes; `bad_input` makes invalid calls.

Only `cli` imports it. Tests of backends may import it too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnncore.testing.backend_check import check_backend
    from dnncore.testing.checks.results import CaseResult, CheckFailed, Failure
    from dnncore.testing.checks.table import CHECKS, run_case
    from dnncore.testing.own_tests import conformance

__all__ = [
    "CHECKS",
    "CaseResult",
    "CheckFailed",
    "Failure",
    "check_backend",
    "conformance",
    "run_case",
]

_HOMES = {
    "CHECKS": "checks.table",
    "CaseResult": "checks.results",
    "CheckFailed": "checks.results",
    "Failure": "checks.results",
    "check_backend": "backend_check",
    "conformance": "own_tests",
    "run_case": "checks.table",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, because every run of pytest imports this package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
