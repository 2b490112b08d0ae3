"""The task of depthwise convolution, forward and backward by data: it runs rows through a kernel.

`convolution/depthwise/data.py` plans it. A work item is a strip of rows, of some vectors
of channels, of one plane of one image; strips of a plane follow each other.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import call, load_i64, stack, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.depthwise.kernel import OPERAND, ROW
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS

__all__ = ["OPERANDS", "PARAMETERS", "SLOTS", "depthwise_loop"]

PARAMETERS = (
    "kernel", "last_kernel", "stream_kernel", "lists", "rows", "row_count", "strips",
    "vectors", "whole", "chunk", "chunks", "lanes", "planes", "src", "src_batch", "src_block",
    "weights", "weights_plane", "weights_block", "dst", "dst_batch", "dst_plane", "dst_block",
    "operand_count",
)  # fmt: skip
"""The task's parameters; then come the operands, each as `SLOTS`. Strides are in bytes."""
(
    KERNEL, LAST_KERNEL, STREAM_KERNEL, LISTS, ROWS, ROW_COUNT, STRIPS,
    VECTORS, WHOLE, CHUNK, CHUNKS, LANES, PLANES, SRC, SRC_BATCH, SRC_BLOCK,
    WEIGHTS, WEIGHTS_PLANE, WEIGHTS_BLOCK, DST, DST_BATCH, DST_PLANE, DST_BLOCK,
    OPERAND_COUNT, OPERANDS,
) = range(len(PARAMETERS) + 1)  # fmt: skip
SLOTS = ("address", "batch", "plane", "block", "x", "z", "y")
FIXED = 3  # of the slots, from "block" on, are what the kernel reads
ENTRY = len(OPERAND)
ROOM = ENTRY * MOST_OPERANDS
BYTES_OF_ROW = 8 * len(ROW)


@task
def depthwise_loop(params, begin, end):
    """Run the items [begin, end)."""
    strips, chunks = load_i64(params, STRIPS), load_i64(params, CHUNKS)
    planes, rows = load_i64(params, PLANES), load_i64(params, ROW_COUNT)
    room = stack(ROOM)
    streams = load_i64(params, STREAM_KERNEL) != 0 and load_i64(params, DST) % LINE == 0
    for item in range(begin, end):
        strip, index = item % strips, item // strips
        chunk, index = index % chunks, index // chunks
        plane, image = index % planes, index // planes
        first, last = rows * strip // strips, rows * (strip + 1) // strips
        vector = chunk * load_i64(params, CHUNK)
        end_vector = min(vector + load_i64(params, CHUNK), load_i64(params, VECTORS))
        whole = min(end_vector, load_i64(params, WHOLE)) - vector
        if whole > 0:
            kernel = load_i64(params, STREAM_KERNEL if streams else KERNEL)
            _run(params, room, kernel, image, plane, vector, whole, first, last)
        if vector + whole < end_vector:
            kernel = load_i64(params, LAST_KERNEL)
            _run(params, room, kernel, image, plane, vector + whole, 1, first, last)


@device
def _run(params, room, kernel, image, plane, vector, vectors, first, last):
    """Run the kernel on the rows [first, last) of some vectors of a plane."""
    for i in range(load_i64(params, OPERAND_COUNT)):
        operand = params + 8 * (OPERANDS + i * len(SLOTS))
        place = image * load_i64(operand, 1) + plane * load_i64(operand, 2)
        place += vector * load_i64(operand, 3)
        store_i64(room, ENTRY * i, load_i64(operand, 0) + place)
        for j in range(1, ENTRY):
            store_i64(room, ENTRY * i + j, load_i64(operand, 2 + j))
    src, weights, dst = load_i64(params, SRC), load_i64(params, WEIGHTS), load_i64(params, DST)
    src += image * load_i64(params, SRC_BATCH) + vector * load_i64(params, SRC_BLOCK)
    weights += plane * load_i64(params, WEIGHTS_PLANE) + vector * load_i64(params, WEIGHTS_BLOCK)
    dst += image * load_i64(params, DST_BATCH) + plane * load_i64(params, DST_PLANE)
    dst += vector * load_i64(params, DST_BLOCK)
    call(
        kernel,
        (
            src, weights, dst, load_i64(params, ROWS) + first * BYTES_OF_ROW, last - first,
            load_i64(params, LISTS), vectors, load_i64(params, SRC_BLOCK),
            load_i64(params, WEIGHTS_BLOCK), load_i64(params, DST_BLOCK), load_i64(params, LANES),
            room,
        ),
    )  # fmt: skip
