"""Operations and attributes as arguments of oneDNN's functions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from dnncore import backend
from dnncore.backend import Attributes, MemoryDesc, Operation, PostOp
from dnncore_onednn.cells import direction, hidden, recurrent, set_qparams
from dnncore_onednn.layouts import Layouts
from dnncore_onednn.library import Dims, Handle, Owned, Unsupported
from dnncore_onednn.quantization import number_of, quantization_numbers, set_quantization

__all__ = ["PRODUCTS", "SCRATCHPAD", "argument_numbers", "attributes", "creation"]

# Operation -> (x in dnnl_x_primitive_desc_create, its parameters between the new descriptor and the
# attributes). Parameters are fields of the operation, `engine`, `hint` and others in `_parameter`.
WINDOW = "strides dilations padding_l padding_r"
POOLING = "strides kernel dilations padding_l padding_r"
NORM = "local_size alpha beta k"
# fmt: off
OPERATIONS: dict[type[Operation], tuple[str, str]] = {
    backend.BatchNormalizationForward: (
        "batch_normalization_forward", "engine prop_kind src dst epsilon flags"),
    backend.BatchNormalizationBackward: (
        "batch_normalization_backward",
        "engine gradients diff_src diff_dst src epsilon flags hint"),
    backend.Binary: ("binary", "engine algorithm src0 src1 dst"),
    backend.Concat: ("concat", "engine dst count axis srcs"),
    backend.ConvolutionForward: (
        "convolution_forward",
        f"engine prop_kind algorithm src weights bias dst {WINDOW}"),
    backend.ConvolutionBackwardData: (
        "convolution_backward_data",
        f"engine algorithm diff_src weights diff_dst {WINDOW} hint"),
    backend.ConvolutionBackwardWeights: (
        "convolution_backward_weights",
        f"engine algorithm src diff_weights diff_bias diff_dst {WINDOW} hint"),
    backend.DeconvolutionForward: (
        "deconvolution_forward",
        f"engine prop_kind algorithm src weights bias dst {WINDOW}"),
    backend.DeconvolutionBackwardData: (
        "deconvolution_backward_data",
        f"engine algorithm diff_src weights diff_dst {WINDOW} hint"),
    backend.DeconvolutionBackwardWeights: (
        "deconvolution_backward_weights",
        f"engine algorithm src diff_weights diff_bias diff_dst {WINDOW} hint"),
    backend.EltwiseForward: (
        "eltwise_forward", "engine prop_kind algorithm src dst alpha beta"),
    backend.EltwiseBackward: (
        "eltwise_backward", "engine algorithm diff_src diff_dst kept alpha beta hint"),
    backend.GroupNormalizationForward: (
        "group_normalization_forward", "engine prop_kind src dst groups epsilon flags"),
    backend.GroupNormalizationBackward: (
        "group_normalization_backward",
        "engine gradients diff_src diff_dst src groups epsilon flags hint"),
    backend.InnerProductForward: (
        "inner_product_forward", "engine prop_kind src weights bias dst"),
    backend.InnerProductBackwardData: (
        "inner_product_backward_data", "engine diff_src weights diff_dst hint"),
    backend.InnerProductBackwardWeights: (
        "inner_product_backward_weights",
        "engine src diff_weights diff_bias diff_dst hint"),
    backend.LayerNormalizationForward: (
        "layer_normalization_forward", "engine prop_kind src dst statistics epsilon flags"),
    backend.LayerNormalizationBackward: (
        "layer_normalization_backward",
        "engine gradients diff_src diff_dst src statistics epsilon flags hint"),
    backend.LRNForward: ("lrn_forward", f"engine prop_kind algorithm src dst {NORM}"),
    backend.LRNBackward: ("lrn_backward", f"engine algorithm diff_src diff_dst src {NORM} hint"),
    backend.MatMul: ("matmul", "engine src weights bias dst"),
    backend.PoolingForward: (
        "pooling_forward", f"engine prop_kind algorithm src dst {POOLING}"),
    backend.PoolingBackward: (
        "pooling_backward", f"engine algorithm diff_src diff_dst {POOLING} hint"),
    backend.PReLUForward: ("prelu_forward", "engine prop_kind src weights dst"),
    backend.PReLUBackward: (
        "prelu_backward", "engine src weights diff_src diff_weights diff_dst hint"),
    backend.Reduction: ("reduction", "engine algorithm src dst p eps"),
    backend.Reorder: ("reorder", "src engine dst engine"),
    backend.ResamplingForward: (
        "resampling_forward", "engine prop_kind algorithm factors src dst"),
    backend.ResamplingBackward: (
        "resampling_backward", "engine algorithm factors diff_src diff_dst hint"),
    backend.ShuffleForward: ("shuffle_forward", "engine prop_kind src dst axis group_size"),
    backend.ShuffleBackward: (
        "shuffle_backward", "engine diff_src diff_dst axis group_size hint"),
    backend.SoftmaxForward: ("softmax_forward", "engine prop_kind algorithm src dst axis"),
    backend.SoftmaxBackward: (
        "softmax_backward", "engine algorithm diff_src diff_dst dst axis hint"),
    backend.Sum: ("sum", "engine dst count scales srcs"),
}
# fmt: on
PRODUCTS = (
    backend.ConvolutionForward,
    backend.ConvolutionBackwardData,
    backend.ConvolutionBackwardWeights,
    backend.DeconvolutionForward,
    backend.DeconvolutionBackwardData,
    backend.DeconvolutionBackwardWeights,
    backend.InnerProductForward,
    backend.InnerProductBackwardData,
    backend.InnerProductBackwardWeights,
    backend.MatMul,
)  # fmt: skip
INTEGERS = {
    "axis": ctypes.c_int,
    "local_size": ctypes.c_int64,
    "group_size": ctypes.c_int64,
    "groups": ctypes.c_int64,
}  # other numbers are floats
FLOATS = ("f32", "f16", "bf16")
APPLY_TO_INTEGERS = 1  # convert integer weights to a floating-point type
FPMATH = {"ieee": "strict"}  # dnncore's name -> oneDNN's, if they differ

OVERWRITE = 1  # a gradient of cells replaces the old values of weights' gradients
SCRATCHPAD = 80  # the enumerator of this argument, as in dnnl_types.h
MOST_LOOPS = 12  # in oneDNN's reorders. With more, oneDNN 3.2 writes past an array and aborts.
POST_OP = 32768  # operand of step i: POST_OP * (i + 1) + the enumerator of src1 or weights


def creation(layouts: Layouts, op: Operation, hint: object) -> tuple[str, list[Any]]:
    """The function dnnl_... that makes the primitive descriptor, and its parameters.

    hint: oneDNN's primitive descriptor of the forward operation. Raises `Unsupported`.
    """
    if type(op) not in (*OPERATIONS, backend.RNNForward, backend.RNNBackward):
        raise Unsupported(f"{op.KIND} is not in the table of oneDNN's operations")
    _check_loops(op)
    stem, names = OPERATIONS.get(type(op)) or recurrent(op)
    if not layouts.library.has(f"{stem}_primitive_desc_create"):
        raise Unsupported(f"oneDNN {layouts.library.version} has no {op.KIND}")
    known = {"engine": layouts.library.engine, "hint": hint, "factors": None}
    values = [
        known[name] if name in known else _parameter(layouts, stem, op, name)
        for name in names.split()
    ]
    return f"{stem}_primitive_desc_create", values


def _check_loops(op: Operation) -> None:
    """Raise `Unsupported` for reorders whose dims and blocks need more loops than oneDNN has."""
    if not isinstance(op, backend.Reorder | backend.Sources):
        return
    for _, desc in op.tensors():
        loops = desc.ndims + len(desc.inner_blocks)
        if loops > MOST_LOOPS:
            raise Unsupported(f"oneDNN copies with {MOST_LOOPS} loops; {desc} needs {loops}")


def _parameter(layouts: Layouts, stem: str, op: Any, name: str) -> Any:
    if name == "count":
        return len(op.srcs)
    number = layouts.library.number
    if name == "gradients":
        vectors = getattr(op, "diff_scale", None), getattr(op, "diff_shift", None)
        both = isinstance(op, backend.RNNBackward) or vectors != (None, None)
        return number("prop_kind", "backward" if both else "backward_data")
    if name == "flags":
        return _flags(op)
    if name == "statistics":
        return layouts.md(op.variance or MemoryDesc(op.statistics_dims, "f32"))
    if name == "direction":
        return direction(op)
    if name == "activation":
        return number("alg_kind", f"eltwise_{op.activation}")
    if name == "beta" and isinstance(op, backend.RNNForward | backend.RNNBackward):
        return ctypes.c_float(0.0)
    value: Any = hidden(op).get(name) or getattr(op, name, None)
    if name == "algorithm":
        return number("alg_kind", f"{stem.partition('_')[0]}_{value}")
    if name == "prop_kind":
        return number("prop_kind", value)
    if name == "scales":
        return (ctypes.c_float * len(value))(*value)
    if name == "srcs":
        return _Mds(layouts, value)
    if isinstance(value, tuple):
        return Dims(*value)
    if value is None or isinstance(value, MemoryDesc):
        return layouts.md(value)
    return INTEGERS.get(name, ctypes.c_float)(value)


def _flags(op: Any) -> int:
    """The flags of a normalization or of cells. Raises `Unsupported` for other differences."""
    if isinstance(op, backend.RNNForward | backend.RNNBackward):
        return OVERWRITE * (op.forward_op is not None)
    vectors = {name: getattr(op, name, None) for name in ("scale", "shift", "diff_shift")}
    for name in ("mean", "variance", *vectors):
        desc = getattr(op, name, None)
        if desc is not None and desc != MemoryDesc(desc.dims, "f32"):
            raise Unsupported(f"oneDNN takes {name} as row-major f32; got {desc!r}")
    relu = getattr(op, "fuse_relu", False)
    adds = any(getattr(op, name, None) is not None for name in ("src1", "diff_src1"))
    flags = {
        "use_global_stats": op.use_global_stats,
        "use_scale": vectors["scale"] is not None,
        "use_shift": vectors["shift"] is not None or vectors["diff_shift"] is not None,
        "fuse_norm_relu": relu and not adds,
        "fuse_norm_add_relu": relu and adds,
        "rms_norm": not op.has_mean,
    }
    return sum(1 << i for i, is_set in enumerate(flags.values()) if is_set)


class _Mds:
    """An array of memory descriptors as a parameter. It keeps them alive."""

    def __init__(self, layouts: Layouts, descs: tuple[MemoryDesc, ...]) -> None:
        self._owned = [layouts.md(desc) for desc in descs]
        self._as_parameter_ = (Handle * len(descs))(*(each.handle for each in self._owned if each))


def argument_numbers(op: Operation, attr: Attributes) -> Iterator[tuple[str, int]]:
    """The names and enumerators of an execution's arguments, without the scratchpad."""
    own = (row.name for row in op.ARGUMENTS if getattr(op, row.name, row) is not None)
    for name in dict.fromkeys([*own, *hidden(op)]):
        yield name, number_of(op, name)
    for i, post_op in enumerate(attr.post_ops):
        for name, _ in post_op.operands:
            number = number_of(op, "weights" if name == "weights" else "src1")
            yield f"post_op_{i}_{name}", POST_OP * (i + 1) + number
    yield from quantization_numbers(op, attr)


