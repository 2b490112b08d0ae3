"""The observer that repeats the launches of the program and compares their results."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore import observers
from dnncore.crosschecking.budget import Budget
from dnncore.crosschecking.call import Call, Copies, NotComparable
from dnncore.crosschecking.divergence import divergence_of
from dnncore.crosschecking.hidden import Hidden, has_private_workspace, is_hidden
from dnncore.crosschecking.judgement import Judgement, judge
from dnncore.crosschecking.repetition import Choice, Repetition
from dnncore.crosschecking.report import Divergence, Report
from dnncore.crosschecking.saved import problem_of
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DnnError, describe
from dnncore.interrupts import pass_on
from dnncore.selection.primitive_desc import PrimitiveDesc

if TYPE_CHECKING:
    from dnncore.backend import Run
    from dnncore.execution.primitive import Primitive

__all__ = ["Crosscheck"]

Array = np.ndarray[Any, Any]


class _Thread(threading.local):
    """What belongs to a thread. Launches of a repetition are not repeated."""

    is_repeating = False


_thread = _Thread()


class _Caches(threading.local):
    """Buffers, repetitions and times of one thread."""

    def __init__(self, slowdown: float | None) -> None:
        self.copies: dict[PrimitiveDesc, Copies] = {}
        self.repetitions: dict[PrimitiveDesc, Repetition | NotComparable] = {}
        self.budget = Budget(slowdown)


class Crosscheck(observers.Observer):
    """Repeats launches by the implementations of `choose()` and reports divergences.

    choose: returns the choice; it is called at the first launch. It may raise `DnnError`.
    on_divergence: is called with each divergence, in the launch's thread. It may raise.
    """

    def __init__(
        self,
        choose: Callable[[], Choice],
        report: Report,
        folder: Path,
        slowdown: float | None,
        on_divergence: Callable[[Divergence], None],
    ) -> None:
        self.report = report
        self._choose = choose
        self._choice: Choice | None = None
        self._folder = folder
        self._on_divergence = on_divergence
        self._caches = _Caches(slowdown)
        self._hidden = Hidden()
        self._workspaces = Hidden()

    def watch(self, primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
        """Return a run that repeats the launch and waits for both."""
        pd = primitive.pd

        def checked(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            if _thread.is_repeating:
                return run(stream, wait_for)
            return self._launch(pd, memories, run, stream, wait_for)

        return checked

    def _launch(
        self,
        pd: PrimitiveDesc,
        memories: Sequence[Memory],
        run: Run,
        stream: Stream,
        wait_for: Sequence[Event],
    ) -> Event:
        names = [argument.name for argument, _ in pd.arguments]
        call = Call(self._report().begin(pd), pd, dict(zip(names, memories, strict=True)))
        budget, hides = self._caches.budget, any(is_hidden(pd, name) for name in names)
        if not (hides or budget.permits(pd, call.memories[pd.op.result_name])):
            self.report.postpone()
            return run(stream, wait_for)
        with budget.spending(), self._comparing(call):
            self._copies(pd).take_inputs(call, self._hidden, stream, wait_for)
        event = run(stream, wait_for)
        divergence = None
        if call.is_ready:
            with budget.spending(), self._comparing(call):
                divergence = self._finish(call, stream, event)
        if divergence is not None:
            self._on_divergence(divergence)
        return event

    def _finish(self, call: Call, stream: Stream, event: Event) -> Divergence | None:
        """Compare the results of a launch that may still run."""
        try:
            event.wait()
        except DnnError as error:  # the caller gets it from the event, too
            raise NotComparable(f"the launch failed: {describe(error)}") from error
        copies = self._copies(call.pd)
        copies.take_outputs(call, stream)
        self._reveal(call, copies)
        judgement, other = self._judged(call, copies)
        self.report.count_compared()
        if not judgement.differences:
            return None
        again = self._repeated_by_itself(call)
        is_new = self.report.is_new(str(problem_of(call)), call.pd.impl_name)
        folder = self._folder if is_new else None
        name = other.impl_name if other else self.choice.name
        divergence = divergence_of(call, judgement, name, again, self.choice.name, folder)
        self.report.diverge(divergence)
        return divergence

    @property
    def choice(self) -> Choice:
        """The choice of implementations, made at the first use."""
        if self._choice is None:
            self._choice = self._choose()
        return self._choice

    def _judged(self, call: Call, copies: Copies) -> tuple[Judgement, PrimitiveDesc | None]:
        if self.choice.is_reference:
            if call.pd.is_reference:
                raise NotComparable("the reference computed it")
            return judge(call, None, None), None
        repetition = self._repetition(call.pd)
        outputs = repetition.outputs(call, copies.bytes_of("workspace"))
        return judge(call, outputs, repetition.pd), repetition.pd

    def _reveal(self, call: Call, copies: Copies) -> None:
        """Remember what outputs stand for that only their owner can read."""
        from dnncore.comparison.compare import correct_values

        hidden = [name for name in copies.written if is_hidden(call.pd, name)]
        if not hidden:
            return
        values = correct_values(call.pd.op, call.pd.attr, call.inputs)
        for name in hidden:
            content = copies.bytes_of(name)
            assert content is not None
            self._hidden.keep(call.memories[name], content, values[name])
        if not call.outputs:
            raise NotComparable(f"only {call.pd.impl_name} can read {', '.join(hidden)}")

    def _repeated_by_itself(self, call: Call) -> dict[str, Array] | None:
        """The outputs of a second launch by the call's own implementation; None if it fails."""
        if has_private_workspace(call.pd):
            return None
        try:
            return Repetition(call.pd, Hidden(), call.alias).outputs(call)
        except Exception as error:
            pass_on(error)
            return None

    # -- what is kept from call to call ------------------------------------------------------------

    def _report(self) -> Report:
        """The report. In a forked child, it begins anew."""
        report = self.report
        if report.process != os.getpid():
            report.__init__(report.compared_with)  # type: ignore[misc]  # all fields anew
        return report

    def _copies(self, pd: PrimitiveDesc) -> Copies:
        copies = self._caches.copies.get(pd)
        if copies is None:
            copies = self._caches.copies[pd] = Copies(pd)
        return copies

    def _repetition(self, pd: PrimitiveDesc) -> Repetition:
        """The repetition of a problem. Raises `NotComparable` if no other implementation has it."""
        kept = self._caches.repetitions
        if pd not in kept:
            try:
                kept[pd] = Repetition(self.choice.descriptor(pd), self._workspaces)
            except NotComparable as reason:
                kept[pd] = reason
        found = kept[pd]
        if isinstance(found, NotComparable):
            raise found
        return found

    @contextmanager
    def _comparing(self, call: Call) -> Iterator[None]:
        """Launches in the block are not repeated; a failed repetition leaves the call out."""
        _thread.is_repeating = True
        try:
            yield
        except NotComparable as reason:
            self.report.leave_out(call.pd, str(reason))
        except Exception as error:
            pass_on(error)
            self.report.leave_out(call.pd, f"the repetition failed: {describe(error)}")
        finally:
            _thread.is_repeating = False
