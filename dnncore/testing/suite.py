"""The kit's tests, for the backends that the command line names.

    pytest --pyargs dnncore.testing.suite --dnncore-backend=mine --dnncore-size=smoke

A test's id is the backend, the engine and the problem's text. With --dnncore-saved=FOLDER, each
call that a cross-check saved in this folder is also a test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dnncore.testing.running.plan import Absent, Job
from dnncore.testing.running.sample import Surplus

__all__ = ["test_case", "test_saved_call"]


def test_case(
    dnncore_job: Job | Absent | Surplus, dnncore_check: Callable[[Job | Absent | Surplus], None]
) -> None:
    """Every implementation that accepts the problem passes all checks."""
    dnncore_check(dnncore_job)


def test_saved_call(dnncore_saved: Path, dnncore_check_saved: Callable[[Path], None]) -> None:
    """The implementation of a saved call computes the right result."""
    dnncore_check_saved(dnncore_saved)
