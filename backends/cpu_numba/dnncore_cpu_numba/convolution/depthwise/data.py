"""Convolution of many small groups, forward and backward by data: groups share vectors.

A vector holds one channel, or a few neighbouring channels, of each of its groups. Their number
divides the channels per group of src and of dst, and the lanes. If these are all channels of a
group, as in depthwise convolution, tensors are read and written in place. Otherwise the first
channels of all groups form one plane of vectors, the next channels the next plane, and activations
are copied plane after plane. An output plane is a sum over the taps and the planes of the input.
`depthwise/kernel.py` computes its rows.

Because there is little arithmetic, no image is copied to add a border.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Convolution, Refused
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, STORED
from dnncore_cpu_numba.convolution.brgemm import Brgemm, with_channels_last
from dnncore_cpu_numba.convolution.depthwise.kernel import PAIR, ROW, DepthwiseKernel, Sums
from dnncore_cpu_numba.convolution.depthwise.task import depthwise_loop
from dnncore_cpu_numba.convolution.depthwise.view import MOST_TAPS, DepthwiseView
from dnncore_cpu_numba.convolution.geometry import Geometry, dot
from dnncore_cpu_numba.convolution.image import Image
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, call_rows, with_fixed
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, F64_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.plan import INTEGERS, ProgramPlan
from dnncore_cpu_numba.gemm.problem import Matrix
from dnncore_cpu_numba.gemm.quantization import ATTRIBUTES, refuse_varying
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

# Speeds relative to matrix tiles, measured: each vector of the input is used for one plane of the
# output; it is read from cache for several planes; vectors hold several channels of a group.
ONE_PLANE, PLANES, GROUPS = 0.25, 0.5, 0.7
STRIPS_PER_THREAD = 4  # if images and channels do not divide evenly among threads
# For contiguous channels, measured: more pages at a time, or more of each page, are slower.
PLACES = {
    8: 9,
    4: 9,
    2: 16,
    1: 24,
}  # input pixels of a tile and a row of taps, by bytes of an element
VECTORS = 8  # vectors of channels per work item
PIXELS_OF_GROUPS = 14  # most pixels of a tile with several channels of a group: its code is longer
AHEAD_BYTES = {
    8: 4 << 20,
    4: 4 << 20,
    2: 1 << 20,
    1: 1 << 20,
}  # least bytes of an input that is prefetched
LARGEST_PRODUCT = 255 * 128  # largest product of 8-bit integers
EXACT = 1 << 24  # f32 represents all integers up to this one
ROW_ENTRIES = 16  # entries of tables per row, in the unit of `table_entries`


class Depthwise(Brgemm):
    """Base of the directions: formats, and channels in the order of planes.

    In inherited methods, "per group" means the channels of a plane, and the outer dim of groups
    runs over the planes.
    """

    NAME = "cpu_numba:depthwise:{isa.name}"
    HAS_KNOBS = False

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Plan with the lanes of a vector of this element type."""
        isa = self.arithmetic(op).vectors_of(self.isa)
        own = self if isa == self.isa else type(self)(isa)
        return Brgemm.accept(own, op, attr, engine, hint)

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of single elements, of f64 or f32."""
        return F64_PRODUCTS if op.data_type == "f64" else F32_PRODUCTS

    def orders(self, op: Convolution) -> tuple[list[int] | None, list[int] | None]:
        """Return `DepthwiseView.orders`."""
        return DepthwiseView.of(self.isa, Geometry.of(op)).orders

    def kept_in(self, op: Convolution, images: Sequence[str]) -> list[str]:
        """Return the images that keep their types, because their channels keep their order."""
        orders = zip(images, self.orders(op), strict=True)
        return [name for name, order in orders if order is None]

    def table_entries(self, g: Geometry) -> int:
        """Return several entries for each row of pixels."""
        return ROW_ENTRIES * max(g.src[0] * g.src[1], g.dst[0] * g.dst[1])

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse problems with one group, which does not fill a vector."""
        groups, _, _, *kernel = op.grouped_weights
        if groups == 1:
            return Refused("shape", "one group, where groups are the lanes of vectors")
        if min(kernel) > MOST_TAPS:
            return Refused("shape", f"a kernel of {min(kernel)} in all dims; {MOST_TAPS} at most")
        if op.data_type == "f64" and any(self.orders(op)):
            return Refused("type", "f64 of groups whose channels are copied in another order")
        return super().refused(op, attr)

    def tag(self, per_group: int, spatial: str, g: Geometry) -> str:
        """Return a blocked tag if there is one plane of whole vectors, otherwise channels last."""
        view = DepthwiseView.of(self.isa, g)
        blocked = per_group == view.channels and view.width % self.isa.lanes == 0
        return f"nC{spatial}{self.isa.lanes}c" if blocked else f"n{spatial}c"

    def weights_format(self, op: Convolution) -> str:
        """Return the tag of the weights that the tiles read or write."""
        letters, lanes = "abcdef"[: op.weights_role.ndims], self.isa.lanes
        g = Geometry.of(op)
        channels = DepthwiseView.of(self.isa, g).channels
        if channels == 1:
            return f"{letters.capitalize()}{lanes}a"
        written = "c" if g.backward else "b"
        outer = letters.capitalize().replace(written, written.upper())
        return f"{outer}{lanes // channels}a{channels}{written}"

    def room(self, per_group: int) -> str:
        """Return a blocked tag if blocks are whole, otherwise channels last.

        Pixels of blocked images are close to each other and have fewer cache conflicts.
        """
        lanes = self.isa.lanes
        return "acdeb" if per_group % lanes else f"aBcde{lanes}b"

    def serves(self, image: Image, per_group: int) -> bool:
        """Whether channels can be loaded as vectors."""
        return image.vector_step(self.isa.lanes, per_group) is not None

    def utilisation(self, op: Convolution) -> float:
        """Return the utilisation of tiles of pixels of a row by groups."""
        g = Geometry.of(op)
        view = DepthwiseView.of(self.isa, g)
        share = GROUPS if view.channels > 1 else ONE_PLANE if g.ic == g.oc == 1 else PLANES
        return share * utilisation(self.isa, g.dst[2], view.width)


