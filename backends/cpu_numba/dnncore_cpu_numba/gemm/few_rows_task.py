"""The task of `gemm/few_rows.py`: columns of weights, one after the other."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_i64
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.gemm.few_rows_kernel import COLUMN


@task(Record(
    "columns of weights",
    ("kernel", "address", "of `COLUMN`"),
    ("weights x y", "address"),
    ("column", "bytes", "from column to column of weights"),
    ("x_row y_row", "bytes"),
    ("units blocks", "count", "see `COLUMN`"),
    ("zero", "address"),
    ("zero_places zero_columns", "address", "of tables: see `COLUMN`; bytes of each column"),
    ("scale", "address"),
    ("scale_places scale_columns", "address"),
))  # fmt: skip
def columns_of_weights(params, begin, end):
    """Multiply the columns [begin, end)."""
    for column in range(begin, end):
        COLUMN.call(
            params.kernel, weights=params.weights + column * params.column, x=params.x,
            x_row=params.x_row, y_row=params.y_row,
            zero=params.zero + load_i64(params.zero_columns, column),
            scale=params.scale + load_i64(params.scale_columns, column),
            zero_places=params.zero_places, scale_places=params.scale_places, units=params.units,
            blocks=params.blocks, y=params.y + 4 * column,
        )  # fmt: skip
