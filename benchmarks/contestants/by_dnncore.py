"""dnncore's contestants: the selected implementation, and all others that accept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import dnncore as dnn
from benchmarks.contestants.contestant import Array, Contestant, LeftOut, Terms
from benchmarks.contestants.libraries import NOT_A_NUMBER, between_reorders, contestant
from benchmarks.measuring.checkout import engine
from benchmarks.measuring.sampling import Repeat, one_by_one, timed
from dnncore.problem import Problem

__all__ = ["chosen", "copying", "kernels", "on_cpu", "others", "untuned"]


class Dnncore:
    """dnncore on one engine, with the interface of `Library`."""

    def __init__(self, engine: dnn.Engine, **wishes: Any) -> None:
        self.engine = engine
        self.stream = self.engine.stream()
        self.wishes = wishes

    @classmethod
    def of(cls, problem: Problem, engine: dnn.Engine) -> Dnncore:
        """Make the library with the name patterns and knobs of a problem."""
        return cls(engine, **problem.wishes)

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> dnn.PrimitiveDesc:
        """The best implementation that matches the patterns, which do not apply to reorders."""
        wishes = {} if isinstance(op, dnn.Reorder) else self.wishes
        return dnn.PrimitiveDesc(op, self.engine, attr, **wishes)

    def fill(self, memory: dnn.Memory, period: Array) -> None:
        """Fill a plain memory and reorder it."""
        desc = memory.desc.with_format(None)
        if self.engine.is_host:
            plain = dnn.Memory.from_numpy(np.resize(period, desc.dims), desc, self.engine)
        else:
            plain = dnn.Memory(desc, self.engine)
            _repeat(self.stream.native, plain, period)
        op = dnn.Reorder(src=plain.desc, dst=memory.desc)
        reorder = dnn.PrimitiveDesc(op, self.engine).primitive()
        reorder.execute(self.stream, src=plain, dst=memory)

    def spoil(self, memory: dnn.Memory) -> None:
        """Fill with NaN. This also touches the host's pages: untouched ones are read too fast."""
        if self.engine.is_host:
            memory.buffer[:] = NOT_A_NUMBER
        else:
            import pyopencl as cl

            cl.enqueue_fill_buffer(
                self.stream.native, memory.buffer, bytes([NOT_A_NUMBER]), 0, memory.buffer.size
            )

    def values(self, memory: dnn.Memory) -> Array:
        """The values. Opaque formats are reordered first, because numpy cannot read them."""
        if memory.desc.format_kind == "blocked":
            return memory.numpy()
        return dnn.reorder(memory, memory.desc.with_format(None)).numpy()

    def finish(self) -> None:
        """Wait for the stream."""
        self.stream.wait()

    def forward(self, pd: dnn.PrimitiveDesc) -> dnn.PrimitiveDesc:
        """The descriptor of the forward operation in the gradient's formats."""
        assert pd.op.forward_op is not None
        return dnn.PrimitiveDesc(pd.op.forward_op, self.engine)

    def scratchpad(self, pd: dnn.PrimitiveDesc) -> int:
        """The bytes in the descriptor."""
        return pd.scratchpad_bytes

    def repeat(self, calls: list[Any]) -> Repeat:
        """Return a function that runs the calls in order, as a sequence if there are several."""
        run = calls[0] if len(calls) == 1 else dnn.Sequence(calls)
        stream = self.stream

        def repeat(count: int) -> int:
            for _ in range(count):
                run(stream)
            stream.wait()
            return count

        return timed(repeat)


def _repeat(queue: Any, memory: dnn.Memory, period: Array) -> None:
    """Fill a device's plain memory by doubling the filled part."""
    import pyopencl as cl

    buffer, size = memory.buffer, memory.nbytes
    done = min(period.nbytes, size)
    cl.enqueue_copy(queue, buffer, period.view(np.uint8)[:done])
    while done < size:
        count = min(done, size - done)
        cl.enqueue_copy(queue, buffer, buffer, byte_count=count, dst_offset=done)
        done += count


