"""The kit in the tests of a backend's own repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from dnncore.testing.running.plan import Absent, Job, Plan
from dnncore.testing.running.sample import Surplus

__all__ = ["conformance"]


class _Tests:
    """The tests of `plans`."""

    plans: ClassVar[tuple[Plan, ...]]

    def test_case(
        self,
        dnncore_job: Job | Absent | Surplus,
        dnncore_check: Callable[[Job | Absent | Surplus], None],
    ) -> None:
        """Every implementation that accepts the problem passes all checks."""
        dnncore_check(dnncore_job)


def conformance(
    backend: str,
    *,
    size: str = "smoke",
    engine: str = "",
    match: str = "",
    unsupported: Mapping[str, str] | None = None,
    xfail: Mapping[str, str] | None = None,
    claims: str | Path = "",
) -> type:
    """Return a class of tests; assign it to a name that begins with Test in a test module.

    The parameters are those of `Plan`. pytest's options --dnncore-timeout, --dnncore-floor,
    --dnncore-json, --dnncore-plugin and --dnncore-forbid apply here, too.

        TestMine = conformance("mine", unsupported={"*f16*": "no half type"})
    """
    plan = Plan(backend, size, engine, match, unsupported or {}, xfail or {}, claims=claims)
    return type("Conformance", (_Tests,), {"plans": (plan,)})
