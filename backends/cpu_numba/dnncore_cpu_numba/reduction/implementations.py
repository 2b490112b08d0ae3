"""Reduction: assigns rows of src to results, and divides the work into parts.

If src's innermost dim is kept, rows of results are reduced place by place. If it is reduced, single
results are reduced from rows of src. If there are few results, each one is reduced in parts. The
outcomes of the parts are stored in the scratchpad, and a second step reduces them. The number of
parts depends only on the problem, not on the thread count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dnncore.backend import Accepted, Attributes, Implementation, Reduction, Refused, data_type
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import held_of, offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.reduction.tasks import (
    COLUMNS,
    FINISHES,
    FOLDS,
    LANES,
    ReductionFold,
    fold_of,
)
from dnncore_cpu_numba.runtime.program import Arg, Param, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

SRC_ARG, DST_ARG = Arg(0), Arg(1)
DST, SRC = 0, 1  # tensor numbers in nests
_SHORT = 64  # elements; a call per row is too slow for shorter rows
_FEW = 16  # elements; shorter rows do not fill a vector
_LONG = 1 << 14  # most elements of a row that is folded at once if there are few results
_WIDE = 512  # most elements of a row that consists of short rows
_PARTS = 64  # least work items if there is enough work
_PART = 1 << 15  # least elements of a part if there are several
_GRAIN = 4096  # least elements of a thread's part
_ALIGNMENT = 64  # bytes


class ReductionImplementation(Implementation[Reduction]):
    """Reduction of rows into accumulators in the first-level cache."""

    name = "cpu_numba:simd"
    data_types = ("f64", *FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: Reduction, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops."""
        if op.algorithm not in FINISHES:
            return Refused("algorithm", f"has no algorithm {op.algorithm!r}")
        op = op.resolve_any(dst=op.src)
        if refusal := refuse_post_ops(op, attr):
            return refusal
        folds, nbytes = plan(op) if op.src.nelems else ([], 0)

        def steps(result: Tensor) -> list[Step]:
            if not op.src.nelems:  # a sum of no terms: x < x is 0, also for NaN
                return chain_steps(op.dst.dims, [result, result], [binary("lt", 1)], held_of(op))
            return [step for fold in folds for step in fold.steps(op, result)]

        return offered(op, attr, engine, steps, nbytes, efficiency=0.6, exact=_is_exact(op))


def _is_exact(op: Reduction) -> bool:
    """Whether integers are reduced without rounding: no products, powers or roots but squares."""
    plain = op.algorithm in ("max", "min", "sum", "mean")
    return plain or (op.is_norm and (op.p == 1 or (op.p == 2 and "power_p" in op.algorithm)))


