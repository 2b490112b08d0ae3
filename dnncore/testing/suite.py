"""The kit's tests, for the backends that the command line names.

    pytest --pyargs dnncore.testing.suite --dnncore-backend=mine --dnncore-size=smoke

A test's id is the backend, the engine and the problem's text.
"""

from __future__ import annotations

from collections.abc import Callable

from dnncore.testing.running.plan import Absent, Job

__all__ = ["test_case"]


def test_case(dnncore_job: Job | Absent, dnncore_check: Callable[[Job | Absent], None]) -> None:
    """Every implementation that accepts the problem passes all checks."""
    dnncore_check(dnncore_job)
