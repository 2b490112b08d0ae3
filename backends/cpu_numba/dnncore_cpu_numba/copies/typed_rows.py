"""Rows of any data type in tasks: converted to f32 in buffers, and back.

The kernels are `CopyKernel`s of rows. `conversion` returns their addresses. The address is 0 if no
conversion is needed.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.nontemporal import LINE, before_lines
from dnncore_cpu_numba.codegen.task import device
from dnncore_cpu_numba.copies.copy_kernel import COPY_CALL, ROWS, CopyKernel


def conversion(source: str, target: str, **options: bool) -> int:
    """Return the address of the kernel that converts rows; 0 if the types are equal.

    options: fields of `CopyKernel`.
    """
    if source == target:
        return 0
    return CopyKernel("rows", source, target, **options).address


@device
def convert_row(kernel, source, source_step, target, target_step, count):
    """Convert a row to another data type. Steps are in bytes."""
    convert_rows(kernel, source, source_step, 0, target, target_step, 0, 1, count, 0)


@device
def convert_rows(
    kernel, source, source_step, source_row, target, target_step, target_row, rows, columns, ahead
):
    """Convert rows to another data type. Steps and row strides are in bytes. ahead: see `ROWS`."""
    shape = ROWS.room()
    shape.columns, shape.rows, shape.planes = columns, rows, 1
    shape.src_column, shape.src_row, shape.src_plane = source_step, source_row, 0
    shape.dst_column, shape.dst_row, shape.dst_plane = target_step, target_row, 0
    shape.ahead = ahead
    COPY_CALL.call(kernel, src=source, dst=target, shape=shape)


@device
def stream_row_as(kernel, streamed, x, y, size, count):
    """Convert a row of f32 to elements of `size` bytes, with non-temporal stores of whole lines.

    kernel, streamed: the addresses of kernels with ordinary and with non-temporal stores.
    """
    head = before_lines(y, size, count)
    body = (count - head) & -(LINE // size)
    if body == 0:
        head = 0
    rest = count - head - body
    if head:
        convert_row(kernel, x, 4, y, size, head)
    if body:
        convert_row(streamed, x + 4 * head, 4, y + size * head, size, body)
    if rest:
        done = head + body
        convert_row(kernel, x + 4 * done, 4, y + size * done, size, rest)
