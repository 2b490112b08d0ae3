"""The stages of resampling: kernels and their constants.

One stage computes the result. If that needs fewer products, another stage sums input rows first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore.planning.taps import Taps
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Nest
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.copies.permuted_kernel import PERMUTED, PermutedKernel, windows_of
from dnncore_cpu_numba.resampling.pixel_kernel import PIXELS, PixelKernel
from dnncore_cpu_numba.resampling.rows_task import MOST_SUMMED, resample_rows
from dnncore_cpu_numba.resampling.tables import Padded, Tables
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, walked

MOST_TAPS = 8  # of a result and a row, in registers
_GRAIN = 4096  # least elements of a part
_PERMUTED = 3  # products of contiguous elements that take the time of a permuted one


@dataclass(frozen=True)
class Images:
    """Images of equal channels. nest: of images. inner: elements of a pixel.

    planes, rows, pixels: the taps of the spatial dims.
    """

    nest: Nest
    dst: Tensor
    src: Tensor
    planes: Tables
    rows: Tables
    pixels: Tables
    inner: int

    @property
    def is_copy(self) -> bool:
        """Whether elements are copied."""
        tables = self.planes, self.rows, self.pixels
        is_same = self.dst.desc.data_type == self.src.desc.data_type
        return is_same and all(table.is_copy for table in tables)

    @property
    def is_dense(self) -> bool:
        """Whether rows have no gaps."""
        tensors = self.dst.desc, self.src.desc
        return all(strides_of(desc)[-1] == self.inner * desc.itemsize for desc in tensors)

    @property
    def sums_first(self) -> bool:
        """Whether it is faster to sum input rows before pixels."""
        summed, pixels = self.planes.taps * self.rows.taps, self.pixels
        later = pixels.outputs * pixels.taps * (_PERMUTED if self.inner < BEST.lanes else 1)
        is_dense = strides_of(self.src.desc)[-1] == self.inner * self.src.desc.itemsize
        is_less = pixels.inputs * summed + later < later * summed
        return is_dense and is_less and pixels.inputs * self.inner <= MOST_SUMMED

    def streams(self, nbytes: int) -> bool:
        """Whether runs of this size are written by non-temporal stores."""
        total = self.dst.desc.nbytes + self.src.desc.nbytes
        return nbytes % LINE == 0 and total >= STREAM_BYTES

    def step(
        self, stage: Stage, first: Stage | None, rows: Tables, group: int = 1, summed_row: int = 0
    ) -> Step:
        """Return the step. first: sums the rows of an item, or each of its rows.

        rows, group: as in `resample_rows`.
        """
        (dst_plane, dst_row, _), (src_plane, src_row, _) = (
            strides_of(tensor.desc) for tensor in (self.dst, self.src)
        )
        one = Table(np.ones(1, np.float32))
        before = first.shape if first else []
        values = walked(self.nest, {"dst": self.dst, "src": self.src}) | {
            "planes": self.planes.outputs, "rows": rows.outputs,
            "dst_plane": dst_plane, "dst_row": dst_row,
            "src_plane": src_plane, "src_row": src_row,
            "along_planes": self.planes.record(), "along_rows": rows.record(), "one": one,
            "first": first.kernel.address if first else 0,
            "first_shape": [*before, *[0] * (PERMUTED.size - len(before))],
            "kernel": stage.kernel.address,
            "streamed": stage.streamed.address if stage.streamed else 0,
            "shape": stage.shape, "at_once": stage.rows, "group": group, "summed_row": summed_row,
        }  # fmt: skip
        items = math.prod(loop.extent for loop in self.nest.loops)
        items *= self.planes.outputs * rows.outputs // group
        outputs = math.prod(self.dst.desc.dims) // max(1, items)
        return Step(resample_rows, values, items, grain=-(-_GRAIN // max(1, outputs)))


@dataclass(frozen=True)
class Stage:
    """A kernel of `ROW_CALL` and its constants. rows: of a call. streamed: for aligned results."""

    kernel: PermutedKernel | PixelKernel
    shape: list[Any]
    rows: int = 1
    streamed: PermutedKernel | PixelKernel | None = None

    def streaming(self, **changes: Any) -> Stage:
        """Return the stage with a kernel of non-temporal stores."""
        return replace(self, streamed=replace(self.kernel, streamed=True, **changes))


ONE = Tables(Taps((0,), ((1.0,),)))


def permuted(
    taps: Padded, dst: Tensor, src: Tensor, width: int, steps: int, moves: tuple[int, int],
    *, is_copy: bool = False, is_single: bool = False,
) -> Stage | None:  # fmt: skip
    """Return a stage of vectors of elements; None if they lie too far apart.

    width: the inputs of a step. moves: from step to step, in src and dst, in bytes.
    """
    lanes, count = BEST.lanes, taps.outputs
    begins = np.minimum(np.arange(0, count, lanes), max(0, count - lanes))
    lane = np.minimum(begins[:, None] + np.arange(lanes), count - 1)
    places, weights = (
        np.ascontiguousarray(np.moveaxis(table[:, lane], 0, 1))
        for table in (taps.places, taps.weights)
    )
    windows = windows_of(places, lanes, width)
    if windows is None:
        return None
    shared = windows_of(places.reshape(len(begins), -1), lanes, width)
    shares = shared is not None and shared[0].shape[-1] <= windows[0].shape[-1]
    bases, lane_places = shared if shared is not None and shares else windows
    kernel = PermutedKernel(
        src.desc.data_type, dst.desc.data_type, lanes, is_copy, len(places[0]), bases.shape[-1],
        shares, is_single=is_single, ragged=not weights.all(),
        is_short=width < lanes, is_narrow=count < lanes,
    )  # fmt: skip
    (plane, row, _), (src_step, dst_step) = strides_of(src.desc), moves
    values = PERMUTED.pack({
        "vectors": len(begins), "steps": steps, "src_step": src_step, "dst_step": dst_step,
        "plane": plane, "row": row,
        "targets": Table(begins * dst.desc.itemsize), "bases": Table(bases * src.desc.itemsize),
        "lanes": Table(lane_places), "shares": Table(weights),
        "src_count": width, "dst_count": count,
    })  # fmt: skip
    return Stage(kernel, values)


def in_pixels(
    taps: Tables | Padded, dst: Tensor, src: Tensor, inner: int, moves: tuple[int, int],
    *, is_copy: bool = False, is_single: bool = False,
) -> Stage:  # fmt: skip
    """Return a stage of vectors of pixels. moves: from pixel to pixel, in src and dst, in bytes."""
    plane, row, _ = strides_of(src.desc)
    if isinstance(taps, Padded):
        arrays, unrolled = (taps.places * moves[0], taps.weights), len(taps.places)
        firsts, weights = (Table(np.ascontiguousarray(array.T)) for array in arrays)
        tables: dict[str, Any] = {"firsts": firsts, "weights": weights, "starts": 0}
    else:
        tables, unrolled = taps.record() | {"firsts": Table(taps.firsts * moves[0])}, 0
    kernel = PixelKernel(
        src.desc.data_type, dst.desc.data_type, is_copy, unrolled, is_single,
        at_once=4 if inner >= 4 * BEST.lanes else 2,
    )  # fmt: skip
    values = PIXELS.pack({
        "pixels": taps.outputs, "inner": inner, "src_pixel": moves[0], "dst_pixel": moves[1],
        "plane": plane, "row": row, **tables,
    })  # fmt: skip
    return Stage(kernel, values)


def strides_of(desc: MemoryDesc) -> list[int]:
    """Return the strides of planes, rows and pixels in bytes."""
    return [stride * desc.itemsize for stride in (0, 0, *desc.strides[2:])[-3:]]
