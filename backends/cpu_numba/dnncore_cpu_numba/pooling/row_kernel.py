"""The pooling kernel of whole rows of results. The taps along w are compiled in.

A row is divided into tiles. The *pattern* of a tile lists the taps of each of its results: the
place along w that a tap reads, relative to the tile, and the tap's number along w. Tiles at the
borders have patterns of their own. A place that several results of a tile read is loaded once.

Maxima without an index and sums fold the *places* over d and h first, and then combine the places
of each result. So results share the folds of their places. The other folds add every tap to each
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.pooling.folding import Folding, Point
from dnncore_cpu_numba.pooling.kernel import FIELDS, TILE, PoolingKernel, overlapping

Pattern: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]
"""For each result of a tile, its taps: the place that a tap reads, and its number."""


@dataclass(frozen=True)
class RowKernel(PoolingKernel):
    """A class of kernels of rows.

    patterns: of the tiles. The table `tiles` has the tiles of each pattern in this order.
    even: whether all sums have one divisor.
    fetches: prefetch a in software. Its rows are too short and too many for the hardware
    prefetcher (measured: 2.5 times as fast on 51 MB).
    """

    patterns: tuple[Pattern, ...] = ()
    even: bool = True
    fetches: bool = False

    @property
    def shares_places(self) -> bool:
        """Whether places are folded before results."""
        return shares_places(self)

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args["fields"]).emit()


def shares_places(kernel: PoolingKernel) -> bool:
    """Whether results of such a kernel can share the folds of their places."""
    return kernel.fold != "winners" and not kernel.keeps_taps


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: RowKernel, builder: ir.IRBuilder, block: Value) -> None:
        self.kernel, self.builder = kernel, builder
        self.fields = vir.fields(builder, vir.address(builder, block), FIELDS)
        self.folding = Folding(kernel, builder, self.fields)

    def emit(self) -> None:
        """Emit loops over lines, patterns, tiles and columns."""
        builder, fields = self.builder, self.fields

        def line(number: Value, _: Sequence[Value]) -> list[Value]:
            row = {name: builder.add(fields[name], builder.mul(number, fields[f"{name}_line"]))
                   for name in self.kernel.sizes}  # fmt: skip
            tiles = vir.address(builder, fields["tiles"])
            for pattern in self.kernel.patterns:
                tiles = self._tiles(tiles, row, pattern)
            return []

        vir.loop(builder, fields["lines"], [], line)

    def _tiles(self, tiles: Value, row: dict[str, Value], pattern: Pattern) -> Value:
        """Compute the tiles with a pattern in a row. Returns a pointer to the next tiles."""
        builder, fields, sizes = self.builder, self.fields, self.kernel.sizes

        def tile(_: Value, inside: Sequence[Value]) -> list[Value]:
            first = {name: builder.add(row[name], vir.field(builder, inside[0], TILE, name))
                     for name in sizes}  # fmt: skip

            def vector(column: Value) -> None:
                places = {
                    name: vir.address(builder, builder.add(place, builder.mul(column, I64(size))))
                    for (name, place), size in zip(first.items(), sizes.values(), strict=True)
                }
                self._tile(places, pattern)

            overlapping(builder, fields["columns"], self.kernel.lanes, vector)
            return [vir.at(builder, inside[0], TILE.nbytes)]

        count = vir.field(builder, tiles, TILE, "count")
        return vir.loop(builder, count, [tiles], tile)[0]

    def _tile(self, places: dict[str, Value], pattern: Pattern) -> None:
        """Compute a tile. If maxima may have met a NaN, fold the points again."""
        builder, kernel, folding = self.builder, self.kernel, self.folding
        if kernel.fetches:
            self._prefetch(places["a"], pattern)
        fold = self._shared if kernel.shares_places else self._separate
        points, sound = fold(places, pattern)
        if not kernel.heeds_nan:
            self._finish(points, places, pattern)
            return
        doubtful = folding.is_doubtful(sound)
        with builder.if_else(doubtful, likely=False) as (again, usual):
            with again:
                precise, _ = self._separate(places, pattern, heed_nan=True)
                self._finish(precise, places, pattern)
            with usual:
                self._finish(points, places, pattern)

    def _prefetch(self, a: Value, pattern: Pattern) -> None:
        """Prefetch the rows that the next line of results reads and this line does not."""
        builder, fields = self.builder, self.fields
        start = vir.at(builder, a, fields["ahead"])

        def row(index: Value, _: Sequence[Value]) -> list[Value]:
            first = vir.at(builder, start, builder.mul(index, fields["a_h"]))
            for place in _places(pattern):
                vir.prefetch(builder, vir.multiple(builder, first, fields["a_w"], place))
            return []

        vir.loop(builder, fields["ahead_rows"], [], row)

    def _shared(
        self, places: dict[str, Value], pattern: Pattern
    ) -> tuple[list[Point], Value | None]:
        """Fold places, then results. Returns the results, and whether no value is NaN."""
        folding, columns = self.folding, _places(pattern)

        def row(a: Value, b: Value, _: Value, kept: Sequence[Value]) -> list[Value]:
            cells = [folding.cell(*self._cell(a, b, place)) for place in columns]
            points = folding.points(kept[sound:], len(columns))
            state = [folding.still_sound(kept[0], cells)] if sound else []
            for point, cell in zip(points, cells, strict=True):
                state += folding.folded(point, cell, None, heed_nan=False).values
            return state

        sound = int(self.kernel.heeds_nan)
        state = [folding.sound()][:sound]
        state += folding.start().values * len(columns)
        kept = self._box("dh", places, state, row)
        found = dict(zip(columns, folding.points(kept[sound:], len(columns)), strict=True))
        results = []
        for taps in pattern:
            result = found[taps[0][0]] if taps else folding.start()
            for place, _ in taps[1:]:
                result = folding.joined(result, found[place], heed_nan=False)
            results.append(result)
        return results, kept[0] if sound else None

    def _separate(
        self, places: dict[str, Value], pattern: Pattern, *, heed_nan: bool = False
    ) -> tuple[list[Point], Value | None]:
        """Fold every tap into its result. Returns the results, and whether no value is NaN."""
        builder, folding, fields = self.builder, self.folding, self.fields
        columns = _places(pattern)
        has_taps = self.kernel.keeps_taps or self.kernel.fold == "winners"

        def numbered(tap: Value, number: int) -> Value | None:
            if not has_taps:
                return None
            return builder.add(folding.splat(tap), vir.constant(folding.taps, number))

        def row(a: Value, b: Value, tap: Value, kept: Sequence[Value]) -> list[Value]:
            points = folding.points(kept[sound:], len(pattern))
            numbers = {number: numbered(tap, number) for taps in pattern for _, number in taps}
            cells = []
            for place in columns:
                cells.append(folding.cell(*self._cell(a, b, place)))
                for i, taps in enumerate(pattern):
                    for number in (number for at, number in taps if at == place):
                        points[i] = folding.folded(
                            points[i], cells[-1], numbers[number], heed_nan=heed_nan
                        )
            state = [folding.still_sound(kept[0], cells)] if sound else []
            return state + [value for point in points for value in point.values]

        sound = int(self.kernel.heeds_nan and not heed_nan)
        state = [folding.sound()][:sound]
        for taps in pattern:
            state += folding.start(numbered(fields["tap"], taps[0][1] if taps else 0)).values
        kept = self._box("dh", places, state, row)
        return folding.points(kept[sound:], len(pattern)), kept[0] if sound else None

    def _cell(self, a: Value, b: Value, place: int) -> tuple[Value, Value]:
        """The addresses of a place in a and b."""
        builder, fields = self.builder, self.fields
        return (
            vir.multiple(builder, a, fields["a_w"], place),
            vir.multiple(builder, b, fields["b_w"], place),
        )

    def _box(
        self, dims: str, places: dict[str, Value], state: Sequence[Value],
        row: Callable[[Value, Value, Value, Sequence[Value]], list[Value]],
    ) -> list[Value]:  # fmt: skip
        """Emit loops over d and h around `row`, which maps a, b, the tap and a state to a state."""
        builder, fields = self.builder, self.fields

        def loops(dims: str, state: Sequence[Value]) -> list[Value]:
            if not dims:
                return [*state[:3], *row(*state[:3], state[3:])]

            def turn(_: Value, inside: Sequence[Value]) -> list[Value]:
                kept = loops(dims[1:], inside)[3:]
                a = vir.at(builder, inside[0], fields[f"a_{dims[0]}"])
                b = vir.at(builder, inside[1], fields[f"b_{dims[0]}"])
                return [a, b, builder.add(inside[2], fields[f"tap_{dims[0]}"]), *kept]

            return vir.loop(builder, fields[dims[0]], state, turn)

        return loops(dims, [places["a"], places["b"], fields["tap"], *state])[3:]

    def _finish(self, points: Sequence[Point], places: dict[str, Value], pattern: Pattern) -> None:
        """Store the results of a tile."""
        builder, fields = self.builder, self.fields
        for i, (point, taps) in enumerate(zip(points, pattern, strict=True)):
            result = vir.multiple(builder, places["result"], fields["result_step"], i)
            b = vir.multiple(builder, places["b"], fields["b_step"], i)
            self.folding.finish(point, result, b, 1 if self.kernel.even else len(taps))


def _places(pattern: Pattern) -> list[int]:
    """The places that a tile reads, in ascending order."""
    return sorted({place for taps in pattern for place, _ in taps})
