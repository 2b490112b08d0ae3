"""Pooling of images with 1, 2 or 3 spatial dims: `PoolingForward`.

Windows have the cells that `help(dnncore.ops.pooling)` defines, as in oneDNN.
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

    A window without such a cell gives the lowest number of the type.

    src (N, C, W), dst (N, C, OW) with
    OW = (W - 1 - (KW - 1) * (D + 1) + padding at both ends) // SW + 1.
    kernel: the size of the window, an integer.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, [(before, after)], "same" or "valid". "same" gives dst
        the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.

    Raises `DescriptorError` for shapes, types and options that do not fit.

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
    """dst[n, c, y, x] = max over r, s of src[n, c, y', x'], over the cells inside src.

    y' = y*SH - PT + r*(DH+1) and x' = x*SW - PL + s*(DW+1). A window without a cell of src gives
    the lowest number of the type.

    src (N, C, H, W), dst (N, C, OH, OW) with OH and OW of the form
    OW = (W - 1 - (KW - 1) * (DW + 1) + padding at both ends) // SW + 1.
    kernel: the size of the window, an integer for all spatial dims or one for each.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.

    Raises `DescriptorError` for shapes, types and options that do not fit.

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
    """`max_pool2d`, which has the formula and the size of dst, with three spatial dims.

    src (N, C, D, H, W), dst (N, C, OD, OH, OW).
    kernel: the size of the window, an integer for all spatial dims or one for each.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.

    Raises `DescriptorError` for shapes, types and options that do not fit.

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
    """dst[n, c, x] = the average over s of src[n, c, x*SW - P + s*(D+1)].

    src (N, C, W), dst (N, C, OW) with
    OW = (W - 1 - (KW - 1) * (D + 1) + padding at both ends) // SW + 1.
    kernel: the size of the window, an integer.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, [(before, after)], "same" or "valid". "same" gives dst
        the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    include_padding: whether the padding counts, as zeros: oneDNN's avg_include_padding. Otherwise
        only cells of src count, and each window must contain one: avg_exclude_padding. torch's
        count_include_pad is true by default.

    Raises `DescriptorError` for shapes, types and options that do not fit.

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
    """dst[n, c, y, x] = the average over r, s of src[n, c, y', x'].

    y' = y*SH - PT + r*(DH+1) and x' = x*SW - PL + s*(DW+1).

    src (N, C, H, W), dst (N, C, OH, OW) with OH and OW of the form
    OW = (W - 1 - (KW - 1) * (DW + 1) + padding at both ends) // SW + 1.
    kernel: the size of the window, an integer for all spatial dims or one for each.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    include_padding: whether the padding counts, as zeros: oneDNN's avg_include_padding. Otherwise
        only cells of src count, and each window must contain one: avg_exclude_padding. torch's
        count_include_pad is true by default.

    Raises `DescriptorError` for shapes, types and options that do not fit.

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
    """`avg_pool2d`, which has the formula and the size of dst, with three spatial dims.

    src (N, C, D, H, W), dst (N, C, OD, OH, OW).
    kernel: the size of the window, an integer for all spatial dims or one for each.
    strides: cells from window to window. None is the kernel, so that windows do not overlap.
    padding: cells around src: one integer, an integer or a pair (before, after) per spatial dim,
        "same" or "valid". "same" gives dst the size of src and needs strides of 1; "valid" is 0.
    dilations: the number of cells SKIPPED between two cells of a window. 0 is dense, NOT 1 as in
        torch, whose dilation is larger by one.
    include_padding: whether the padding counts, as zeros: oneDNN's avg_include_padding. Otherwise
        only cells of src count, and each window must contain one: avg_exclude_padding. torch's
        count_include_pad is true by default.

    Raises `DescriptorError` for shapes, types and options that do not fit.

    >>> avg_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2).tolist()
    [[[[[3.5]]]]]
    """
    options = (_average("avg_pool3d", include_padding), kernel, strides, padding, dilations)
    return call(_pool, "avg_pool3d", {"src": src}, engine, *options)
