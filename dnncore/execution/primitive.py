"""Primitives take their arguments at each execution; bound calls have fixed arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dnncore import observers
from dnncore.backend import Executable, Run
from dnncore.engines.allocation import Allocation
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory, no_memory
from dnncore.engines.stream import Event, Stream, checked_event, checked_events
from dnncore.errors import DescriptorError, DnnError, ExecutionError, describe
from dnncore.execution.timing import Timing
from dnncore.interrupts import pass_on
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["BoundPrimitive", "Primitive"]


class Primitive:
    """A primitive descriptor with its compiled executable. Threads may share it."""

    def __init__(self, pd: PrimitiveDesc, executable: Executable) -> None:
        self.pd = pd
        self.executable = executable
        engine, src_engine = pd.engine, pd.src_engine
        self._slots = [
            (argument.name, desc, src_engine if argument.name == "src" else engine)
            for argument, desc in pd.arguments
        ]
        self._written = {a.name for a, _ in pd.arguments if a.direction == "out"}
        self._pairs = list(_written_pairs(pd))
        places = ((i, pd.op.place_of(a.name)) for i, (a, _) in enumerate(pd.op.tensors()))
        self._places = {i: place for i, place in places if place is not None}
        self._user_scratchpad = pd.scratchpad_desc
        self._scratchpad_bytes = pd.scratchpad_bytes if self._user_scratchpad is None else 0
        self._engines = (engine, src_engine)
        self._timing: Timing | None = None
        observers.fill(self)

    def __copy__(self) -> Primitive:
        """Return the primitive itself, also for a deep copy: it is immutable."""
        return self

    def __deepcopy__(self, memo: object) -> Primitive:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the descriptor; the other process builds the primitive again."""
        return _built_again, (self.pd,)

    def __repr__(self) -> str:
        return f"<primitive {self._kind} by {self.impl_name} on {self.pd.engine.name}>"

    def refill(self) -> None:
        """Set the function that launches call, wrapped by the present observers."""
        self._launch = self._launch_watched if observers.active else self.executable.execute

    @property
    def impl_name(self) -> str:
        """The implementation's name."""
        return self.pd.impl_name

    def execute(
        self, stream: Stream, *, wait_for: Sequence[Event] = (), **arguments: Memory
    ) -> Event:
        """Launch on `stream` with a memory for every argument of `pd.arguments`, by name.

        wait_for: events that the launch waits for.

        Returns the event of the launch. Raises `DescriptorError` for arguments that are missing or
        unknown, have another descriptor or engine, or overlap although the operation does not allow
        this. Raises `ExecutionError` if the launch fails.
        """
        memories = self._ordered(arguments)
        self._check_stream(stream)
        wait_for = checked_events(wait_for)
        if self._user_scratchpad is not None:
            self._check_scratchpad(arguments.get("scratchpad"), memories)
        return self.launch(stream, memories, wait_for, self._scratchpad(stream, arguments))

    def launch(
        self,
        stream: Stream,
        memories: Sequence[Memory],
        wait_for: Sequence[Event] = (),
        scratchpad: Buffer | None = None,
    ) -> Event:
        """Launch as `execute` does, with checked arguments in binding order.

        scratchpad: by default the stream's.
        """
        try:
            if self._scratchpad_bytes and scratchpad is None:
                if self.is_lent(stream):
                    launch = _lent(self._launch, memories, self._scratchpad_bytes)
                    return checked_event(launch(stream, wait_for))
                scratchpad = stream.reserve(self._scratchpad_bytes)
            event = checked_event(self._launch(stream, memories, scratchpad, wait_for))
        except DnnError:
            raise
        except Exception as error:
            raise self.failed(error) from error
        if stream.profiling:
            self.prove(event)
        return event

    def prove(self, event: Event) -> None:
        """Use the times of a command on a profiling stream to correct peaks and judge estimates."""
        if self._timing is None:
            self._timing = Timing(self.pd)
        self._timing.add(event)

    def bind(self, **arguments: Memory) -> BoundPrimitive:
        """Return a bound call with these arguments. They are checked once, not at each launch."""
        memories = self._ordered(arguments)
        scratchpad = arguments.get("scratchpad")
        if self._user_scratchpad is not None:
            self._check_scratchpad(scratchpad, memories)
        return BoundPrimitive(self, memories, scratchpad)

    def _launch_watched(
        self,
        stream: Stream,
        memories: Sequence[Memory],
        scratchpad: Buffer | None,
        wait_for: Sequence[Event],
    ) -> Event:
        def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            return self.executable.execute(stream, memories, scratchpad, wait_for)

        return observers.watched(self, memories, run)(stream, wait_for)

    # -- checks ---------------------------------------------------------------------------------

    def _ordered(self, arguments: dict[str, Memory]) -> list[Memory]:
        """Check the memories and return them in binding order."""
        memories = []
        for name, desc, engine in self._slots:
            memory = arguments.get(name)
            if not isinstance(memory, Memory):
                self._check_names(arguments)
                self._fail_memory(name, memory)
            if memory.desc is not desc and memory.desc != desc:
                self._fail_desc(name, memory.desc, desc)
            if memory.engine is not engine:
                self._fail_engine(name, memory.engine, engine)
            if memory.is_read_only and name in self._written:
                self._fail_read_only(name)
            memories.append(memory)
        expected = len(memories) + (self._user_scratchpad is not None)
        if len(arguments) != expected:
            self._check_names(arguments)
        self._check_overlap(memories)
        return memories

    def _check_names(self, arguments: dict[str, Memory]) -> None:
        known = [name for name, _, _ in self._slots]
        if self._user_scratchpad is not None:
            known.append("scratchpad")
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise DescriptorError(
                f"{self._kind}: unknown argument {', '.join(unknown)}; it takes {', '.join(known)}"
            )

    def _check_overlap(self, memories: list[Memory]) -> None:
        """Refuse an output that shares bytes with another argument, except in allowed pairs."""
        for i, j, may_be_one in self._pairs:
            written, other = memories[i], memories[j]
            if written.buffer is not other.buffer and _are_apart(written, other):
                continue
            same = written.desc == other.desc and _same_start(written, other)
            if (same and may_be_one) or self._is_in_place(j, written, other):
                continue
            if _overlap(written, other):
                self._fail_overlap(self._slots[i][0], self._slots[j][0], same)

    def _is_in_place(self, j: int, written: Memory, other: Memory) -> bool:
        """Whether an input is the part of the result that it may be."""
        place = self._places.get(j)
        return place is not None and _first(written, place) == _first(other, other.desc)

    def _check_stream(self, stream: Stream) -> None:
        if not isinstance(stream, Stream) or stream.engine not in self._engines:  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"{self._kind}: the stream must be one of {self.pd.engine.name}; got"
                f" {stream!r}; open one with engine.stream()"
            )

    def is_lent(self, stream: Stream) -> bool:
        """Whether each launch on `stream` gets a separate scratchpad."""
        return self._scratchpad_bytes > 0 and stream.scratchpads is not None

    def _scratchpad(self, stream: Stream, arguments: dict[str, Any]) -> Buffer | None:
        """Return the user's scratchpad or the stream's; None if each launch gets its own."""
        if self._user_scratchpad is None:
            return stream.reserve(self._scratchpad_bytes) if self._scratchpad_bytes else None
        return arguments["scratchpad"].buffer

    def _check_scratchpad(self, memory: object, memories: list[Memory]) -> None:
        desc = self._user_scratchpad
        assert desc is not None
        if not isinstance(memory, Memory):
            self._fail_memory("scratchpad", memory)
        if memory.nbytes < desc.nbytes:
            self._fail_desc("scratchpad", memory.desc, desc)
        if memory.engine is not self.pd.engine:
            self._fail_engine("scratchpad", memory.engine, self.pd.engine)
        if memory.is_read_only:
            self._fail_read_only("scratchpad")
        if memory.desc.offset0:
            raise DescriptorError(
                f"{self._kind}: scratchpad must begin where its buffer begins; got a memory that"
                f" begins at byte {memory.desc.offset0 * memory.desc.itemsize}; pass a memory with"
                " a buffer of its own"
            )
        for (name, _, _), other in zip(self._slots, memories, strict=True):
            if memory.buffer is other.buffer or not _are_apart(memory, other):
                self._fail_overlap("scratchpad", name, same=False)

    # -- errors ---------------------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        return self.pd.op.KIND

    def failed(self, error: Exception) -> ExecutionError:
        """Return the `ExecutionError` for a launch that raised an exception of another library.

        Raises an error of a signal handler again.
        """
        pass_on(error)
        return ExecutionError(f"{self._kind}: {self.impl_name} failed: {describe(error)}")

    def _fail_memory(self, name: str, got: object) -> NoReturn:
        taken = ", ".join(name for name, _, _ in self._slots)
        if got is None:
            raise DescriptorError(f"{self._kind}: argument {name} is missing; it takes {taken}")
        raise DescriptorError(f"{self._kind}: {no_memory(name, got)}")

    def _fail_desc(self, name: str, got: MemoryDesc, expected: MemoryDesc) -> None:
        if got.dims == expected.dims:
            remedy = f"reorder it to the primitive descriptor's {name}_desc"
        elif got.nelems == expected.nelems:
            remedy = f"its array must have the shape {expected.dims}, with elements in that order"
        else:
            remedy = f"make it of the primitive descriptor's {name}_desc"
        raise DescriptorError(
            f"{self._kind}: {name} must be laid out as {expected}; got {got}; {remedy}"
        )

    def _fail_engine(self, name: str, got: Engine, expected: Engine) -> None:
        raise DescriptorError(
            f"{self._kind}: {name} must be a memory of {expected.name}; got one of {got.name};"
            " move it with dnncore.reorder"
        )

    def _fail_read_only(self, name: str) -> NoReturn:
        raise DescriptorError(
            f"{self._kind}: kernels must be able to write to {name}; its buffer is read-only;"
            " create the buffer with the flag READ_WRITE, or use Memory(desc, engine)"
        )

    def _fail_overlap(self, written: str, other: str, same: bool) -> None:
        allowed = ", ".join(f"{a} and {b}" for a, b in self.pd.op.IN_PLACE) or "none"
        how = "is the memory of" if same else "overlaps"
        raise DescriptorError(
            f"{self._kind}: {written} {how} {other}; an output must not overlap another argument,"
            f" except in-place pairs with equal descriptors: {allowed}; use another memory"
        )


