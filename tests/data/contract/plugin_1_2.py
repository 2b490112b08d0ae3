"""A plugin as it was written for version 1.2 of the contract. It is never changed.

Its device has memory of its own. It computes relu by way of the scratchpad, and reorders between
equal formats. In its own format, elements are in reverse order. Commands in one stream go on after
a failure, and a lost device can be opened again. A knob decides whether relu uses the scratchpad.
A sum of one source is composed of two reorders.
"""

import time
from functools import partial

import numpy as np

from dnncore.backend import (
    Accepted,
    Attributes,
    Backend,
    CannotCompose,
    Composition,
    Device,
    EltwiseForward,
    Engine,
    Executable,
    ExecutionError,
    Implementation,
    Knob,
    MemoryDesc,
    Peaks,
    Refused,
    Reorder,
    Stream,
    Sum,
    TimedEvent,
    check_size,
    hookimpl,
)


@hookimpl
def dnncore_backends():
    return Backend(
        "old_1_2",
        "1.2",
        engines={"old_1_2": f"{__name__}:OldEngine"},
        implementations={
            ("old_1_2", EltwiseForward): f"{__name__}:RELU",
            ("old_1_2", Reorder): f"{__name__}:COPY",
            ("old_1_2", Sum): f"{__name__}:SUM",
        },
    )


class OldBuffer:
    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes, np.uint8)


class OldEngine(Engine):
    kind = "old_1_2"
    buffer_kind = "an OldBuffer"

    @classmethod
    def devices(cls):
        return [Device("old device", "nobody", "1", {"threads": 1}, "accelerator")]

    @property
    def peaks(self):
        return Peaks({"f32": 1e9}, bandwidth=1e9, launch=1e-6)

    def allocate(self, nbytes):
        check_size(self.name, nbytes)
        if self.is_lost:
            raise ExecutionError(f"{self.name}: the device is lost; open it again")
        return OldBuffer(nbytes)

    def free(self, buffer):
        buffer.bytes = None

    def owns(self, buffer, nbytes):
        return isinstance(buffer, OldBuffer) and buffer.bytes.size >= nbytes

    def copy_in(self, stream, host, buffer, wait_for=()):
        return stream.run(partial(np.copyto, buffer.bytes[: host.size], host), wait_for)

    def copy_out(self, stream, buffer, host, wait_for=()):
        return stream.run(partial(np.copyto, host, buffer.bytes[: host.size]), wait_for)

    def stream(self, order="in", *, profiling=False):
        return OldStream(self, order, profiling=profiling)


class OldStream(Stream):
    lag = 0.0

    def run(self, work, wait_for):
        for event in wait_for:
            event.wait()
        time.sleep(self.lag)
        start = time.perf_counter()
        work()
        times = (start, time.perf_counter()) if self.profiling else (None, None)
        return TimedEvent(*times)


class OldExecutable(Executable):
    def __init__(self, function):
        self.function = function

    def bind(self, memories, scratchpad):
        src, dst = memories

        def work():
            values = _load(src)
            if scratchpad is not None:
                room = scratchpad.bytes[: values.nbytes].view(values.dtype)
                room[:] = values.reshape(-1)
                values = room.reshape(values.shape)
            _store(self.function(values), dst)

        return lambda stream, wait_for=(): stream.run(work, wait_for)


def _reversed(desc):
    """The descriptor of the backend's own format."""
    size = int(np.prod(desc.dims)) * desc.itemsize
    return MemoryDesc(desc.dims, desc.data_type, "old_1_2:reversed", nbytes=size)


def _load(memory):
    desc, raw = memory.desc, memory.buffer.bytes
    if desc.format_kind != "opaque":
        return desc.unpack(raw)
    return raw[: desc.nbytes].view(desc.dtype)[::-1].reshape(desc.dims)


def _store(values, memory):
    desc, raw = memory.desc, memory.buffer.bytes
    if desc.format_kind != "opaque":
        desc.pack(values, raw)
    else:
        raw[: desc.nbytes].view(desc.dtype)[::-1] = values.reshape(-1)


class Relu(Implementation):
    name = "old_1_2:relu"

    def accept(self, op, attr, engine, hint):
        if op.algorithm != "relu" or op.alpha or attr.post_ops:
            return Refused("algorithm", f"computes relu without post-ops; got {op.algorithm}")
        return self.accepted(op.resolve_any(dst=_reversed(op.dst)), room="scratchpad")

    def accepted(self, op, room):
        size = int(np.prod(op.src.dims)) * op.src.itemsize
        return Accepted(
            op,
            partial(OldExecutable, partial(np.maximum, 0)),
            efficiency=0.5,
            scratchpad_bytes=size if room == "scratchpad" else 0,
            notes=("copies",),
            detail="old relu",
            knobs=[Knob("room", "scratchpad", ("scratchpad", "none"), "where values are copied")],
            tune=lambda values: self.accepted(op, **values),
        )


class Copy(Implementation):
    name = "old_1_2:copy"

    def accept(self, op, attr, engine, hint):
        if attr.post_ops:
            return Refused("attribute", "computes no post-ops")
        if op.src.data_type != op.dst.data_type:
            return Refused("type", f"converts no types; got {op.dst.data_type}")
        kinds = {op.src.format_kind, op.dst.format_kind}
        if op.src != op.dst and "opaque" not in kinds:
            return Refused("format", f"copies equal formats; got {op.dst}")
        return Accepted(op.resolve_any(dst=op.src), partial(OldExecutable, np.array), seconds=1e-6)


RELU = [Relu()]
COPY = [Copy()]


class OneSource(Composition):
    STEM = "one_source"

    def compose(self, op, attr, steps):
        if tuple(op.scales) != (1.0,):
            raise CannotCompose(Refused("algorithm", "takes one source with a factor of 1"))
        op = op.resolve_any(dst=op.srcs[0])
        room = steps.room(op.dst)
        steps.add(Reorder(src=op.srcs[0], dst=room.desc), Attributes(), src="src0", dst=room)
        steps.add(Reorder(src=room.desc, dst=op.dst), attr, src=room, dst="dst")
        return op


SUM = (OneSource("old_1_2"),)