def attributes(layouts: Layouts, op: Operation, attr: Attributes) -> Owned:
    """The attributes for oneDNN. Raises `Unsupported`."""
    library = layouts.library
    made = library.made("primitive_attr_create", "primitive_attr_destroy")
    mode = library.number("scratchpad_mode", attr.scratchpad)
    library("primitive_attr_set_scratchpad_mode", made, mode)
    fpmath = library.number("fpmath_mode", FPMATH.get(attr.fpmath, attr.fpmath))
    if _decompresses(op) and library.has("primitive_attr_set_fpmath_mode_v2"):
        library("primitive_attr_set_fpmath_mode_v2", made, fpmath, APPLY_TO_INTEGERS)
    else:
        library("primitive_attr_set_fpmath_mode", made, fpmath)
    if attr.deterministic:
        if not library.has("primitive_attr_set_deterministic"):
            raise Unsupported(f"oneDNN {library.version} has no attribute deterministic")
        library("primitive_attr_set_deterministic", made, 1)
    chain = library.made("post_ops_create", "post_ops_destroy")
    for post_op in attr.post_ops:
        _append(layouts, chain, post_op)
    library("primitive_attr_set_post_ops", made, chain)
    set_quantization(library, made, op, attr)
    set_qparams(library, made, attr)
    if attr.accumulation != "strict" and library.has("primitive_attr_set_accumulation_mode"):
        accumulation = library.number("accumulation_mode", attr.accumulation)
        library("primitive_attr_set_accumulation_mode", made, accumulation)
    return made


