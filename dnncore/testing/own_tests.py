"""The kit in an implementer's own tests: three lines, and the backend's cases are among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from dnncore.testing.running.plan import Job, Plan

__all__ = ["conformance"]


class _Tests:
    """The tests of `plans`."""

    plans: ClassVar[tuple[Plan, ...]]

    def test_case(self, dnncore_job: Job, dnncore_check: Callable[[Job], None]) -> None:
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
) -> type:
    """A class of tests, to be given a name that begins with Test in a module of tests.

    The parameters are those of `Plan`; pytest's options --dnncore-timeout, --dnncore-floor,
    --dnncore-json, --dnncore-plugin and --dnncore-forbid hold here, too.

        TestMine = conformance("mine", unsupported={"*f16*": "no half type"})
    """
    plan = Plan(backend, size, engine, match, unsupported or {}, xfail or {})
    return type("Conformance", (_Tests,), {"plans": (plan,)})
