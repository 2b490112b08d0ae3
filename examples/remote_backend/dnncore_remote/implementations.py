"""The implementations of the device: tensors in plain formats, without post-ops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from dnncore import backend
from dnncore_remote.device import BINARY, FORWARD, View


class Kernel(backend.Executable):
    """A kernel of the device with its parameters."""

    def __init__(self, name: str, parameters: tuple[Any, ...]) -> None:
        self.name = name
        self.parameters = parameters

    def bind(self, memories: Sequence[backend.Memory], scratchpad: Any) -> backend.Run:
        """Return a run. Its commands keep the memories alive until they end."""
        views = [_view(memory) for memory in memories]

        def work() -> tuple[float, float]:
            engine: Any = memories[-1].engine
            request = engine.request("run", self.name, self.parameters, views)
            times: tuple[float, float] = request[1]
            return times

        def run(stream: Any, wait_for: Sequence[backend.Event] = ()) -> backend.Event:
            event: backend.Event = stream.submit(work, wait_for)
            return event

        return run


def _view(memory: backend.Memory) -> View:
    desc, size = memory.desc, memory.desc.itemsize
    dtype = "f4" if desc.data_type == "f32" else f"V{size}"  # other types are only copied
    strides = tuple(stride * size for stride in desc.strides)
    return memory.buffer.number, desc.dims, dtype, desc.offset0 * size, strides


KERNELS: dict[type, tuple[str, tuple[str, ...], Collection[str]]] = {
    backend.EltwiseForward: ("forward", ("algorithm", "alpha", "beta"), FORWARD),
    backend.EltwiseBackward: ("backward", ("algorithm", "alpha", "beta"), FORWARD),
    backend.Binary: ("binary", ("algorithm",), BINARY),
    backend.MatMul: ("matmul", (), ()),
    backend.Reorder: ("copy", (), ()),
}
"""For each operation: the kernel, the fields that are its parameters, and the known algorithms."""


class Numpy(backend.Implementation[Any]):
    """The kernels of the device, which computes with numpy."""

    name = "remote:numpy"

    def __init__(self, data_types: Collection[str] = ("f32",)) -> None:
        self.data_types = data_types

    def accept(self, op: Any, attr: Any, engine: Any, hint: Any) -> Any:
        """Accept the operations of the kernels. A format `any` becomes row-major."""
        if attr.post_ops:
            return backend.Refused("attribute", f"no post-ops; got {attr.post_ops[0].kind}")
        op = op.resolve_any(**{a.name: "abcdefghijkl"[: d.ndims] for a, d in op.tensors()})
        for argument, desc in op.tensors():
            if not desc.is_plain:
                return backend.Refused("format", f"only plain; got {argument.name} of {desc}")
        kernel, fields, algorithms = KERNELS[type(op)]
        if algorithms and op.algorithm not in algorithms:
            return backend.Refused("algorithm", f"{', '.join(algorithms)}; got {op.algorithm}")
        if kernel == "copy" and op.src.data_type != op.dst.data_type:
            return backend.Refused("type", f"only {op.src.data_type}; got {op.dst.data_type}")
        parameters = tuple(getattr(op, field) for field in fields)
        return backend.Accepted(op, partial(Kernel, kernel, parameters), efficiency=0.1)


TABLE = [Numpy()]
COPIES = [Numpy(("f32", "f64", "f16", "bf16"))]
