"""oneDNN through its C API, with dnncore's interface: a peer for benchmarks, an oracle for tests.

Both libraries use the same operation descriptors and memories:

    peer = Peer()
    conv = peer.primitive(op)                    # any operation in OPERATIONS; formats may be `any`
    conv.impl_name, conv.descs["weights"]        # "jit:avx512_core", the resolved format
    call = conv.bind(src=x, weights=w, dst=y)    # dnncore memories of the CPU engine
    call()
    backward = peer.primitive(backward_op, hint=conv)

Oldest to newest, the packages in `onednn_packages` have the same functions. The library reads
OMP_NUM_THREADS when it is loaded; the newest one counts the cores that the process may use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import dnncore as dnn
from benchmarks.contestants.onednn_library import (
    Dims,
    Handle,
    Layouts,
    Library,
    PeerError,
    Unsupported,
)
from benchmarks.contestants.onednn_packages import OPENMP, Package
from dnncore.ops.operation import Argument

Array = np.ndarray[Any, Any]

# Operation -> (x in dnnl_x_primitive_desc_create, its parameters between the new descriptor and the
# attributes). Parameters are fields of the operation, `engine`, `hint` and `count` of srcs.
WINDOW = "strides dilations padding_l padding_r"
POOLING = "strides kernel dilations padding_l padding_r"
NORM = "local_size alpha beta k"
# fmt: off
OPERATIONS = {
    dnn.Binary: ("binary", "engine algorithm src0 src1 dst"),
    dnn.ConvolutionForward: (
        "convolution_forward",
        f"engine prop_kind algorithm src weights bias dst {WINDOW}"),
    dnn.ConvolutionBackwardData: (
        "convolution_backward_data",
        f"engine algorithm diff_src weights diff_dst {WINDOW} hint"),
    dnn.ConvolutionBackwardWeights: (
        "convolution_backward_weights",
        f"engine algorithm src diff_weights diff_bias diff_dst {WINDOW} hint"),
    dnn.EltwiseForward: (
        "eltwise_forward", "engine prop_kind algorithm src dst alpha beta"),
    dnn.EltwiseBackward: (
        "eltwise_backward", "engine algorithm diff_src diff_dst kept alpha beta hint"),
    dnn.InnerProductForward: (
        "inner_product_forward", "engine prop_kind src weights bias dst"),
    dnn.InnerProductBackwardData: (
        "inner_product_backward_data", "engine diff_src weights diff_dst hint"),
    dnn.InnerProductBackwardWeights: (
        "inner_product_backward_weights",
        "engine src diff_weights diff_bias diff_dst hint"),
    dnn.LRNForward: ("lrn_forward", f"engine prop_kind algorithm src dst {NORM}"),
    dnn.LRNBackward: ("lrn_backward", f"engine algorithm diff_src diff_dst src {NORM} hint"),
    dnn.MatMul: ("matmul", "engine src weights bias dst"),
    dnn.PoolingForward: (
        "pooling_forward", f"engine prop_kind algorithm src dst {POOLING}"),
    dnn.PoolingBackward: (
        "pooling_backward", f"engine algorithm diff_src diff_dst {POOLING} hint"),
    dnn.Reduction: ("reduction", "engine algorithm src dst p eps"),
    dnn.Reorder: ("reorder", "src engine dst engine"),
    dnn.SoftmaxForward: ("softmax_forward", "engine prop_kind algorithm src dst axis"),
    dnn.SoftmaxBackward: (
        "softmax_backward", "engine algorithm diff_src diff_dst dst axis hint"),
    dnn.Sum: ("sum", "engine dst count scales srcs"),
}
# fmt: on
INTEGERS = {"axis": ctypes.c_int, "local_size": ctypes.c_int64}  # other numbers are floats

# Enumerators of dnnl_types.h: arguments of an execution, and others without a function for names.
ARGUMENTS = {
    "src": 1, "src0": 1, "src1": 2, "src2": 3, "dst": 17, "weights": 33, "bias": 41,
    "diff_src": 129, "diff_dst": 145, "diff_weights": 161, "diff_bias": 169,
    "workspace": 64, "scratchpad": 80,
}  # fmt: skip
MULTIPLE_SRC = 1024  # + i: src{i} of a sum
MOST_LOOPS = 12  # of oneDNN's copies. With more, oneDNN 3.2 writes past an array and aborts.
POST_OP = 32768  # * (i + 1) + the enumerator of src1 or weights: the operand of step i
IMPL_INFO, EXEC_ARG = 8, 255
CPU, IN_ORDER = 1, 1


class Peer:
    """oneDNN on the CPU. Raises `ModuleNotFoundError` if its package is not installed."""

    def __init__(self, package: Package = OPENMP) -> None:
        self.library = Library(package)
        self.layouts = Layouts(self.library)
        self.engine, self.stream = Handle(), Handle()
        self.library("engine_create", ctypes.byref(self.engine), CPU, ctypes.c_size_t(0))
        self.library("stream_create", ctypes.byref(self.stream), self.engine, IN_ORDER)

    def primitive(
        self,
        op: dnn.Operation,
        hint: PeerPrimitive | None = None,
        attr: dnn.Attributes | None = None,
    ) -> PeerPrimitive:
        """oneDNN's first implementation of `op`. Raises `Unsupported` if there is none.

        hint: the forward primitive of a backward operation. By default it is made from `op`.
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

        oneDNN's workspaces are private, so none is returned. For a gradient with src, the forward
        operation makes the workspace. Without src, as in pooling, it comes from the inputs.
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
        """Run on the memories `made` and on new memories with the inputs."""
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
        if type(op) not in OPERATIONS:
            raise Unsupported(f"{op.KIND} is not in the table of oneDNN's operations")
        self.peer, self.op, self.hint = peer, op, hint
        stem, parameters = OPERATIONS[type(op)]
        _check_loops(op)
        values = [self._parameter(stem, name) for name in parameters.split()]
        attributes, owner = _attributes(peer, attr)
        made = peer.library.made
        self.pd, self._pd_owner = made(
            f"{stem}_primitive_desc_create", "primitive_desc_destroy", *values, attributes
        )
        del owner  # the descriptor has copied the attributes
        self.handle, self._owner = made("primitive_create", "primitive_destroy", self.pd)
        self._numbers = dict(_arguments(op, attr))
        operands = dict(attr.operands())
        found = {name: operands.get(name) or self._desc(name) for name in self._numbers}
        self.descs = {name: desc for name, desc in found.items() if desc is not None}

    @property
    def impl_name(self) -> str:
        """oneDNN's name of the implementation."""
        text = ctypes.c_char_p()
        self.peer.library("primitive_desc_query", self.pd, IMPL_INFO, 0, ctypes.byref(text))
        return (text.value or b"").decode()

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
        """The object itself, which is built already."""
        return self

    def bind(self, **memories: dnn.Memory) -> PeerCall:
        """Fix the arguments. A call of the result executes and waits for the end."""
        if memories.keys() != self.descs.keys():
            names = ", ".join(self.descs), ", ".join(memories)
            raise TypeError("{} takes {}; got {}".format(self.op.KIND, *names))
        pairs, owners = (_ExecArg * len(memories))(), []
        for pair, (name, memory) in zip(pairs, memories.items(), strict=True):
            pair.number = self._numbers[name]
            pair.memory, owner = self._memory(name, memory)
            owners += [memory, owner]
        return PeerCall(self, pairs, owners)

    def _memory(self, name: str, memory: dnn.Memory) -> tuple[Handle, object]:
        """oneDNN's memory object on the same bytes, and its owner."""
        desc, start = memory.desc, memory.address
        if desc.is_plain:
            start += desc.offset0 * desc.itemsize
            desc = desc.with_offset0(0)
        if desc != self.descs[name]:
            raise TypeError(f"{name} must be {self.descs[name]}; got {memory.desc}")
        where = self.peer.layouts.md(desc), self.peer.engine, Handle(start)
        return self.peer.library.made("memory_create", "memory_destroy", *where)

    def _desc(self, name: str) -> dnn.MemoryDesc | None:
        query = self.peer.library.functions.dnnl_primitive_desc_query_md
        return self.peer.layouts.desc(query(self.pd, EXEC_ARG, self._numbers[name]))

    def _parameter(self, stem: str, name: str) -> Any:
        """One argument of the function that makes the primitive descriptor."""
        value = getattr(self.op, name, None)
        number = self.peer.library.number
        if name == "algorithm":
            return number("alg_kind", f"{stem.partition('_')[0]}_{value}")
        if name == "prop_kind":
            return number("prop_kind", value)
        if name == "engine":
            return self.peer.engine
        if name == "hint":
            return self.hint.pd if self.hint else None
        if name == "count":
            return len(self.op.srcs)
        if name == "scales":
            return (ctypes.c_float * len(value))(*value)
        if name == "srcs":
            return (Handle * len(value))(*map(self.peer.layouts.md, value))
        if isinstance(value, tuple):
            return Dims(*value)
        if value is None or isinstance(value, dnn.MemoryDesc):
            return self.peer.layouts.md(value)
        return INTEGERS.get(name, ctypes.c_float)(value)


