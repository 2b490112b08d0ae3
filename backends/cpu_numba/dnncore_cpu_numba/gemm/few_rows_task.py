"""The task of `gemm/few_rows.py`: multiplies groups of columns of weights."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.gemm.few_rows_kernel import COLUMNS


@task(Record(
    "groups of columns",
    ("kernel", "address", "of `COLUMNS`"),
    ("weights x y", "address"),
    ("columns", "count", "of a group"),
    ("column", "bytes", "from column to column of weights"),
    ("x_row y_row", "bytes"),
    ("units blocks", "count", "see `COLUMNS`"),
    ("zero zero_places zero_columns", "address", "see `COLUMNS`"),
    ("scale scale_places scale_columns", "address"),
))  # fmt: skip
def groups_of_columns(params, begin, end):
    """Multiply the groups [begin, end)."""
    for group in range(begin, end):
        first = group * params.columns
        COLUMNS.call(
            params.kernel, weights=params.weights + first * params.column, x=params.x,
            column=params.column, x_row=params.x_row, y_row=params.y_row, zero=params.zero,
            scale=params.scale, zero_columns=params.zero_columns + 8 * first,
            scale_columns=params.scale_columns + 8 * first, zero_places=params.zero_places,
            scale_places=params.scale_places, units=params.units, blocks=params.blocks,
            y=params.y + 4 * first,
        )  # fmt: skip
