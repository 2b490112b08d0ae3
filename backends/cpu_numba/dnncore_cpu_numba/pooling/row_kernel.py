"""The pooling kernel of whole rows of results. The taps along w are compiled in.

A row is divided into tiles. The *pattern* of a tile lists the taps of each of its results: the
place along w that a tap reads, relative to the tile, and the tap's number along w. Tiles at the
borders have patterns of their own. A place that several results of a tile read is loaded once.

Maxima without an index and sums fold the *places* over d and h first, and then combine the places
of each result. So results share the folds of their places. The other folds, and windows that do not
overlap, add every tap to its result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import I64, Value
from dnncore_cpu_numba.pooling.folding import Cell, Folding, Point
from dnncore_cpu_numba.pooling.kernel import FIELDS, TILE, PoolingKernel, overlapping

Pattern: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]
"""For each result of a tile, its taps: the place that a tap reads, and its number."""
_FEW = 4  # results with fewer chains than an addition has cycles
_ROWS = 3  # of a usual window


@dataclass(frozen=True)
class RowKernel(PoolingKernel):
    """A class of kernels of rows.

    vectors: of contiguous columns in a tile. Contiguous reads suit the processor's prefetcher.
    patterns: of the tiles. The table `tiles` has the tiles of each pattern in this order.
    even: whether all sums have one divisor.
    fetches: prefetch a in software, if its rows are too short and too many for the hardware
    prefetcher (measured: 1.1 to 2.5 times as fast on 51 MB). With several vectors it is slower.
    """

    patterns: tuple[Pattern, ...] = ()
    vectors: int = 1
    even: bool = True
    fetches: bool = False

    @property
    def width(self) -> int:
        """The columns of a tile."""
        return self.lanes * self.vectors

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args["fields"]).emit()


def shares_places(kernel: PoolingKernel, pattern: Pattern, vectors: int) -> bool:
    """Whether a tile folds places before results.

    For windows of three rows, this must be less work. If results are few, it has more independent
    chains of operations.
    """
    if kernel.fold == "winners" or kernel.keeps_taps:
        return False
    results, taps = len(pattern), sum(map(len, pattern))
    shared = _ROWS * len(places_of(pattern)) + taps - results
    return shared < _ROWS * taps or results * vectors < _FEW


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: RowKernel, builder: ir.IRBuilder, block: Value) -> None:
        self.kernel, self.builder = kernel, builder
        self.fields = vir.fields(builder, vir.address(builder, block), FIELDS)
        self.folding = Folding(kernel, builder, self.fields)
        self.has_taps = kernel.keeps_taps or kernel.fold == "winners"
        names = ("tap", "tap_d", "tap_h") if self.has_taps else ()
        self.taps = {name: self.folding.splat(self.fields[name]) for name in names}

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

            def vectors(column: Value) -> None:
                places = {
                    name: vir.address(builder, builder.add(place, builder.mul(column, I64(size))))
                    for (name, place), size in zip(first.items(), sizes.values(), strict=True)
                }
                self._tile(places, pattern)

            overlapping(builder, fields["columns"], self.kernel.width, vectors)
            return [vir.at(builder, inside[0], TILE.nbytes)]

        count = vir.field(builder, tiles, TILE, "count")
        return vir.loop(builder, count, [tiles], tile)[0]

    def _tile(self, places: dict[str, Value], pattern: Pattern) -> None:
        """Compute a tile. If maxima may have met a NaN, fold the points again."""
        builder, kernel, folding = self.builder, self.kernel, self.folding
        if kernel.fetches:
            self._prefetch(places["a"], pattern)
        fold = self._shared if shares_places(kernel, pattern, kernel.vectors) else self._separate
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
            for place in places_of(pattern):
                pixel = vir.multiple(builder, first, fields["a_w"], place)
                for vector in range(self.kernel.vectors):
                    step = self.kernel.lanes * self.kernel.sizes["a"]
                    vir.prefetch(builder, vir.at(builder, pixel, vector * step))
            return []

        vir.loop(builder, fields["ahead_rows"], [], row)

    def _shared(
        self, places: dict[str, Value], pattern: Pattern
    ) -> tuple[list[Point], Value | None]:
        """Fold places, then results. Returns the results, and whether no value is NaN."""
        folding, vectors = self.folding, range(self.kernel.vectors)
        columns = list(itertools.product(places_of(pattern), vectors))

        def row(a: Value, b: Value, _: Value | None, kept: Sequence[Value]) -> list[Value]:
            cells = [self._cell(a, b, *column) for column in columns]
            points = folding.points(kept[sound:], len(columns))
            state = [folding.still_sound(kept[0], cells)] if sound else []
            for point, cell in zip(points, cells, strict=True):
                state += folding.folded(point, cell, None, heed_nan=False).values
            return state

        sound = int(self.kernel.heeds_nan)
        state = [folding.sound()][:sound]
        state += folding.start().values * len(columns)
        kept = self._box(places, state, row)
        found = dict(zip(columns, folding.points(kept[sound:], len(columns)), strict=True))
        results = []
        for taps, vector in itertools.product(pattern, vectors):
            result = found[taps[0][0], vector] if taps else folding.start()
            for place, _ in taps[1:]:
                result = folding.joined(result, found[place, vector], heed_nan=False)
            results.append(result)
        return results, kept[0] if sound else None

    def _separate(
        self, places: dict[str, Value], pattern: Pattern, *, heed_nan: bool = False
    ) -> tuple[list[Point], Value | None]:
        """Fold every tap into its result. Returns the results, and whether no value is NaN."""
        folding, vectors = self.folding, range(self.kernel.vectors)
        results = list(itertools.product(pattern, vectors))

        def numbered(tap: Value | None, number: int) -> Value | None:
            if tap is None:
                return None
            return self.builder.add(tap, vir.constant(folding.taps, number))

        def row(a: Value, b: Value, tap: Value | None, kept: Sequence[Value]) -> list[Value]:
            points = folding.points(kept[sound:], len(results))
            numbers = {number: numbered(tap, number) for taps in pattern for _, number in taps}
            cells = []
            for place, vector in itertools.product(places_of(pattern), vectors):
                cell = self._cell(a, b, place, vector)
                cells.append(cell)
                for i, (taps, own) in enumerate(results):
                    for number in (n for at, n in taps if (at, own) == (place, vector)):
                        points[i] = folding.folded(
                            points[i], cell, numbers[number], heed_nan=heed_nan
                        )
            state = [folding.still_sound(kept[0], cells)] if sound else []
            return state + [value for point in points for value in point.values]

        sound = int(self.kernel.heeds_nan and not heed_nan)
        state = [folding.sound()][:sound]
        for taps, _ in results:
            first = numbered(self.taps.get("tap"), taps[0][1] if taps else 0)
            state += folding.start(first).values
        kept = self._box(places, state, row)
        return folding.points(kept[sound:], len(results)), kept[0] if sound else None

    def _cell(self, a: Value, b: Value, place: int, vector: int) -> Cell:
        """Load a vector of the cells at a place."""
        builder, fields, kernel = self.builder, self.fields, self.kernel
        a = vir.multiple(builder, a, fields["a_w"], place)
        b = vir.multiple(builder, b, fields["b_w"], place)
        first = vector * kernel.lanes
        return self.folding.cell(
            vir.at(builder, a, first * kernel.sizes["a"]),
            vir.at(builder, b, first * kernel.sizes["b"]),
        )

    def _box(
        self, places: dict[str, Value], state: Sequence[Value],
        row: Callable[[Value, Value, Value | None, Sequence[Value]], list[Value]],
    ) -> list[Value]:  # fmt: skip
        """Emit loops over d and h around `row`, which maps a, b, the tap and a state to a state."""
        builder, fields = self.builder, self.fields
        kept = 2 + self.has_taps

        def loops(dims: str, state: Sequence[Value]) -> list[Value]:
            a, b, tap = state[0], state[1], state[2] if self.has_taps else None
            if not dims:
                return [*state[:kept], *row(a, b, tap, state[kept:])]

            def turn(_: Value, inside: Sequence[Value]) -> list[Value]:
                dim, after = dims[0], loops(dims[1:], inside)[kept:]
                moved = [vir.at(builder, inside[0], fields[f"a_{dim}"]),
                         vir.at(builder, inside[1], fields[f"b_{dim}"])]  # fmt: skip
                if self.has_taps:
                    moved.append(builder.add(inside[2], self.taps[f"tap_{dim}"]))
                return [*moved, *after]

            return vir.loop(builder, fields[dims[0]], state, turn)

        taps = [self.taps["tap"]] if self.has_taps else []
        return loops("dh", [places["a"], places["b"], *taps, *state])[kept:]

    def _finish(self, points: Sequence[Point], places: dict[str, Value], pattern: Pattern) -> None:
        """Store the results of a tile."""
        builder, kernel = self.builder, self.kernel
        for n, point in enumerate(points):
            i, vector = divmod(n, kernel.vectors)
            at = {}
            for name in ("result", "b"):
                at[name] = vir.multiple(builder, places[name], self.fields[f"{name}_step"], i)
                at[name] = vir.at(builder, at[name], vector * kernel.lanes * kernel.sizes[name])
            taps = 1 if kernel.even else len(pattern[i])
            self.folding.finish(point, at["result"], at["b"], taps)


def places_of(pattern: Pattern) -> list[int]:
    """The places that a tile reads, in ascending order."""
    return sorted({place for taps in pattern for place, _ in taps})