class PeerCall:
    """A primitive with fixed arguments. It keeps its memories alive."""

    def __init__(self, primitive: PeerPrimitive, pairs: Any, owners: list[object]) -> None:
        self.primitive, self.pairs, self.owners = primitive, pairs, owners
        library = primitive.peer.library
        self._execute = library.functions.dnnl_primitive_execute
        self._wait = library.functions.dnnl_stream_wait
        self._arguments = primitive.handle, primitive.peer.stream, len(pairs), pairs

    def __call__(self, stream: object = None) -> None:
        """Execute on oneDNN's own stream. `stream` is ignored."""
        if self._execute(*self._arguments) or self._wait(self._arguments[1]):
            library, op = self.primitive.peer.library, self.primitive.op
            raise PeerError(f"oneDNN {library.version}: {op.KIND} failed")


class _ExecArg(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", Handle))


def _arguments(op: dnn.Operation, attr: dnn.Attributes) -> Iterator[tuple[str, int]]:
    """The names and enumerators of the possible arguments of an execution."""
    for i, argument in enumerate(op.ARGUMENTS):
        of_sum = isinstance(op, dnn.Sum) and argument.direction == "in"
        yield argument.name, MULTIPLE_SRC + i if of_sum else ARGUMENTS[argument.name]
    for i, post_op in enumerate(attr.post_ops):
        for name, _ in post_op.operands:
            number = ARGUMENTS["weights" if name == "weights" else "src1"]
            yield f"post_op_{i}_{name}", POST_OP * (i + 1) + number
    yield "scratchpad", ARGUMENTS["scratchpad"]


def _check_loops(op: dnn.Operation) -> None:
    """Raise `Unsupported` for copies of more dims and blocks than oneDNN has loops for."""
    if not isinstance(op, dnn.Reorder | dnn.Sum):
        return
    for _, desc in op.tensors():
        loops = desc.ndims + len(desc.inner_blocks)
        if loops > MOST_LOOPS:
            raise Unsupported(f"oneDNN copies with {MOST_LOOPS} loops; {desc} needs {loops}")


def _attributes(peer: Peer, attr: dnn.Attributes) -> tuple[Handle, object]:
    """The attributes for oneDNN, and their owner."""
    if attr.deterministic:
        raise Unsupported(f"oneDNN {peer.library.version} has no attribute deterministic")
    call, number = peer.library, peer.library.number
    handle, owner = call.made("primitive_attr_create", "primitive_attr_destroy")
    mode = number("scratchpad_mode", attr.scratchpad)
    call("primitive_attr_set_scratchpad_mode", handle, mode)
    call("primitive_attr_set_fpmath_mode", handle, number("fpmath_mode", attr.fpmath))
    chain, chain_owner = call.made("post_ops_create", "post_ops_destroy")
    for post_op in attr.post_ops:
        _append(peer, chain, post_op)
    call("primitive_attr_set_post_ops", handle, chain)
    del chain_owner  # the attributes have copied the chain
    return handle, owner


def _append(peer: Peer, chain: Handle, post_op: dnn.PostOp) -> None:
    """Append one step to a chain."""
    number = peer.library.number
    numbers = [ctypes.c_float(value) for value in (post_op.alpha, post_op.beta, post_op.scale)]
    if post_op.kind == "eltwise":
        parameters = number("alg_kind", f"eltwise_{post_op.algorithm}"), *numbers[:2]
    elif post_op.kind == "binary":
        algorithm = number("alg_kind", f"binary_{post_op.algorithm}")
        parameters = algorithm, peer.layouts.md(post_op.src)
    elif post_op.kind == "prelu":
        mask = sum(1 << i for i, size in enumerate(post_op.weights.dims) if size > 1)
        parameters = (mask,)
    else:
        parameters = numbers[2], 0, number("dt", "undef")  # zero point 0, dst's own type
    peer.library(f"post_ops_append_{post_op.kind}", chain, *parameters)