def _decompresses(op: Operation) -> bool:
    """Whether src has a floating-point type, and weights have fewer bits."""
    if not isinstance(op, backend.MatMul | backend.InnerProductForward):
        return False
    return op.src.data_type in FLOATS and op.src.data_type != op.weights.data_type


def _append(layouts: Layouts, chain: Owned, post_op: PostOp) -> None:
    """Append one step to a chain."""
    number = layouts.library.number
    numbers = [ctypes.c_float(value) for value in (post_op.alpha, post_op.beta, post_op.scale)]
    parameters: tuple[Any, ...]
    if post_op.kind == "eltwise":
        parameters = number("alg_kind", f"eltwise_{post_op.algorithm}"), *numbers[:2]
    elif post_op.kind == "binary":
        algorithm = number("alg_kind", f"binary_{post_op.algorithm}")
        parameters = algorithm, layouts.md(post_op.src)
    elif post_op.kind == "prelu":
        assert post_op.weights is not None  # the core checks it
        mask = sum(1 << i for i, size in enumerate(post_op.weights.dims) if size > 1)
        parameters = (mask,)
    else:
        parameters = numbers[2], post_op.zero_point, number("dt", "undef")  # dst's own type
    layouts.library(f"post_ops_append_{post_op.kind}", chain, *parameters)
