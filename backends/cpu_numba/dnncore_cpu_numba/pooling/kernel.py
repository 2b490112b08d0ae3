"""The pooling kernels fold boxes of taps into results in registers.

    result[i][lane] = fold over d < D, h < H, w < W of term(a, b)    for all columns

Forward, the box is a window of src. Backward, the box is the windows that contain a cell. Only the
steps differ. The folds are:

    largest     the maximum of a; b receives its tap if the kernel has an index; NaN propagates
    sum         the sum of a, divided by `divisor`
    winners     the sum of a over the taps whose number equals b, the tap of the maximum
    shares      the sum of a times b; b has one value for all columns

Forward, a is src. Backward, a is diff_dst. Columns are contiguous. The last vector of columns
overlaps the vector before it, so that all vectors are full.

`row_kernel.py` computes whole rows of results, whose taps along w are compiled in.
`box_kernel.py` computes results that all have the same taps, in boxes of any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import HALVES, INTEGERS, STORED
from dnncore_cpu_numba.codegen.vector_ir import I64, Value

TILE = Record(
    "tile of a row of results",
    ("result a b", "bytes", "from the row's first result and from row 0 of a and b"),
    ("count", "count", "tiles with the same pattern, from this one on"),
)
FIELDS = Record(
    "fields of the pooling kernels",
    ("result a b", "address"),
    ("result_step a_step b_step", "bytes", "from point to point"),
    ("result_line a_line b_line", "bytes", "from line to line"),
    ("count lines columns", "count", "points of a line, lines, columns"),
    ("d h w", "count", "taps"),
    ("a_d a_h a_w b_d b_h b_w", "bytes", "from tap to tap"),
    ("tap tap_d tap_h tap_w", "index", "of the first tap, and steps from tap to tap"),
    (
        "start divisor",
        "float32",
        "the result of an empty box; the divisor of sums or its reciprocal",
    ),
    ("ahead", "bytes", "from a to the first new rows that the next line of results reads"),
    ("ahead_rows", "count", "number of these rows"),
    ("tiles", Pointer(TILE), "of a line of the row kernel"),
)
FoldName: TypeAlias = Literal["largest", "sum", "winners", "shares"]
POOLING_CALL = Record("pooling kernel", ("fields", Pointer(FIELDS)))


@dataclass(frozen=True)
class PoolingKernel(NativeKernel):
    """Base of both classes of kernels.

    lanes: columns per vector. A problem has at least this number of columns.
    index: the bits of a tap number in b; 0 without b.
    source, target: the types of a and of the result.
    held: the type of the computation: f32, f64 if all types are f64, or an integer or half type
    equal to `source`, whose maximum needs no conversion. Halves are compared as integers in the
    same order; the integers beyond the two infinities are NaN.
    multiplies: the field `divisor` is a reciprocal, which is exact for powers of two.
    streamed: use non-temporal stores. Results are whole cache lines, written in order.
    """

    ARGUMENTS = POOLING_CALL
    isa = BEST

    fold: FoldName
    lanes: int
    index: int = 0
    source: str = "f32"
    target: str = "f32"
    held: str = "f32"
    multiplies: bool = False
    streamed: bool = False

    @property
    def keeps_taps(self) -> bool:
        """Whether the kernel stores the tap of each maximum."""
        return self.fold == "largest" and bool(self.index)

    @property
    def is_half(self) -> bool:
        """Whether the kernel computes maxima of halves."""
        return self.held in HALVES

    @property
    def heeds_nan(self) -> bool:
        """Whether a NaN among maxima requires a second fold."""
        return self.fold == "largest" and self.held in ("f32", "f64") and not self.is_of_integers

    @property
    def is_of_integers(self) -> bool:
        """Whether the elements of a are integers."""
        return self.source in INTEGERS

    @property
    def has_masks(self) -> bool:
        """Whether registers hold one bit per lane as a condition."""
        return self.isa.lanes == LINE // 4

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of an element of each tensor."""
        result, a = (vir.bytes_of(STORED[kind]) for kind in (self.target, self.source))
        return {"result": result, "a": a, "b": self.index // 8}


def overlapping(builder: ir.IRBuilder, count: Value, step: int, body: Any) -> None:
    """Emit body(i) for i = 0, step, 2 * step, ...; the last i is at most count - step."""
    turns = builder.sdiv(builder.add(count, I64(step - 1)), I64(step))
    last = builder.sub(count, I64(step))

    def turn(index: Value, _: Any) -> list[Value]:
        first = builder.mul(index, I64(step))
        over = builder.icmp_signed(">", first, last)
        body(builder.select(over, last, first))
        return []

    vir.loop(builder, turns, [], turn)
