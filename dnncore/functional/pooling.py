"""Pooling of images with 1, 2 or 3 spatial dims: `PoolingForward`.

src and dst are (N, C, W), (N, C, H, W) or (N, C, D, H, W). All functions have these options:

kernel: the size of the window.
strides: cells from window to window. The default is the kernel, so windows do not overlap.
padding: cells around src: one integer, or an integer or a pair (before, after) per spatial dim.
    "same" gives dst the size of src and requires strides of 1. "valid" is 0.
dilations: the number of cells SKIPPED between two cells of a window, as in oneDNN. The default 0 is
    dense. torch's dilation is larger by one: there 1 is dense.
include_padding: whether an average includes the padding as zeros (oneDNN's avg_include_padding).
    By default it includes only cells of src (avg_exclude_padding). In torch, count_include_pad is
    true by default.

kernel, strides and dilations are an integer for all spatial dims or a tuple with one for each.
"""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, check_rank, is_true, result_desc
from dnncore.functional.window import IMAGE, Padding, Sizes, window
from dnncore.ops import PoolingForward
from dnncore.ops.window import entries

__all__ = ["avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"]


def _pool(
    function: str,
    operands: dict[str, Operand],
    algorithm: str,
    kernel: Sizes,
    strides: Sizes | None,
    padding: Padding,
    dilations: Sizes,
) -> Plan:
    spatial = int(function[len("max_pool")])
    x = operands["src"]
    check_rank(function, "src", x, f"(N, C, {IMAGE[spatial]})", spatial + 2)
    cells = entries(function, "kernel", kernel, spatial)
    # The operation refuses a kernel below 1.
    steps = tuple(max(1, k) for k in cells) if strides is None else strides
    fields, output = window(function, x.shape[2:], cells, steps, padding, dilations)
    dst = result_desc((*x.shape[:2], *output), x)
    op = PoolingForward("forward_inference", algorithm, src=x.desc, dst=dst, kernel=cells, **fields)
    return Plan(op)


def max_pool1d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    engine: EngineLike = None,
) -> Result:
    """dst[n, c, x] = max over s of src[n, c, x*SW - P + s*(D+1)], over the cells inside src.

    src (N, C, W), dst (N, C, OW) with OW = (W - 1 - (KW - 1) * (D + 1) + padding) // SW + 1.

    >>> max_pool1d([[[1, 5, 2, 3]]], 2).tolist()
    [[[5.0, 3.0]]]
    """
    options = ("max", kernel, strides, padding, dilations)
    return call(_pool, "max_pool1d", {"src": src}, engine, *options)


def max_pool2d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    engine: EngineLike = None,
) -> Result:
    """The largest cell of each window: src (N, C, H, W), dst (N, C, OH, OW).

    >>> max_pool2d(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), 2).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    options = ("max", kernel, strides, padding, dilations)
    return call(_pool, "max_pool2d", {"src": src}, engine, *options)


def max_pool3d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    engine: EngineLike = None,
) -> Result:
    """The largest cell of each window: src (N, C, D, H, W), dst (N, C, OD, OH, OW).

    >>> max_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2).tolist()
    [[[[[7.0]]]]]
    """
    options = ("max", kernel, strides, padding, dilations)
    return call(_pool, "max_pool3d", {"src": src}, engine, *options)


def _average(function: str, include_padding: bool) -> str:
    is_included = is_true(function, "include_padding", include_padding)
    return "avg_include_padding" if is_included else "avg_exclude_padding"


def avg_pool1d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    include_padding: bool = False,
    engine: EngineLike = None,
) -> Result:
    """The average of each window: src (N, C, W), dst (N, C, OW), sizes as in `max_pool1d`.

    >>> avg_pool1d([[[1, 5, 2, 3]]], 2).tolist()
    [[[3.0, 2.5]]]
    >>> avg_pool1d([[[6, 6]]], 3, strides=1, padding=1, include_padding=True).tolist()
    [[[4.0, 4.0]]]
    """
    options = (_average("avg_pool1d", include_padding), kernel, strides, padding, dilations)
    return call(_pool, "avg_pool1d", {"src": src}, engine, *options)


def avg_pool2d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    include_padding: bool = False,
    engine: EngineLike = None,
) -> Result:
    """The average of each window: src (N, C, H, W), dst (N, C, OH, OW).

    >>> avg_pool2d(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), 2).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    options = (_average("avg_pool2d", include_padding), kernel, strides, padding, dilations)
    return call(_pool, "avg_pool2d", {"src": src}, engine, *options)


def avg_pool3d(
    src: Values,
    kernel: Sizes,
    *,
    strides: Sizes | None = None,
    padding: Padding = 0,
    dilations: Sizes = 0,
    include_padding: bool = False,
    engine: EngineLike = None,
) -> Result:
    """The average of each window: src (N, C, D, H, W), dst (N, C, OD, OH, OW).

    >>> avg_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2).tolist()
    [[[[[3.5]]]]]
    """
    options = (_average("avg_pool3d", include_padding), kernel, strides, padding, dilations)
    return call(_pool, "avg_pool3d", {"src": src}, engine, *options)