class BoundPrimitive:
    """A primitive with its arguments fixed: `bound(stream, wait_for=())` launches it.

    It keeps its memories alive. Several streams may use it, each in its own thread.
    """

    __slots__ = ("__weakref__", "_attached", "_user_scratchpad", "memories", "primitive")

    def __init__(
        self, primitive: Primitive, memories: list[Memory], scratchpad: Memory | None
    ) -> None:
        self.primitive = primitive
        self.memories = memories
        self._user_scratchpad = scratchpad
        self._attached: tuple[object, Buffer | None, Run]
        observers.fill(self)

    def __reduce__(self) -> NoReturn:
        raise DescriptorError(
            f"{self.primitive.pd.op.KIND}: a bound call belongs to its memories and cannot be"
            " copied or pickled; bind the primitive to copies of the memories"
        )

    def __repr__(self) -> str:
        return f"<bound call of {self.primitive!r}>"

    def refill(self) -> None:
        """Forget the stream. The next call resolves its run with the present observers."""
        self._attached = (_unattached, None, _unattached)

    def __call__(self, stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        """Launch on `stream`; raises `ExecutionError` if that fails."""
        attached = self._attached
        if attached[0] is not stream or attached[1] is not stream.scratchpad:
            attached = self._attach(stream)
        if type(wait_for) is not tuple or wait_for:
            wait_for = checked_events(wait_for)
        try:
            event: object = attached[2](stream, wait_for)
            return event if isinstance(event, Event) else checked_event(event)
        except DnnError:
            raise
        except Exception as error:
            raise self.primitive.failed(error) from error

    def launch_unobserved(self, stream: Stream) -> Event:
        """Launch without observers, because the launch is not part of the user's program."""
        try:
            return checked_event(self.run_on(stream)(stream, ()))
        except DnnError:
            raise
        except Exception as error:
            raise self.primitive.failed(error) from error

    def chain_on(self, stream: Stream) -> Any:
        """The executable's `chain`; None if each launch gets a separate scratchpad."""
        is_lent = self.primitive.is_lent(stream)
        return None if is_lent else type(self.primitive.executable).chain

    def reserve(self, stream: Stream) -> None:
        """Check the stream and make its scratchpad large enough."""
        self.primitive._check_stream(stream)
        if self._user_scratchpad is None:
            stream.reserve(self.primitive.pd.scratchpad_bytes)

    def run_on(self, stream: Stream) -> Run:
        """Resolve the run for `stream` with its present scratchpad, or with one per launch."""
        primitive = self.primitive
        primitive._check_stream(stream)
        if primitive.is_lent(stream):
            execute = primitive.executable.execute
            return _lent(execute, self.memories, primitive._scratchpad_bytes)
        scratchpad = primitive._scratchpad(stream, {"scratchpad": self._user_scratchpad})
        try:
            run: object = primitive.executable.bind(self.memories, scratchpad)
            if not callable(run):
                raise TypeError(f"bind returned {type(run).__name__}, not a function")
        except DnnError:
            raise
        except Exception as error:
            raise primitive.failed(error) from error
        return run

    def _attach(self, stream: Stream) -> tuple[object, Buffer | None, Run]:
        present = observers.active
        run = observers.watched(self.primitive, self.memories, self.run_on(stream))
        if stream.profiling:
            run = _proving(self.primitive, run)
        self._attached = attached = (stream, stream.scratchpad, run)
        return attached if observers.active is present else self._attach(stream)


def _built_again(pd: PrimitiveDesc) -> Primitive:
    return pd.primitive()


def _lent(execute: Callable[..., Event], memories: Sequence[Memory], nbytes: int) -> Run:
    """Return a run that takes one of the stream's scratchpads for each launch.

    execute: has the signature of `Executable.execute`.
    """

    def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        assert stream.scratchpads is not None
        launch = functools.partial(execute, stream, memories)
        return stream.scratchpads.launch(nbytes, wait_for, launch)

    return run


def _proving(primitive: Primitive, run: Run) -> Run:
    """Return a run on a profiling stream, whose times may correct the engine's peaks."""

    def proving(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
        event = checked_event(run(stream, wait_for))
        primitive.prove(event)
        return event

    return proving


def _unattached(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
    raise AssertionError((stream, wait_for))


def _written_pairs(pd: PrimitiveDesc) -> Iterator[tuple[int, int, bool]]:
    """Yield indices of an output and another argument, and whether they may share a memory."""
    arguments = [argument for argument, _ in pd.arguments]
    in_place = {frozenset(pair) for pair in pd.op.IN_PLACE}
    for i, written in enumerate(arguments):
        for j, other in enumerate(arguments):
            seen = other.direction == "out" and j < i
            if written.direction == "out" and i != j and not seen:
                yield i, j, frozenset((written.name, other.name)) in in_place


def _are_apart(a: Memory, b: Memory) -> bool:
    """Whether different buffers share no byte. Two views of one host array may share bytes."""
    if a.engine.is_host != b.engine.is_host:
        return True
    if a.engine.is_host:
        (a_start, a_end), (b_start, b_end) = a.span, b.span
        return a_end <= b_start or b_end <= a_start
    if isinstance(a.owner, Allocation) or isinstance(b.owner, Allocation):
        return True
    (a_whole, a_start), (b_whole, b_start) = _place(a), _place(b)
    return a_whole != b_whole or a_start + a.nbytes <= b_start or b_start + b.nbytes <= a_start


def _first(memory: Memory, desc: MemoryDesc) -> tuple[Hashable, int]:
    """Return the object that contains a memory's buffer, and the byte of desc's first element."""
    whole, start = _place(memory)
    return whole, start + desc.offset0 * desc.itemsize


def _place(memory: Memory) -> tuple[Hashable, int]:
    """Return the object that contains a memory's buffer, and the byte of it where the buffer
    begins.
    """
    if memory.engine.is_host:
        return "host", memory.address
    return memory.engine.place(memory.buffer)


def _same_start(a: Memory, b: Memory) -> bool:
    return a.buffer is b.buffer or _place(a) == _place(b)


def _overlap(a: Memory, b: Memory) -> bool:
    """Whether two tensors share an element, computed exactly from layouts within the buffers."""
    starts = (0, 0)
    if a.buffer is not b.buffer:
        places = (_place(a)[1], _place(b)[1])
        low = min(places)
        starts = (places[0] - low, places[1] - low)
    return np.shares_memory(_ghost(a.desc, starts[0]), _ghost(b.desc, starts[1]))


def _ghost(desc: MemoryDesc, start: int) -> np.ndarray[Any, Any]:
    """Build an array with the tensor's shape and strides at `start`; it is never read."""
    base = _GHOST_BYTES.ctypes.data
    interface = {
        "shape": desc.physical_shape,
        "typestr": desc.dtype.str,
        "strides": tuple(s * desc.itemsize for s in desc.physical_strides),
        "data": (base + start + desc.offset0 * desc.itemsize, True),
        "version": 3,
    }
    return np.asarray(type("Ghost", (), {"__array_interface__": interface})())


_GHOST_BYTES = np.zeros(1, np.uint8)
