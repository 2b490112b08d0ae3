"""Resampling, forward and backward: both are sums by tables of taps, so the gradient scatters
nothing.

Images and channels are the loops of a nest. The innermost one, if it is contiguous in both tensors,
is a pixel of the rows in `rows_task.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused, Resampling
from dnncore.planning.taps import Taps, taps_of
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.resampling.rows_task import resample_rows
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked

_PIXEL = 256  # most elements of a pixel
_GRAIN = 4096  # least elements of a part
_STILL = Loop(1, (0, 0))


class ResamplingImplementation(Implementation[Resampling]):
    """Rows of any type, which are computed in f32."""

    name = "cpu_numba:rows"
    data_types = (*FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(
        self, op: Resampling, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept layouts without blocks along spatial dims, and every attribute."""
        (source, desc), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: desc})
        refusal = refuse_post_ops(op, attr) or refuse_long(*desc.dims[2:], *op.result.dims[2:])
        if refusal:
            return refusal
        for argument, own in op.tensors():
            if any(dim > 1 for dim, _ in own.inner_blocks):
                return Refused("format", f"needs plain spatial dims; {argument.name} has {own.tag}")
        return offered(op, attr, engine, partial(_steps, op, source.name), efficiency=0.3)


def _steps(op: Resampling, source: str, dst: Tensor) -> list[Step]:
    """Return the steps that write the result to dst, perhaps in another data type."""
    src = arguments(op)[source]
    if src.desc.data_type == dst.desc.data_type == "s32" and source == "src" and op.is_nearest:
        src, dst = (_as_bits(tensor) for tensor in (src, dst))
    spatial = range(2, dst.desc.ndims)
    parts = nests(dst.desc.dims, (dst.desc, src.desc), without=spatial)
    tables = [_taps(op, dim) for dim in spatial]
    return [_step(part, dst, src, tables) for nest in parts for part in _pixels(nest.ordered())]


def _as_bits(tensor: Tensor) -> Tensor:
    """Return s32 as f32, for copies of elements."""
    return Tensor(tensor.address, tensor.desc.with_data_type("f32"))


def _pixels(nest: Nest) -> Iterator[Nest]:
    """Yield nests whose innermost loop is a pixel: contiguous in both tensors, or one element."""
    loops = nest.loops
    if not loops or loops[-1].strides != (1, 1):
        yield Nest(nest.offsets, (*loops, _STILL))
        return
    yield from nest.split(len(loops) - 1, _PIXEL)


def _taps(op: Resampling, dim: int) -> Taps:
    inputs, outputs = op.src_role.dims[dim], op.dst_role.dims[dim]
    taps = taps_of(op.algorithm, inputs, outputs)
    return taps if op.result_name == "dst" else taps.transposed(inputs)


def _step(part: Nest, dst: Tensor, src: Tensor, tables: list[Taps]) -> Step:
    *outer, pixel = part.loops
    sizes = (1, 1, *dst.desc.dims[2:])[-3:]
    one = Taps((0,), ((1.0,),))
    planes, rows, pixels = ([one, one, *tables])[-3:]
    around = Nest(part.offsets, tuple(outer))
    values = walked(around, {"dst": dst, "src": src}) | {
        "planes": sizes[0], "rows": sizes[1], "pixels": sizes[2], "inner": pixel.extent,
        "into": _image(dst.desc, conversion("f32", dst.desc.data_type)),
        "source": _image(src.desc, conversion(src.desc.data_type, "f32")),
        "along_planes": _table(planes), "along_rows": _table(rows),
        "along_pixels": _table(pixels),
    }  # fmt: skip
    items = around.size * sizes[0] * sizes[1]
    grain = -(-_GRAIN // max(1, sizes[2] * pixel.extent))
    return Step(resample_rows, values, items if sizes[2] else 0, grain=grain)


def _image(desc: MemoryDesc, convert: int) -> dict[str, int]:
    size = desc.itemsize
    plane, row, pixel = (0, 0, *desc.strides[2:])[-3:]
    return {
        "plane": plane * size, "row": row * size, "pixel": pixel * size, "size": size,
        "convert": convert,
    }  # fmt: skip


def _table(taps: Taps) -> dict[str, Any]:
    counts = np.array([len(row) for row in taps.weights], np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    weights = [weight for row in taps.weights for weight in row]
    places, shares = _two_taps(taps)
    return {
        "firsts": Table(np.array(taps.firsts, np.int64)),
        "starts": Table(starts.astype(np.int64)),
        "weights": Table(np.array(weights, np.float32)),
        "taps": len(places), "places": Table(places), "shares": Table(shares),
        "pixels": counts.size,
    }  # fmt: skip


def _two_taps(taps: Taps) -> tuple[Any, Any]:
    """Return inputs and weights of two taps per result, or of one if all results are copies.

    Nothing if a result has no tap or more. If it has one, this tap is repeated, each with half its
    weight, because other inputs may be infinite.
    """
    counts = set(map(len, taps.weights))
    firsts = np.array(taps.firsts, np.int32)
    if counts == {1} and all(row == (1.0,) for row in taps.weights):
        return firsts[None], np.ones((1, firsts.size), np.float32)
    if not counts <= {1, 2} or not counts:
        return np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
    pairs = [row if len(row) == 2 else (row[0] / 2, row[0] / 2) for row in taps.weights]
    shares = np.array(pairs, np.float32).T
    others = firsts + np.array([len(row) - 1 for row in taps.weights], np.int32)
    return np.stack([firsts, others]), np.ascontiguousarray(shares)


TABLE = (ResamplingImplementation(),)
