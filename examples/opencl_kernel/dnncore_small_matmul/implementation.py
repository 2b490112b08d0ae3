"""The implementation: which problems it accepts, and how its kernel is built and launched."""

import functools
import math
from importlib.resources import files

import numpy as np
import pyopencl as cl

from dnncore.backend import (
    Accepted,
    Executable,
    Implementation,
    Knob,
    MemoryDesc,
    Refused,
    uninterrupted,
)

MOST = 8  # rows and columns; larger matrices need tiles
EFFICIENCY = 0.55  # measured on PoCL: the kernel waits for memory; see measure.py
GROUP = 64  # work-items of a work-group, if the tuning table has no entry
GROUPS = (8, 16, 32, 64, 128, 256)  # values of the knob
SOURCE = files(__package__).joinpath("small_matmul.cl").read_text(encoding="utf-8")


def refusal(op, attr):
    """Return the reason why the kernel cannot compute the problem, or None."""
    sizes = (*op.src.dims[-2:], op.weights.dims[-1])
    batches = op.src.dims[:-2]
    if attr.post_ops or op.bias is not None:
        return Refused("attribute", "computes neither post-ops nor bias")
    if not batches or batches != op.weights.dims[:-2]:
        return Refused("shape", "takes batches of as many src as weights matrices")
    if not all(1 <= size <= MOST for size in sizes) or not math.prod(batches):
        return Refused("shape", f"takes matrices of 1 to {MOST} rows and columns; got {sizes}")
    for argument, desc in op.tensors():
        if desc.with_offset0(0) != MemoryDesc(desc.dims):
            return Refused("format", f"takes dense rows; got {argument.name} of {desc}")
    return None


def work_group(engine, op):
    """Return the number of work-items of a work-group, as a knob."""
    m, k, n = *op.src.dims[-2:], op.weights.dims[-1]
    entry = engine.tuning_table("small_matmul", __package__).get(f"m{m}n{n}k{k}", {})
    most = engine.device.limits["max_work_group"]
    best = min(entry.get("group", GROUP), most)
    sizes = sorted({best, *(size for size in GROUPS if size <= most)})
    return Knob("group", best, sizes, "work-items of a work-group")


class SmallMatMul(Implementation):
    """One work-item multiplies two matrices."""

    name = "small_matmul:direct"

    def accept(self, op, attr, engine, hint):
        """Accept batches of small matrices in dense row-major order."""
        op = op.resolve_any(**{a.name: MemoryDesc(d.dims) for a, d in op.tensors() if d.is_any})
        return refusal(op, attr) or self.accepted(op, engine, work_group(engine, op))

    def accepted(self, op, engine, knob, group=None):
        """Accept with a size of work-groups, by default that of the knob."""
        return Accepted(
            op,
            functools.partial(Products, op, engine, group or knob.default),
            efficiency=EFFICIENCY,
            notes=("compiles",),
            knobs=(knob,),
            tune=lambda values: self.accepted(op, engine, knob, **values),
        )


class Products(Executable):
    """The kernel, built for the sizes of a problem's matrices."""

    def __init__(self, op, engine, group):
        m, k, n = *op.src.dims[-2:], op.weights.dims[-1]
        self.count = math.prod(op.dst.dims[:-2])
        self.local_size = (group,)
        self.global_size = (math.ceil(self.count / group) * group,)
        self.program = engine.program(SOURCE, (f"-DM={m}", f"-DK={k}", f"-DN={n}"))

    def bind(self, memories, scratchpad):
        """Give the call a kernel object of its own, which holds the arguments."""
        kernel = uninterrupted(cl.Kernel, self.program, "small_matmul")
        starts = [np.int64(memory.desc.offset0) for memory in memories]
        buffers = [memory.buffer for memory in memories]
        for place, argument in enumerate((*buffers, *starts, np.int64(self.count))):
            kernel.set_arg(place, argument)
        return Call(kernel, self.global_size, self.local_size, memories)


class Call:
    """A bound call. It keeps its memories alive, because a kernel object does not."""

    def __init__(self, kernel, global_size, local_size, memories):
        self.launch = kernel, global_size, local_size
        self.memories = memories

    def __call__(self, stream, wait_for=()):
        """Queue the kernel behind the events; returns the event of the launch."""

        def enqueue(events):
            return cl.enqueue_nd_range_kernel(stream.native, *self.launch, wait_for=events)

        return stream.submit(enqueue, wait_for, "cannot launch small_matmul")


TABLE = [SmallMatMul()]
