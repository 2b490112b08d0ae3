"""The pooling kernel of results that all have the same taps, in boxes of any width.

A tile has several vectors of results. The last tile of points overlaps the tile before it, so that
all tiles are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.pooling.folding import Folding, Point
from dnncore_cpu_numba.pooling.kernel import FIELDS, PoolingKernel, overlapping


@dataclass(frozen=True)
class BoxKernel(PoolingKernel):
    """A class of kernels of boxes.

    along: whether the vectors of a tile are contiguous along the columns, or belong to
    neighbouring points.
    """

    along: Literal["columns", "points"] = "points"

    @property
    def tile(self) -> int:
        """The number of vectors of a tile. Their state should fit into half of the registers.

        Four vectors of contiguous columns are faster than eight of points that are far apart
        (measured).
        """
        few = self.along == "columns" or self.keeps_taps
        registers = 32 if self.has_masks else 16
        return registers // 8 if few else registers // 4

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args["fields"]).emit()


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: BoxKernel, builder: ir.IRBuilder, block: Value) -> None:
        self.kernel, self.builder = kernel, builder
        self.fields = vir.fields(builder, vir.address(builder, block), FIELDS)
        self.folding = Folding(kernel, builder, self.fields)

    def emit(self) -> None:
        """Emit loops over columns and points in the order that fits the tile."""
        kernel, fields, builder = self.kernel, self.fields, self.builder

        def columns(line: Value) -> None:
            width = kernel.tile * kernel.lanes
            overlapping(builder, fields["count"], 1, lambda point: overlapping(
                builder, fields["columns"], width,
                lambda column: self._tile(line, point, column, kernel.tile)))  # fmt: skip

        def points(column: Value, line: Value) -> None:
            enough = builder.icmp_signed(">=", fields["count"], I64(kernel.tile))
            with builder.if_else(enough) as (tiles, singles):
                for way, size in ((tiles, kernel.tile), (singles, 1)):
                    with way:
                        overlapping(builder, fields["count"], size, lambda point, size=size:
                                    self._tile(line, point, column, size))  # fmt: skip

        if kernel.along == "columns":
            overlapping(builder, fields["lines"], 1, columns)
        else:
            overlapping(builder, fields["columns"], kernel.lanes, lambda column: overlapping(
                builder, fields["lines"], 1, lambda line: points(column, line)))  # fmt: skip

    def _tile(self, line: Value, point: Value, column: Value, size: int) -> None:
        """Fold the `size` vectors of a tile that begins at a point and a column of a line."""
        builder, fields = self.builder, self.fields
        places = {}
        for name, nbytes in self.kernel.sizes.items():
            place = builder.add(fields[name], builder.mul(point, fields[f"{name}_step"]))
            place = builder.add(place, builder.mul(line, fields[f"{name}_line"]))
            place = builder.add(place, builder.mul(column, I64(nbytes)))
            places[name] = vir.address(builder, place)
        if size == 1 or not self.kernel.heeds_nan:
            self._finish(self._folded(places, size)[0], places)
        else:
            self._checked(places, size)

    def _checked(self, places: dict[str, Value], size: int) -> None:
        """Fold and store a tile. If maxima may have met a NaN, fold the points one by one."""
        builder = self.builder
        points, sound = self._folded(places, size)
        doubtful = self.folding.is_doubtful(sound)
        with builder.if_else(doubtful, likely=False) as (one_by_one, all_at_once):
            with one_by_one:
                overlapping(builder, I64(size), 1, lambda i: self._single(places, i))
            with all_at_once:
                self._finish(points, places)

    def _single(self, places: dict[str, Value], i: Value) -> None:
        """Fold one point of a tile."""
        builder, moved = self.builder, {}
        for name, place in places.items():
            step = self.fields[f"{name}_step"]
            if self.kernel.along == "columns":
                step = I64(self.kernel.lanes * self.kernel.sizes[name])
            moved[name] = vir.at(builder, place, builder.mul(i, step))
        self._finish(self._folded(moved, 1)[0], moved)

    def _folded(self, places: dict[str, Value], size: int) -> tuple[list[Point], Value | None]:
        """Fold points over the whole box. Returns them, and whether no value is NaN.

        The fold of a single point propagates NaN.
        """
        folding, fields = self.folding, self.fields
        sound = int(self.kernel.heeds_nan and size > 1)
        tap = folding.splat(fields["tap"]) if self.kernel.keeps_taps else None
        state = [places["a"], places["b"], fields["tap"], *[folding.sound()][:sound]]
        state += folding.start(tap).values * size
        kept = self._box("dhw", state, size, sound)[3:]
        return folding.points(kept[sound:], size), kept[0] if sound else None

    def _box(self, dims: str, state: Sequence[Value], size: int, sound: int) -> list[Value]:
        """Emit loops over the box of taps.

        The state is a, b, the tap, whether no value is NaN if `sound` is 1, and the points' values.
        """
        builder, fields = self.builder, self.fields
        if not dims:
            return self._tap(state, size, sound)

        def turn(_: Value, inside: Sequence[Value]) -> list[Value]:
            kept = self._box(dims[1:], inside, size, sound)[3:]
            a = vir.at(builder, inside[0], fields[f"a_{dims[0]}"])
            b = vir.at(builder, inside[1], fields[f"b_{dims[0]}"])
            return [a, b, builder.add(inside[2], fields[f"tap_{dims[0]}"]), *kept]

        return vir.loop(builder, fields[dims[0]], state, turn)

    def _tap(self, state: Sequence[Value], size: int, sound: int) -> list[Value]:
        """Fold one tap into all points."""
        folding, kernel = self.folding, self.kernel
        a, b, tap = state[:3]
        has_taps = kernel.keeps_taps or kernel.fold == "winners"
        number = folding.splat(tap) if has_taps else None
        cells = [folding.cell(self._at("a", a, i), self._at("b", b, i)) for i in range(size)]
        kept = [folding.still_sound(state[3], cells)] if sound else []
        for point, cell in zip(folding.points(state[3 + sound :], size), cells, strict=True):
            kept += folding.folded(point, cell, number, heed_nan=size == 1).values
        return [a, b, tap, *kept]

    def _finish(self, points: Sequence[Point], places: dict[str, Value]) -> None:
        """Store the results of a tile."""
        for i, point in enumerate(points):
            result, b = (self._at(name, places[name], i) for name in ("result", "b"))
            self.folding.finish(point, result, b)

    def _at(self, name: str, pointer: Value, i: int) -> Value:
        """The address of the i-th vector of a tile."""
        kernel = self.kernel
        if kernel.along == "columns":
            step = 0 if name == "b" and kernel.fold == "shares" else kernel.sizes[name]
            return vir.at(self.builder, pointer, step * kernel.lanes * i)
        return vir.multiple(self.builder, pointer, self.fields[f"{name}_step"], i)