class DepthwiseData(Depthwise):
    """Forward and backward by data: each pixel of the output is a sum over pixels of the input."""

    data_types = (*FLOATS, "f64", *INTEGERS)
    attributes = ATTRIBUTES

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse integers whose sums are inexact in f32 if channels are reordered as f32."""
        if refusal := super().refused(op, attr) or refuse_varying(
            op, attr, self.arithmetic(op).group
        ):
            return refusal
        read, _ = self.orders(op)
        if read is not None and op.data_type in INTEGERS and not _is_exact_in_f32(op, attr):
            return Refused("attribute", "sums are too large for f32, in which channels are copied")
        return None

    def resolved(self, op: Convolution) -> Convolution:
        """Resolve integers to channels last, as other convolutions do. Blocks are not faster."""
        return super().resolved(with_channels_last(op) if op.data_type in INTEGERS else op)

    def arithmetic(self, op: Convolution) -> Arithmetic:
        """Return products of single elements."""
        return Arithmetic("s32", "s32") if op.data_type in INTEGERS else super().arithmetic(op)

    def kept(self, op: Convolution) -> tuple[str, ...]:
        """Return weights, bias, and the images whose channels keep their order."""
        images = Geometry.of(op).gathered, op.result_name
        return ("weights", op.BIAS, *self.kept_in(op, images))

    def plan(self, plan: ProgramPlan, op: Convolution, attr: Attributes) -> None:
        """Append the steps."""
        view = DepthwiseView.of(self.isa, Geometry.of(op))
        width, (read, written), is_integer = view.width, view.orders, op.data_type in INTEGERS
        gathered, result = plan.tensors[view.g.gathered], plan.tensors[op.result_name]
        src = self.read_image(plan, gathered, width, order=read)
        weights = self._read_weights(plan, op)
        epilogue, operands = self._epilogue(plan, op, attr, width, written, fused=not is_integer)
        dst, edge = self._write_image(plan, result, width, attr, written)
        types = (gathered.desc.data_type, weights.desc.data_type, result.desc.data_type)
        sums: Sums = "f64" if op.data_type == "f64" else "f32"
        if is_integer and not _is_exact_in_f32(op, attr):
            sums = "s32"
        zero_points = [plan.tensors.get(f"{name}_zero_points") for name in ("src", "weights")]
        loop = _Loop(
            view, view.image(src), view.filter(weights), view.matrix(dst),
            [view.matrix(operand) for operand in operands], edge, epilogue, types, sums,
            zero_points,
        )  # fmt: skip
        plan.add(functools.partial(loop.step, plan.num_threads))


def _is_exact_in_f32(op: Convolution, attr: Attributes) -> bool:
    """Whether f32 represents all partial sums of 8-bit integers exactly."""
    _, _, ic, *kernel = op.grouped_weights
    has_zero_points = any(name != op.result_name for name in attr.zero_points)
    return not has_zero_points and ic * math.prod(kernel) * LARGEST_PRODUCT <= EXACT


@dataclass(frozen=True)
class _Loop:
    """The step that computes a depthwise convolution. Dims are in the order of the view.

    types, sums: as in `DepthwiseKernel`. zero_points: the zero points of src and weights.
    """

    view: DepthwiseView
    src: Matrix
    weights: Matrix
    dst: Matrix
    operands: Sequence[Matrix]
    edge: Any
    epilogue: Epilogue
    types: tuple[str, str, str]
    sums: Sums
    zero_points: Sequence[Tensor | None]

    def step(self, threads: int) -> Step:
        """Compile the kernels and return the step."""
        view, batch, row_count = self.view, self.view.g.batch, self.view.rows
        if 0 in (batch, row_count, view.gathers[2].length):
            return Step(depthwise_loop, {}, items=0)
        lanes, width = view.isa.lanes, view.width
        vectors = -(-width // lanes)
        src_size, _, dst_size = self._sizes
        is_contiguous = (self.src.block, self.dst.block) == (src_size * lanes, dst_size * lanes)
        chunk = min(vectors, VECTORS) if is_contiguous else 1
        chunks = -(-vectors // chunk)
        items = batch * view.planes[1] * chunks
        strips = 1 if items % threads == 0 else min(row_count, STRIPS_PER_THREAD * threads)
        rows, lists = self._rows()
        operands = [*self.operands, *(Matrix(Table(row)) for row in call_rows(self.epilogue))]
        image, plane = self.dst.outer
        values = {
            **self._kernels(PLACES[src_size] if is_contiguous else 1 << 30), "lists": Table(lists),
            "rows": Table(rows), "row_count": row_count, "strips": strips, "vectors": vectors,
            "whole": width // lanes, "chunk": chunk, "chunks": chunks,
            "lanes": width % lanes, "planes": view.planes[1],
            "src": self.src.address, "src_batch": self.src.outer[0],
            "src_block": self.src.block, "weights": self.weights.address,
            "weights_plane": self.weights.outer[2], "weights_block": self.weights.block,
            "dst": self.dst.address, "dst_batch": image, "dst_plane": plane,
            "dst_block": self.dst.block, "operand_count": len(operands),
            "operands": [_operand(operand) for operand in operands], **self._zero_points(),
        }  # fmt: skip
        return Step(depthwise_loop, values, items * strips)

    def _kernels(self, places: int) -> dict[str, int]:
        """Return the addresses of kernels.

        They are for whole vectors, for the last vector, and for whole vectors with non-temporal
        stores.
        """
        view, row = self.view, self.view.gathers[2]
        most = max(4, view.isa.rows[1] - max(0, row.taps - 3))
        if view.channels > 1:
            most = min(most, PIXELS_OF_GROUPS)
        most = min(most, (max(0, places - row.span) // row.advance + 1) * row.period)
        kernel = DepthwiseKernel(
            view.isa, row.tiles(most), self.src.spatial[2], self.dst.row, self.weights.row,
            view.channels, self.weights.outer[1], ahead=self._ahead(),
            epilogue=with_fixed(self.epilogue, [operand.row == 0 for operand in self.operands]),
            types=self.types, sums=self.sums, zero_points=self._zero_types,
        )  # fmt: skip
        partial = dataclasses.replace(kernel, edge=self.edge)
        whole, lanes = divmod(view.width, view.isa.lanes)
        streamed = dataclasses.replace(kernel, streamed=True)
        return {
            "kernel": kernel.address if whole else 0,
            "last_kernel": partial.address if lanes else 0,
            "stream_kernel": streamed.address if whole and self._streams() else 0,
        }

    @property
    def _zero_types(self) -> tuple[str, str]:
        """The types of the zero points of src and weights; "" without one."""
        src, weights = (own.desc.data_type if own else "" for own in self.zero_points)
        return src, weights

    def _zero_points(self) -> dict[str, Param]:
        names = ("src_zero_point", "weights_zero_point")
        return {
            name: own.address if own else 0
            for name, own in zip(names, self.zero_points, strict=True)
        }

    @property
    def _sizes(self) -> list[int]:
        """The sizes of elements of src, weights and dst in bytes."""
        return [vir.bytes_of(STORED[data_type]) for data_type in self.types]

    @property
    def _src_bytes(self) -> int:
        g = self.view.g
        pixels = g.batch * math.prod(g.dst if g.backward else g.src)
        return self._sizes[0] * pixels * g.groups * g.depth

    def _streams(self) -> bool:
        """Whether dst uses non-temporal stores because src and dst are larger than the caches."""
        view = self.view
        pixels = view.g.batch * view.rows * view.gathers[2].length
        written = pixels * view.planes[1] * view.width
        steps = (*self.dst.outer, *self.dst.spatial, self.dst.block)
        size = self._sizes[2]
        in_lines = size * view.isa.lanes == LINE and not any(step % LINE for step in steps)
        return in_lines and self._src_bytes + size * written >= STREAM_BYTES

    def _rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the tables of rows and of lists; see `DepthwiseKernel`."""
        depth, height, _ = self.view.gathers
        plane = self.src.outer[1], self.weights.outer[0]
        lists: list[dict[str, int]] = []
        known: dict[Any, tuple[int, int]] = {}
        rows, last = [], []
        for z in range(depth.length):
            for y in range(height.length):
                key = depth.inside(z), height.inside(y)
                if key not in known:
                    found = [
                        {
                            "src": p * plane[0] + dot(self.src.spatial, (at_z, at_y)),
                            "weights": p * plane[1] + dot(self.weights.planes, (tap_z, tap_y)),
                        }
                        for p in range(self.view.planes[0])
                        for tap_z, at_z in key[0]
                        for tap_y, at_y in key[1]
                    ]
                    known[key] = len(lists), len(found)
                    lists += found
                src = dot(self.src.spatial, (depth.origin(z), height.origin(y)))
                start, count = known[key]
                seen = [entry["src"] for entry in lists[start : start + count]]
                last.append(src + max(seen, default=0))
                rows.append({
                    "src": src, "dst": dot(self.dst.planes, (z, y)),
                    "list": PAIR.nbytes * start, "count": count, "z": z, "y": y,
                })  # fmt: skip
        ahead = [*last[1:], last[-1] + self.src.spatial[1]]
        rows = [row | {"ahead": place} for row, place in zip(rows, ahead, strict=True)]
        return ROW.table(rows), PAIR.table(lists)

    def _ahead(self) -> tuple[int, ...]:
        """Return the rows of a large input to prefetch: the next row reads them, this one does not.

        Rows are too short for the hardware prefetcher (measured).
        """
        if self._src_bytes < AHEAD_BYTES[self._sizes[0]]:
            return ()
        height = self.view.gathers[1]
        return tuple(-row * self.src.spatial[1] for row in range(min(height.advance, height.span)))


def _operand(operand: Matrix) -> dict[str, Any]:
    """Return the values of the operand's `task.MATRIX` record."""
    batch, plane = operand.outer or (0, 0)
    z, y = operand.planes or (0, 0)
    strides = {"batch": batch, "plane": plane, "block": operand.block}
    return {"address": operand.address, **strides, "x": operand.row, "z": z, "y": y}
