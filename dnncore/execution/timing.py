"""Corrections of peaks and estimates by the times of a primitive on profiling streams."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dnncore.engines.estimates import judge
from dnncore.engines.stream import Event
from dnncore.errors import DescriptorError

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Timing"]

TIMES = 3  # the shortest of them is used: the first executions generate code and have cold caches


class Timing:
    """The times of one primitive."""

    def __init__(self, pd: PrimitiveDesc) -> None:
        self._pd = pd
        self._best = math.inf
        self._left = TIMES
        self._under_way: list[Event] = []  # events of the first launches that have not ended

    def add(self, event: Event) -> None:
        """Use the times of a launch that has ended, and of earlier ones that have ended since."""
        events, self._under_way = [*self._under_way, event], []
        for launch in events:
            if not launch.done:
                self._under_way.append(launch)
            elif launch.start is not None and launch.end is not None and launch.error is None:
                self._take(launch.end - launch.start)
        self._under_way = self._under_way[: max(self._left, 0)]

    def _take(self, seconds: float) -> None:
        """Let the engine correct its peaks, and judge the estimate once.

        Only implementations that perform all of the operation's arithmetic prove peaks. Estimates
        of copies between engines and of the reference are not judged.
        """
        pd = self._pd
        if pd.exact and pd.error_factor <= 1:
            pd.engine.prove(pd.op.flops, pd.op.bytes, pd.op.data_type, seconds)
        self._best = min(self._best, seconds)
        self._left -= 1
        is_own = pd.src_engine is pd.engine and not pd.is_host_fallback
        if self._left == 0 and is_own and not pd.is_reference:
            judge(pd.impl_name, pd.engine.device.name, self._problem, pd.seconds, self._best)

    def _problem(self) -> str:
        from dnncore.problem import Problem

        op = self._pd.asked
        try:
            return str(Problem(op, self._pd.attr))
        except DescriptorError:
            return f"{op.KIND} with an opaque format"
