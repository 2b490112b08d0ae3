"""oneDNN with dnncore's interface: a peer for benchmarks, an oracle for tests.

Both libraries use the same operation descriptors and memories:

    peer = Peer()
    conv = peer.primitive(op)                    # any operation; formats may be `any`
    conv.impl_name, conv.descs["weights"]        # "jit:avx512_core", the resolved format
    call = conv.bind(src=x, weights=w, dst=y)    # dnncore memories of the CPU engine
    call()
    backward = peer.primitive(backward_op, hint=conv)

The modules of `examples/third_party_backend` call oneDNN's C functions. That backend refuses
problems for which oneDNN's results differ from dnncore's definition. This peer computes them. The
library reads OMP_NUM_THREADS when it is loaded. The newest oneDNN instead counts the cores that the
process may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dnncore_onednn.call import Call, new_stream
from dnncore_onednn.description import Description
from dnncore_onednn.layouts import Layouts
from dnncore_onednn.library import OneDnnError, Unsupported, load
from dnncore_onednn.operations import OPERATIONS

import dnncore as dnn
from benchmarks.contestants.onednn_packages import OPENMP, Package
from dnncore.ops.operation import Argument

__all__ = ["OPERATIONS", "OneDnnError", "Peer", "PeerCall", "PeerPrimitive", "Unsupported", "load"]

Array = np.ndarray[Any, Any]


class Peer:
    """oneDNN on the CPU. Raises `ModuleNotFoundError` if its package is not installed."""

    def __init__(self, package: Package = OPENMP) -> None:
        self.layouts = Layouts(load(package.library))
        self.stream = new_stream(self.layouts.library)

    def primitive(
        self,
        op: dnn.Operation,
        hint: PeerPrimitive | None = None,
        attr: dnn.Attributes | None = None,
    ) -> PeerPrimitive:
        """oneDNN's first implementation of `op`. Raises `Unsupported` if oneDNN has none.

        hint: the forward primitive of a backward operation; by default made from `op`.
        """
        if hint is None and op.forward_op is not None:
            hint = self.primitive(op.forward_op)
        return PeerPrimitive(self, op, hint, attr or dnn.Attributes())

    def memory(self, desc: dnn.MemoryDesc, array: Array | None = None) -> dnn.Memory:
        """A memory of the CPU engine with the values of `array`, in any format."""
        memory = dnn.Memory(desc, dnn.engine("cpu"))
        if array is not None and desc.format_kind == "blocked":
            desc.pack(np.asarray(array, desc.dtype), memory.buffer)
        elif array is not None:
            values = np.array(array, desc.dtype)
            self.reorder(dnn.Memory.from_numpy(values, engine=memory.engine), memory)
        return memory

    def reorder(self, src: dnn.Memory, dst: dnn.Memory) -> None:
        """Copy between any two formats, including opaque ones."""
        op = dnn.Reorder(src=src.desc, dst=dst.desc)
        self.primitive(op).bind(src=src, dst=dst)()

    def outputs(
        self, op: dnn.Operation, attr: dnn.Attributes, inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Execute once. Inputs and outputs are arrays with logical dims, by argument name.

        oneDNN's workspaces are private, so the outputs contain no workspace. If a gradient has src,
        the forward operation computes its workspace. Otherwise, as in pooling, the inputs contain
        the workspace.
        """
        primitive = self.primitive(op, attr=attr)
        made = {}
        if primitive.hint and "workspace" in primitive.descs and "src" in inputs:
            forward = self._execute(primitive.hint, {"src": inputs["src"]}, {})
            made["workspace"] = forward["workspace"]
        memories = self._execute(primitive, inputs, made)
        names = [a.name for a, _ in op.tensors() if a.direction == "out"]
        return {name: self.values(memories[name]) for name in names}

    def _execute(
        self, primitive: PeerPrimitive, inputs: Mapping[str, Array], made: dict[str, dnn.Memory]
    ) -> dict[str, dnn.Memory]:
        """Execute on the memories `made` and on new memories for the other inputs."""
        rest = {n: desc for n, desc in primitive.descs.items() if n not in made}
        memories = made | {n: self.memory(desc, inputs.get(n)) for n, desc in rest.items()}
        primitive.bind(**memories)()
        return memories

    def values(self, memory: dnn.Memory) -> Array:
        """The values of a memory, with logical dims."""
        if memory.desc.format_kind == "blocked":
            return np.array(memory.numpy())
        plain = self.memory(memory.desc.with_format(None))
        self.reorder(memory, plain)
        return plain.numpy()


class PeerPrimitive:
    """One implementation of one operation, with the interface of `dnn.PrimitiveDesc`.

    descs: the descriptor of every argument by name, including `workspace` and, with a user's
        scratchpad, `scratchpad`.
    hint: the forward primitive of a backward one.
    """

    def __init__(
        self, peer: Peer, op: dnn.Operation, hint: PeerPrimitive | None, attr: dnn.Attributes
    ) -> None:
        self.peer, self.op, self.hint = peer, op, hint
        self.description = Description(peer.layouts, op, attr, hint and hint.description)
        self.impl_name = self.description.impl_name
        self.handle = self.description.built()
        self.descs = self.description.descs
        if self.description.scratchpad_bytes:
            self.descs["scratchpad"] = dnn.MemoryDesc((self.description.scratchpad_bytes,), "u8")

    @property
    def arguments(self) -> list[tuple[Argument, dnn.MemoryDesc]]:
        """Every argument with its descriptor."""
        written = {a.name for a in self.op.ARGUMENTS if a.direction == "out"} | {"scratchpad"}
        rows = self.descs.items()
        return [(Argument(n, "out" if n in written else "in"), desc) for n, desc in rows]

    def needs_reorder(self, memory: dnn.Memory, argument: str) -> bool:
        """Whether `memory` must be reordered before it can be passed as `argument`."""
        return memory.desc != self.descs[argument]

    def primitive(self) -> PeerPrimitive:
        """Return this object, which is already built."""
        return self

    def bind(self, **memories: dnn.Memory) -> PeerCall:
        """Fix the arguments. A call of the result executes and waits for the end."""
        if memories.keys() != self.descs.keys():
            names = ", ".join(self.descs), ", ".join(memories)
            raise TypeError("{} takes {}; got {}".format(self.op.KIND, *names))
        rows = []
        for name, memory in memories.items():
            desc, start = memory.desc, memory.address
            if desc.is_plain:
                start += desc.offset0 * desc.itemsize
                desc = desc.with_offset0(0)
            if desc != self.descs[name]:
                raise TypeError(f"{name} must be {self.descs[name]}; got {memory.desc}")
            number, md = self.description.argument(name)
            rows.append((number, md, start))
        call = Call(self.peer.layouts.library, self.handle, rows)
        return PeerCall(self, call, list(memories.values()))


class PeerCall:
    """A primitive with fixed arguments. It keeps its memories alive."""

    def __init__(self, primitive: PeerPrimitive, call: Call, memories: list[dnn.Memory]) -> None:
        self.primitive, self.memories = primitive, memories
        self._call, self._stream = call, primitive.peer.stream.handle

    def __call__(self, stream: object = None) -> None:
        """Execute on oneDNN's own stream. `stream` is ignored."""
        if self._call.execute(self._stream):
            version = self.primitive.peer.layouts.library.version
            raise OneDnnError(f"oneDNN {version}: {self.primitive.op.KIND} failed")