def chosen(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """The selected implementation. With `terms.reorders`, also one that selects its formats."""
    library = Dnncore.of(problem, engine(terms.engine))
    try:
        yield contestant(library, library.choose(problem.op, problem.attr))
    except dnn.NoImplementation as error:
        raise LeftOut(str(error)) from None
    if terms.reorders:
        moved = between_reorders(library, problem.op, problem.attr)
        if moved:
            yield moved


def untuned(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """The implementation that is selected without the device's tuning table.

    Raises `LeftOut` if the table does not change the kernels of the problem.
    """
    tuned = engine(terms.engine)
    if not hasattr(tuned, "tuning_table"):
        raise LeftOut("the engine has no tuning table")
    from benchmarks.measuring.trials import OneChoice, Tabled  # needs pyopencl

    library = Dnncore.of(problem, Tabled(tuned, OneChoice()))
    if _kernels(problem, library) == kernels(problem, terms.engine):
        raise LeftOut("the tuning table has no entry for it")
    yield contestant(library, library.choose(problem.op, problem.attr))


def on_cpu(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """The implementation that dnncore selects on the CPU engine."""
    return chosen(replace(problem, impl="", skip_impl="", knobs=""), replace(terms, engine="cpu"))


def others(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """All accepting implementations except the selected one and the reference."""
    library = Dnncore(engine(terms.engine))
    pds = list(dnn.primitive_descs(problem.op, library.engine, problem.attr))[1:]
    rest = [pd for pd in pds if not pd.is_reference]
    if not rest:
        raise LeftOut("no other implementation accepts")
    for pd in rest:
        yield contestant(library, pd)


def copying(nbytes: int, name: str) -> Repeat:
    """A copy by the device, on the CPU by dnncore's reorder.

    nbytes: the sum of the bytes read and written.

    Raises `ValueError` if the copy differs from its source.
    """
    device = engine(name)
    if device.is_host:
        return _copying_on_host(device, nbytes // 8)
    import pyopencl as cl

    stream = device.stream()
    size = nbytes // 2
    src, dst = (device.allocate(size) for _ in range(2))
    values = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    found = np.zeros_like(values)
    cl.enqueue_copy(stream.native, src, values)
    cl.enqueue_copy(stream.native, dst, src, byte_count=size)
    cl.enqueue_copy(stream.native, found, dst)
    if not np.array_equal(found, values):
        raise ValueError(f"{name}: a copy of {size} bytes differs")

    @timed
    def repeat(count: int) -> int:
        for _ in range(count):
            cl.enqueue_copy(stream.native, dst, src, byte_count=size)
        stream.wait()
        return count

    return repeat


def _copying_on_host(device: dnn.Engine, count: int) -> Repeat:
    """A copy of `count` numbers."""
    desc = dnn.MemoryDesc((max(1, count),), "f32")
    src, dst = (dnn.Memory(desc, device) for _ in range(2))
    src.fill(0.5)
    dst.fill(0.0)
    call = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), device).primitive()
    bound, stream = call.bind(src=src, dst=dst), device.stream()
    bound(stream)
    if not np.array_equal(src.numpy(), dst.numpy()):
        raise ValueError(f"{device.name}: a copy of {desc.nbytes} bytes differs")
    return one_by_one(lambda: bound(stream))


def kernels(problem: Problem, name: str) -> str | None:
    """A hash of an engine's kernels for a problem, their build options and their launches.

    None for engines without such kernels, and if no implementation accepts.
    """
    return _kernels(problem, Dnncore.of(problem, engine(name)))


def _kernels(problem: Problem, library: Dnncore) -> str | None:
    try:
        primitive = library.choose(problem.op, problem.attr).primitive()
    except dnn.DnnError:
        return None
    launches = getattr(primitive.executable, "launches", None)
    if launches is None:
        return None
    device = library.engine.device
    digest = hashlib.sha256(f"{device.name} {device.version}".encode())
    for launch in launches:
        how = launch.kernel, launch.args, launch.global_size, launch.local_size
        digest.update(f"{launch.source.text}{how}{' '.join(launch.source.options)}".encode())
    return digest.hexdigest()
