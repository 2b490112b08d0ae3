"""Problems of every operation, drawn at random: shapes, windows, algorithms, formats.

The same seed gives the same problems on every machine. `inputs_of` makes consistent inputs for a
problem: the workspace and dst that the forward operation computes from src.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from checks import reference_outputs

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, USE_DST, eltwise_names
from dnncore.comparison.fills import fill_integers, fill_normal, reads
from dnncore.ops.window import effective_kernel, window_output

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

COUNT = 40  # least number of problems per operation

PARAMETERS = {name: algorithm.probes[0] for name, algorithm in ELTWISE.items()}


def problems(kind: type[dnn.Operation], count: int = COUNT) -> Iterator[Any]:
    """`count` distinct operations of this type."""
    rng = np.random.default_rng(7)
    seen: set[dnn.Operation] = set()
    while len(seen) < count:
        op = _DRAWS[kind](rng, len(seen))
        if op not in seen:
            seen.add(op)
            yield op


def retyped(op: Any, half: str, chosen: Callable[[], bool] = lambda: True) -> Any:
    """The operation with its chosen f32 tensors in `half`, if its rules permit this."""

    def other(desc: dnn.MemoryDesc) -> dnn.MemoryDesc:
        return desc.with_data_type(half) if desc.data_type == "f32" and chosen() else desc

    try:
        return op.with_each(other)
    except dnn.DescriptorError:
        return op


KINDS = [
    dnn.Binary,
    dnn.ConvolutionForward,
    dnn.ConvolutionBackwardData,
    dnn.ConvolutionBackwardWeights,
    dnn.EltwiseForward,
    dnn.EltwiseBackward,
    dnn.InnerProductForward,
    dnn.InnerProductBackwardData,
    dnn.InnerProductBackwardWeights,
    dnn.LRNForward,
    dnn.LRNBackward,
    dnn.MatMul,
    dnn.PoolingForward,
    dnn.PoolingBackward,
    dnn.Reduction,
    dnn.Reorder,
    dnn.SoftmaxForward,
    dnn.SoftmaxBackward,
    dnn.Sum,
]


# -- inputs ----------------------------------------------------------------------------------------


def inputs_of(op: Any) -> dict[str, Array]:
    """An array per input. With saved values, also the src from which they were computed."""
    whole = isinstance(op, dnn.Binary) and op.algorithm in ("ge", "gt", "le", "lt", "eq", "ne")
    inputs = {
        name: fill_integers(desc, seed)
        if whole or desc.data_type in ("s32", "s8", "u8")
        else fill_normal(desc, seed, 100.0 if isinstance(op, dnn.Reorder) else 1.0)
        for seed, (name, desc) in enumerate(reads(op, dnn.Attributes()).items())
    }
    if op.saved:
        src = inputs.get("src", fill_normal(op.forward_op.src, 9))
        outputs = reference_outputs(op.forward_op, {"src": src})
        inputs |= {"src": src, **{name: outputs[name] for name in op.saved}}
    return inputs


# -- shapes and formats ----------------------------------------------------------------------------


def _pick(rng: Rng, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def _sizes(rng: Rng, count: int, high: int = 8) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, high, count, endpoint=True))


def _image(rng: Rng, *, spatial: int | None = None) -> tuple[int, ...]:
    """(N, C, spatial dims). The batch is sometimes empty."""
    spatial = int(rng.integers(1, 4)) if spatial is None else spatial
    batch = 0 if rng.random() < 0.05 else int(rng.integers(1, 4))
    return batch, int(_pick(rng, 1, 3, 8, 16, 19)), *_sizes(rng, spatial, 9 - 2 * spatial + 2)


def _tag(rng: Rng, ndims: int) -> str | None:
    """A format of (N, C, ...): in half of the cases row-major, else channels last or blocked."""
    letters = "abcdefghijkl"[:ndims]
    if ndims < 3 or rng.random() < 0.5:
        return None
    return _pick(rng, f"a{letters[2:]}b", f"aB{letters[2:]}8b", f"aB{letters[2:]}16b")


def _desc(dims: Any, tag: str | None = None, data_type: str = "f32") -> dnn.MemoryDesc:
    return dnn.MemoryDesc(tuple(dims), data_type, tag)


# -- operations ------------------------------------------------------------------------------------


def _window(rng: Rng, image: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any] | None:
    """Strides, dilations and paddings. None if a spatial dim has no output."""
    n = len(kernel)
    window = {
        "strides": tuple(int(s) for s in rng.integers(1, 4, n)),
        "dilations": tuple(int(d) for d in rng.integers(0, 3, n) * (rng.random() < 0.3)),
        "padding_l": tuple(int(p) for p in rng.integers(0, 3, n) * (rng.random() < 0.6)),
    }
    right = [
        int(rng.integers(-min(stride - 1, 1), 3)) if rng.random() < 0.4 else left
        for stride, left in zip(window["strides"], window["padding_l"], strict=True)
    ]
    window["padding_r"] = tuple(right)
    return window if min(_outputs(image, kernel, window)) > 0 else None


def _outputs(image: tuple[int, ...], kernel: tuple[int, ...], window: dict[str, Any]) -> list[int]:
    fields = [window[name] for name in ("strides", "dilations", "padding_l", "padding_r")]
    sizes = []
    for size, k, *geometry in zip(image, kernel, *fields, strict=True):
        room = size + geometry[2] + geometry[3] - effective_kernel(k, geometry[1])
        sizes.append(window_output(size, k, *geometry) if room >= 0 else 0)
    return sizes


def _windowed(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], list[int]]:
    """An image, a kernel and a window that fit together, and the spatial dims of the output."""
    while True:
        image = _image(rng)
        kernel = _sizes(rng, len(image) - 2, 4)
        window = _window(rng, image[2:], kernel)
        if window:
            return image, kernel, window, _outputs(image[2:], kernel, window)


def _convolution(direction: str) -> Callable[[Rng, int], dnn.Operation]:
    def draw(rng: Rng, i: int) -> dnn.Operation:
        image, kernel, window, outputs = _windowed(rng)
        algorithm = "auto" if i % 8 == 7 else "direct"
        groups = int(_pick(rng, 1, 1, 2, image[1]))
        groups = groups if image[1] % groups == 0 else 1
        oc = int(_pick(rng, 1, 2, 5, 16))
        filters = (oc, image[1] // groups, *kernel)
        weights = (groups, *filters) if groups > 1 or rng.random() < 0.1 else filters
        tags = ("any", "any", "any") if rng.random() < 0.3 else (_tag(rng, len(image)), None, None)
        tags = tags if tags[0] in (None, "any") or rng.random() < 0.5 else (tags[0], "any", tags[0])
        x, y = _desc(image, tags[0]), _desc((image[0], groups * oc, *outputs), tags[2])
        w = _desc(weights, tags[1])
        b = _desc((groups * oc,)) if rng.random() < 0.7 else None
        if direction == "forward":
            return dnn.ConvolutionForward(
                "forward_training", src=x, weights=w, bias=b, dst=y, algorithm=algorithm, **window
            )
        if direction == "data":
            return dnn.ConvolutionBackwardData(
                diff_src=x, weights=w, diff_dst=y, algorithm=algorithm, **window
            )
        return dnn.ConvolutionBackwardWeights(
            src=x, diff_weights=w, diff_bias=b, diff_dst=y, algorithm=algorithm, **window
        )

    return draw


def _inner_product(direction: str) -> Callable[[Rng, int], dnn.Operation]:
    def draw(rng: Rng, _i: int) -> dnn.Operation:
        src = _image(rng, spatial=int(rng.integers(0, 4)))
        oc = int(_pick(rng, 1, 7, 16, 33))
        tag = _tag(rng, len(src))
        x, w = _desc(src, tag), _desc((oc, *src[1:]), "any" if tag else None)
        y = _desc((src[0], oc))
        b = _desc((oc,)) if rng.random() < 0.7 else None
        if direction == "forward":
            return dnn.InnerProductForward("forward_training", src=x, weights=w, bias=b, dst=y)
        if direction == "data":
            return dnn.InnerProductBackwardData(diff_src=x, weights=w, diff_dst=y)
        return dnn.InnerProductBackwardWeights(src=x, diff_weights=w, diff_bias=b, diff_dst=y)

    return draw


def _matmul(rng: Rng, _i: int) -> dnn.Operation:
    batch = _sizes(rng, int(rng.integers(0, 4)), 4)
    m, k, n = (int(_pick(rng, 1, 2, 7, 16, 33)) for _ in range(3))
    a = tuple(_pick(rng, size, size, 1) for size in batch)
    b = tuple(size if one == 1 else _pick(rng, size, 1) for size, one in zip(batch, a, strict=True))
    dst = (*batch, m, n)
    bias = _desc([_pick(rng, size, 1) for size in dst]) if rng.random() < 0.6 else None
    swapped = (
        "abcdefghijkl"[: len(batch)] + "abcdefghijkl"[len(batch) + 1] + "abcdefghijkl"[len(batch)]
    )
    src, weights = (_pick(rng, None, None, swapped) for _ in range(2))
    return dnn.MatMul(
        src=_desc((*a, m, k), src),
        weights=_desc((*b, k, n), weights),
        bias=bias,
        dst=_desc(dst),
    )


def _pooling(rng: Rng, i: int, *, forward: bool) -> dnn.Operation:
    while True:
        image, kernel, window, outputs = _windowed(rng)
        tag = _tag(rng, len(image))
        src, dst = _desc(image, tag), _desc((*image[:2], *outputs), tag)
        algorithm = ("max", "avg_include_padding", "avg_exclude_padding")[i % 3]
        fields: dict[str, Any] = {"kernel": kernel, **window}
        try:
            if forward:
                return dnn.PoolingForward("forward_training", algorithm, src=src, dst=dst, **fields)
            return dnn.PoolingBackward(algorithm, diff_src=src, diff_dst=dst, **fields)
        except dnn.DescriptorError:  # an average of no cells
            continue


def _lrn(rng: Rng, i: int, *, forward: bool) -> dnn.Operation:
    src = _image(rng)
    desc = _desc(src, _tag(rng, len(src)))
    algorithm = ("across_channels", "within_channel")[i % 2]
    fields: dict[str, Any] = {
        "local_size": int(_pick(rng, 1, 3, 4, 5, 7)),
        "alpha": float(_pick(rng, 1e-4, 0.5)),
        "beta": float(_pick(rng, 0.75, 0.75, 0.5, 1.0, 0.3)),
        "k": float(_pick(rng, 1.0, 2.0)),
    }
    if forward:
        return dnn.LRNForward("forward_training", algorithm, src=desc, dst=desc, **fields)
    return dnn.LRNBackward(algorithm, src=desc, diff_dst=desc, diff_src=desc, **fields)


def _any_desc(rng: Rng) -> dnn.MemoryDesc:
    """A descriptor of one to five dims in a random format, sometimes with gaps."""
    ndims = int(rng.integers(1, 6))
    dims = (*_sizes(rng, ndims - 1, 7), *_sizes(rng, 1, (5000, 300, 70, 20, 9)[ndims - 1]))
    dims = (0, *dims[1:]) if rng.random() < 0.05 else dims
    if rng.random() < 0.15:
        return _desc([n + 3 for n in dims]).submemory(dims, [1] * len(dims))
    return _desc(dims, _tag(rng, len(dims)))


def _eltwise(rng: Rng, i: int) -> dnn.Operation:
    algorithm = [*ELTWISE][i % len(ELTWISE)]
    alpha, beta = PARAMETERS[algorithm]
    desc = _any_desc(rng)
    return dnn.EltwiseForward(
        "forward_training", algorithm, src=desc, dst=desc, alpha=alpha, beta=beta
    )


def _eltwise_backward(rng: Rng, i: int) -> dnn.Operation:
    names = eltwise_names(gradient=True)
    algorithm = names[i % len(names)]
    alpha, beta = PARAMETERS[algorithm.removesuffix(USE_DST)]
    desc = _any_desc(rng)
    kept = {"dst" if algorithm.endswith(USE_DST) else "src": desc}
    return dnn.EltwiseBackward(
        algorithm, **kept, diff_dst=desc, diff_src=desc, alpha=alpha, beta=beta
    )


def _binary(rng: Rng, i: int) -> dnn.Operation:
    algorithm = [*BINARY][i % len(BINARY)]
    dst = _any_desc(rng)
    one = _pick(rng, 0, 1)  # both sources may be broadcast, but not along the same dim
    dims = [list(dst.dims), list(dst.dims)]
    for dim in range(dst.ndims):
        if rng.random() < 0.4:
            dims[one if rng.random() < 0.3 else 1 - one][dim] = 1
    srcs = [dst if tuple(d) == dst.dims else _desc(d) for d in dims]
    condition = _desc([_pick(rng, n, n, 1) for n in dst.dims], None, "s8")
    extra = {"src2": condition} if algorithm == "select" else {}
    return dnn.Binary(algorithm, src0=srcs[0], src1=srcs[1], dst=dst, **extra)


def _sum(rng: Rng, _i: int) -> dnn.Operation:
    desc = _any_desc(rng)
    scales = tuple(float(s) for s in rng.integers(-3, 4, int(rng.integers(1, 6))))
    return dnn.Sum(scales, srcs=[desc] * len(scales), dst=desc)


def _reduction(rng: Rng, i: int) -> dnn.Operation:
    algorithms = ("max", "min", "sum", "mul", "mean", "norm_lp_max", "norm_lp_sum",
                  "norm_lp_power_p_max", "norm_lp_power_p_sum")  # fmt: skip
    while True:
        src = _any_desc(rng)
        dst = [1 if rng.random() < 0.5 else n for n in src.dims]
        if tuple(dst) != src.dims and src.nelems:
            break
    return dnn.Reduction(
        algorithms[i % len(algorithms)],
        src=src,
        dst=_desc(dst),
        p=float(_pick(rng, 1.0, 2.0, 3.0, 1.5)),
        eps=float(_pick(rng, 0.0, 0.5)),
    )


def _reorder(rng: Rng, i: int) -> dnn.Operation:
    """A reorder between two of the types that every device has."""
    types = ("f32", "f16", "bf16", "s32", "s8", "u8")
    src, dst = types[i % 6], types[i // 6 % 6]
    dims = _image(rng)
    return dnn.Reorder(
        src=_desc(dims, _tag(rng, len(dims)), src), dst=_desc(dims, _tag(rng, len(dims)), dst)
    )


def _softmax(rng: Rng, i: int, *, forward: bool) -> dnn.Operation:
    desc = _any_desc(rng)
    axis = int(rng.integers(desc.ndims))
    algorithm = ("accurate", "log")[i % 2]
    if forward:
        return dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=axis)
    return dnn.SoftmaxBackward(algorithm, dst=desc, diff_dst=desc, diff_src=desc, axis=axis)


_DRAWS: dict[type[dnn.Operation], Callable[[Rng, int], dnn.Operation]] = {
    dnn.Binary: _binary,
    dnn.ConvolutionForward: _convolution("forward"),
    dnn.ConvolutionBackwardData: _convolution("data"),
    dnn.ConvolutionBackwardWeights: _convolution("weights"),
    dnn.EltwiseForward: _eltwise,
    dnn.EltwiseBackward: _eltwise_backward,
    dnn.InnerProductForward: _inner_product("forward"),
    dnn.InnerProductBackwardData: _inner_product("data"),
    dnn.InnerProductBackwardWeights: _inner_product("weights"),
    dnn.LRNForward: lambda rng, i: _lrn(rng, i, forward=True),
    dnn.LRNBackward: lambda rng, i: _lrn(rng, i, forward=False),
    dnn.MatMul: _matmul,
    dnn.PoolingForward: lambda rng, i: _pooling(rng, i, forward=True),
    dnn.PoolingBackward: lambda rng, i: _pooling(rng, i, forward=False),
    dnn.Reduction: _reduction,
    dnn.Reorder: _reorder,
    dnn.SoftmaxForward: lambda rng, i: _softmax(rng, i, forward=True),
    dnn.SoftmaxBackward: lambda rng, i: _softmax(rng, i, forward=False),
    dnn.Sum: _sum,
}
