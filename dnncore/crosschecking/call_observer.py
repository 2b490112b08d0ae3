"""Base of observers that see the inputs and outputs of every launch."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from dnncore import observers
from dnncore.comparison.compare import correct_values
from dnncore.crosschecking.call import Call, Copies, NotComparable
from dnncore.crosschecking.hidden import Hidden, is_hidden
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DnnError, describe
from dnncore.interrupts import pass_on
from dnncore.selection.primitive_desc import PrimitiveDesc

if TYPE_CHECKING:
    from dnncore.backend import Run
    from dnncore.execution.primitive import Primitive

__all__ = ["CallObserver"]


class _Thread(threading.local):
    """The state of a thread. Launches that an observer makes itself are not observed."""

    is_observing = False


_thread = _Thread()


class _Buffers(threading.local):
    """The unused host buffers of a thread, and which primitives have hidden arguments."""

    def __init__(self) -> None:
        self.free: dict[PrimitiveDesc, Copies] = {}
        self.hides: dict[PrimitiveDesc, bool] = {}


class CallObserver(observers.Observer):
    """Base of observers that wait for each launch and pass its values to `finished`.

    The launch itself is not changed: it receives the caller's stream and events, and the caller
    receives its event and its errors.
    """

    def __init__(self) -> None:
        self._buffers = _Buffers()
        self._hidden = Hidden()
        self._steps: dict[int, int] = {}  # by thread: beginnings and ends of its launches

    def watch(self, primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
        """Return a run that copies the arguments before and after the launch."""
        pd = primitive.pd

        def observed(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            if _thread.is_observing:
                return run(stream, wait_for)
            with self._step():
                return self._launch(pd, memories, run, stream, wait_for)

        return observed

    @abstractmethod
    def begin(self, pd: PrimitiveDesc) -> int | None:
        """Return the number of the launch; None if it is not observed."""

    @abstractmethod
    def wants(self, call: Call) -> bool:
        """Whether the values of a launch are needed. Called before its inputs are known."""

    @abstractmethod
    def finished(self, call: Call, copies: Copies) -> Callable[[], None] | None:
        """Use the values of a launch. Return a function, which the caller's thread then calls.

        The values are valid during this call only. `NotComparable` and other errors are passed to
        `left_out`. Errors of the returned function are raised.
        """

    @abstractmethod
    def left_out(self, call: Call, reason: str) -> None:
        """Handle a launch that could not be used."""

    def timed(self, pd: PrimitiveDesc | None) -> AbstractContextManager[None]:
        """Return a context manager for the launch itself. pd: None if the block does not wait for
        its end.
        """
        return nullcontext()

    def _launch(
        self,
        pd: PrimitiveDesc,
        memories: Sequence[Memory],
        run: Run,
        stream: Stream,
        wait_for: Sequence[Event],
    ) -> Event:
        number = self.begin(pd)
        if number is None:
            return run(stream, wait_for)
        names = [argument.name for argument, _ in pd.arguments]
        call = Call(number, pd, dict(zip(names, memories, strict=True)))
        if not (self.wants(call) or self._hides(pd)):
            with self.timed(None):
                return run(stream, wait_for)
        copies = self._buffers.free.pop(pd, None) or Copies(pd)
        others = self._steps_of_others()
        with self._observing(call):
            copies.take_inputs(call, self._hidden, stream, wait_for)
        with self.timed(pd):
            event = run(stream, wait_for)
            error = _error_of(event)
        then = None
        if call.is_ready:
            with self._observing(call):
                self._take_outputs(call, copies, stream, error)
                if others is not None and others == self._steps_of_others():
                    copies.take_strays(call, stream)
                then = self.finished(call, copies)
        self._buffers.free[pd] = copies
        if then is not None:
            then()
        return event

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Count the beginning and the end of a launch of this thread."""
        own = threading.get_ident()
        self._steps[own] = self._steps.get(own, 0) + 1
        try:
            yield
        finally:
            self._steps[own] += 1

    def _steps_of_others(self) -> dict[int, int] | None:
        """Return the counts of other threads; None while one of them launches.

        Changes by other threads cannot be distinguished from changes by this thread's launch.
        """
        steps = {thread: n for thread, n in self._steps.copy().items() if n % 2 == 0}
        busy = len(self._steps) - len(steps)
        return steps if busy <= 1 else None

    def _take_outputs(
        self, call: Call, copies: Copies, stream: Stream, error: Exception | None
    ) -> None:
        if error is not None:
            raise NotComparable(f"the launch failed: {describe(error)}")
        copies.take_outputs(call, stream)
        hidden = [name for name in copies.written if is_hidden(call.pd, name)]
        if hidden:
            self._remember(call, copies, hidden)

    def _remember(self, call: Call, copies: Copies, hidden: Sequence[str]) -> None:
        """Keep the values that unreadable outputs represent."""
        values = correct_values(call.pd.op, call.pd.attr, call.inputs)
        for name in hidden:
            self._hidden.keep(call.memories[name], copies.after[name], values[name])
        if not call.outputs:
            raise NotComparable(f"only {call.pd.impl_name} can read {', '.join(hidden)}")

    def _hides(self, pd: PrimitiveDesc) -> bool:
        """Whether the primitive has an argument that only its implementation can read."""
        known = self._buffers.hides
        if pd not in known:
            known[pd] = any(is_hidden(pd, name) for name in pd.descs)
        return known[pd]

    @contextmanager
    def _observing(self, call: Call) -> Iterator[None]:
        """Do not observe launches in the block. Errors in the block are errors of the observer."""
        _thread.is_observing = True
        try:
            yield
        except NotComparable as reason:
            self.left_out(call, str(reason))
        except Exception as error:
            pass_on(error)
            self.left_out(call, f"the repetition failed: {describe(error)}")
        finally:
            _thread.is_observing = False


def _error_of(event: Event) -> Exception | None:
    """Wait for the end of a launch. Return its error, which the caller's event also reports."""
    try:
        event.wait()
    except (DnnError, TimeoutError) as error:
        return error
    return None
