"""The observer that repeats the launches of the program and compares their results."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.crosschecking.budget import Budget
from dnncore.crosschecking.call import Call, Copies, NotComparable
from dnncore.crosschecking.call_observer import CallObserver
from dnncore.crosschecking.divergence import divergence_of
from dnncore.crosschecking.hidden import Hidden, has_private_workspace
from dnncore.crosschecking.judgement import Judgement, judge
from dnncore.crosschecking.repetition import Choice, Repetition
from dnncore.crosschecking.report import Divergence, Report
from dnncore.crosschecking.saved import problem_of
from dnncore.interrupts import pass_on
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Crosscheck"]

Array = np.ndarray[Any, Any]


class _OfThread(threading.local):
    """The repetitions of one thread and their time budget."""

    def __init__(self, slowdown: float | None) -> None:
        self.repetitions: dict[PrimitiveDesc, Repetition | NotComparable] = {}
        self.budget = Budget(slowdown)


class Crosscheck(CallObserver):
    """Repeats launches by the implementations of `choose()` and reports divergences.

    choose: returns the choice; it is called at the first launch. It may raise `NotComparable`.
    folder: where the first divergent call of each problem is saved.
    slowdown: see `Budget`.
    on_divergence: a function that is called with each divergence in the launch's thread. It may
        raise.
    """

    def __init__(
        self,
        choose: Callable[[], Choice],
        report: Report,
        folder: Path,
        slowdown: float | None,
        on_divergence: Callable[[Divergence], None],
    ) -> None:
        super().__init__()
        self.report = report
        self._choose = choose
        self._folder = folder
        self._on_divergence = on_divergence
        self._own = _OfThread(slowdown)
        self._workspaces = Hidden()

    def begin(self, pd: PrimitiveDesc) -> int:
        """Count the launch. In a forked child, the report starts empty."""
        self._own.budget.arrive()
        if self.report.process != os.getpid():
            self.report.forget()
        return self.report.begin(pd)

    def wants(self, call: Call) -> bool:
        """Whether the time limit allows a repetition of the launch."""
        wanted = self._own.budget.permits(call.pd, call.memories[call.pd.op.result_name])
        if not wanted:
            self.report.postpone()
        return wanted

    def finished(self, call: Call, copies: Copies) -> Callable[[], None] | None:
        """Repeat the launch and compare."""
        judgement, other = self._judged(call, copies)
        self.report.count_compared()
        if not judgement.differences:
            return None
        is_new = self.report.is_new(str(problem_of(call.pd, call.alias)), call.pd.impl_name)
        folder = self._folder if is_new else None
        again = self._repeated_by_itself(call) if is_new else None
        divergence = divergence_of(call, judgement, other, again, self.choice.name, folder)
        self.report.diverge(divergence)
        return functools.partial(self._on_divergence, divergence)

    def left_out(self, call: Call, reason: str) -> None:
        """Count a launch that could not be compared."""
        self.report.leave_out(call.pd, reason)

    def timed(self, pd: PrimitiveDesc | None) -> AbstractContextManager[None]:
        """Count the time of the launch itself."""
        return self._own.budget.spending(pd)

    @functools.cached_property
    def choice(self) -> Choice:
        """The choice of implementations, made at the first use."""
        return self._choose()

    def _judged(self, call: Call, copies: Copies) -> tuple[Judgement, PrimitiveDesc | None]:
        if self.choice.is_reference:
            if call.pd.is_reference:
                raise NotComparable("the reference computed it")
            return judge(call), None
        repetition = self._repetition(call.pd)
        outputs = repetition.outputs(call, copies.bytes_of("workspace"))
        return judge(call, outputs, repetition.pd), repetition.pd

    def _repetition(self, pd: PrimitiveDesc) -> Repetition:
        """The repetition of a problem. Raises `NotComparable` if no other implementation has it."""
        kept = self._own.repetitions
        if pd not in kept:
            try:
                kept[pd] = Repetition(self.choice.descriptor(pd), self._workspaces)
            except NotComparable as reason:
                kept[pd] = reason
        found = kept[pd]
        if isinstance(found, NotComparable):
            raise found
        return found

    def _repeated_by_itself(self, call: Call) -> dict[str, Array] | None:
        """Return the outputs of a second launch by the call's implementation; None if it fails."""
        if has_private_workspace(call.pd):
            return None
        try:
            return Repetition(call.pd, Hidden(), call.alias).outputs(call)
        except Exception as error:
            pass_on(error)
            return None

    @contextmanager
    def _observing(self, call: Call) -> Iterator[None]:
        with self._own.budget.spending(), super()._observing(call):
            yield