@dataclass(frozen=True)
class _Piece:
    """Places of src that are folded into a nest of results.

    results: a nest over (target, src). places: a nest over src for one result, relative to its
    first place.
    way: see `tasks.py`. For lanes and rows, the innermost loop of places is folded at once.
    beside: the number of separate outcomes per part, which makes short rows longer. The outermost
    loop of results runs over them.
    """

    results: Nest
    places: Nest
    way: Literal["columns", "rows", "lanes"]
    beside: int = 1

    @property
    def outcomes(self) -> int:
        """The number of outcomes per result."""
        return self.parts * self.beside

    @property
    def steps(self) -> int:
        """The number of rows that are folded into one result or one row of results."""
        return self.places.size if self.way == "columns" else self.places.without(1).size

    @property
    def width(self) -> int:
        """The most results of a row."""
        if self.way == "lanes":
            return 1
        length = self.places.size // self.steps
        return min(COLUMNS, max(1, _LONG // length))

    @property
    def parts(self) -> int:
        """The number of parts that the steps are divided into."""
        items = -(-self.results.size // self.width)
        work = self.results.size * self.places.size // _PART
        parts = max(1, min(self.steps, -(-_PARTS // items), work))
        return -(-self.steps // -(-self.steps // parts))  # equal lengths except the last part


@dataclass(frozen=True)
class _Fold:
    """The fold of a piece into dst or into outcomes in the scratchpad.

    source: src, or outcomes in the scratchpad. part_bytes: bytes of the outcomes of one part.
    """

    piece: _Piece
    target: Arg | Scratch
    source: Arg | Scratch = SRC_ARG
    part_bytes: int = 0

    def steps(self, op: Reduction, result: Tensor, src: Param = SRC_ARG) -> Iterator[Step]:
        """Yield the steps. Compiles their functions. result: the tensor in place of dst.

        src: the address of src.
        """
        piece, again = self.piece, isinstance(self.source, Scratch)
        mapped, plain = _rules(op)
        rule = plain if again else mapped
        source = self.source if again else src
        target: Param = self.target
        held = kind = held_of(op)
        finish = 0
        if target == DST_ARG:
            target, kind = result.address, result.desc.data_type
            finish = FINISHES[op.algorithm]
        size = data_type(kind).itemsize
        source_size = data_type(held).itemsize if again else op.src.itemsize
        parts = 1 if again else piece.parts
        per_part = -(-piece.steps // parts)
        places = piece.places if piece.way == "columns" else piece.places.without(1)
        folded = Loop(1, (0,)) if piece.way == "columns" else piece.places.loops[-1]
        for part in [piece.results] if piece.way == "lanes" else piece.results.rows(piece.width):
            if piece.way == "lanes":
                outer, row = part, Loop(1, (1, *folded.strides))
                width, count = LANES, folded.extent
            else:
                outer, row = part.without(1), part.loops[-1]
                width = count = row.extent
            values = {
                "results": outer.table([size, source_size]),
                "places": places.table([source_size]), "steps": piece.steps,
                "parts": parts, "per_part": per_part, "in_lanes": piece.way == "lanes",
                "in_rows": piece.way == "rows", "src_row": source_size * row.strides[SRC],
                "width": width, "length": count, "src_stride": row.strides[SRC],
                "dst_stride": row.strides[DST], "function": getattr(rule, piece.way).address,
                "merge": plain.columns.address, **_numbers(op, rule.start),
                "finish": finish, "part_bytes": self.part_bytes, "row": folded.extent,
                "dst_size": size, "store": conversion(held, kind),
                "starts": {
                    "dst": moved(target, size * part.offsets[DST]),
                    "source": {"src": moved(source, source_size * part.offsets[SRC])},
                },
            }  # fmt: skip
            grain = -(-_GRAIN // (per_part * row.extent * folded.extent))
            yield Step(FOLDS[held], values, outer.size * parts, grain=grain)


def _numbers(op: Reduction, start: float) -> dict[str, Any]:
    """Return the numbers of a fold, as f32 and as f64."""
    divisor = op.src.nelems / op.dst.nelems
    values = {"start": start, "power": op.p, "divisor": divisor, "eps": op.eps}
    wide = {f"wide_{name}": np.float64(value).view(np.int64) for name, value in values.items()}
    return values | wide


def plan(op: Reduction, start: int = 0) -> tuple[list[_Fold], int]:
    """Return the folds of a reduction, and the bytes of scratchpad that they use from `start`."""
    folds: list[_Fold] = []
    nbytes = 0
    for pieces in _pieces(op):
        if [piece.outcomes for piece in pieces] == [1]:
            folds.append(_Fold(pieces[0], DST_ARG))
        else:
            in_parts, size = _in_parts(pieces, start + nbytes, data_type(held_of(op)).itemsize)
            folds += in_parts
            nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
    return folds, nbytes


def _in_parts(pieces: Sequence[_Piece], start: int, size: int) -> tuple[list[_Fold], int]:
    """Return folds through the scratchpad, and the bytes of outcomes.

    start: of the outcomes in the scratchpad. size: bytes of an outcome.
    The pieces are folded into rows of outcomes, one per part. The last fold reduces the outcomes.
    """
    results = pieces[0].results
    if pieces[0].beside > 1:
        results = Nest(results.offsets, results.loops[1:])
    nbytes, count = size * results.size, 0
    folds: list[_Fold] = []
    for piece in pieces:
        dense = _dense(piece.results)
        if piece.beside > 1:
            dense = dense.ordered(SRC)  # joins neighbouring short rows
        target = Scratch(start + nbytes * count)
        dense_piece = replace(piece, results=dense)
        folds.append(_Fold(dense_piece, target, part_bytes=nbytes * piece.beside))
        count += piece.outcomes
    loops = tuple(
        Loop(a.extent, (a.strides[DST], b.strides[DST]))
        for a, b in zip(results.loops, _dense(results).loops, strict=True)
    )
    places = Nest((0,), (Loop(count, (results.size,)),))
    merged = Nest((results.offsets[DST], 0), loops)
    piece = _Piece(merged, places, "columns" if loops else "lanes")
    return [*folds, _Fold(piece, DST_ARG, Scratch(start))], nbytes * count


def _pieces(op: Reduction) -> list[list[_Piece]]:
    """Return the pieces of src that are folded into the same results, for each part of dst."""
    found: dict[int, list[_Piece]] = {}
    quick = _rules(op)[0].rows is not None
    for nest in nests(op.src.dims, (op.dst.with_offset0(0), op.src)):
        kept = tuple(loop for loop in nest.loops if loop.strides[DST])
        rest = [Loop(x.extent, x.strides[SRC:]) for x in nest.loops if not x.strides[DST]]
        results = Nest(nest.offsets, kept).ordered(SRC)
        places = Nest((0,), tuple(rest)).ordered()
        found.setdefault(nest.offsets[DST], []).extend(_rows(results, places, quick=quick))
    return list(found.values())


def _rows(results: Nest, places: Nest, *, quick: bool) -> Iterator[_Piece]:
    """Yield pieces: choose the rows, and split rows that are too long for one thread.

    quick: whether `SumsKernel` has the algorithm.
    """
    row = places.loops[-1] if places.loops else Loop(1, (0,))
    inner = results.loops[-1].strides[SRC] if results.loops else row.strides[0]
    across = inner < row.strides[0]
    if quick and row.strides == (1,) and _FEW <= row.extent < _LONG and not across:
        yield _Piece(results, places, "rows")
        return
    if results.loops and (row.extent < _SHORT or across):
        yield from _widened(results, places)
        return
    places = Nest(places.offsets, places.loops or (row,))
    if results.size >= _PARTS:
        yield _Piece(results, places, "lanes")
        return
    for part in places.split(len(places.loops) - 1, _LONG):
        offsets = (results.offsets[DST], results.offsets[SRC] + part.offsets[0])
        start = Nest((0,), part.loops)
        yield _Piece(Nest(offsets, results.loops), start, "lanes")


def _widened(results: Nest, places: Nest) -> Iterator[_Piece]:
    """Yield pieces that fold several short rows at a time if these are contiguous in memory."""
    width = results.size
    row = places.loops[-1] if places.loops else Loop(1, (0,))
    beside = min(row.extent, _WIDE // width)
    contiguous = len(results.loops) == 1 and results.loops[0].strides[SRC] == 1
    if not contiguous or row.strides[0] != width or beside < 2 or row.extent < _LONG // width:
        yield _Piece(results, places, "columns")
        return
    for part in places.split(len(places.loops) - 1, beside):
        offsets = (results.offsets[DST], results.offsets[SRC] + part.offsets[0])
        *outer, inner = part.loops
        loops = (Loop(inner.extent, (0, width)), *results.loops)
        yield _Piece(Nest(offsets, loops), Nest((0,), tuple(outer)), "columns", inner.extent)


def _dense(results: Nest) -> Nest:
    """Return results that are contiguous in the target, in the order of the loops."""
    loops: list[Loop] = []
    size = 1
    for loop in reversed(results.loops):
        loops.insert(0, Loop(loop.extent, (size, loop.strides[SRC])))
        size *= loop.extent
    return Nest((0, results.offsets[SRC]), tuple(loops))


def _rules(op: Reduction) -> tuple[ReductionFold, ReductionFold]:
    """Return the folds of src and of outcomes."""
    if op.is_norm:
        mapped, plain = {1.0: "sizes", 2.0: "squares"}.get(op.p, "powers"), "sum"
    else:
        mapped = plain = "sum" if op.algorithm == "mean" else op.algorithm
    held = held_of(op)
    return fold_of(mapped, op.src.data_type, held), fold_of(plain, held, held)


TABLE = (ReductionImplementation(),)
