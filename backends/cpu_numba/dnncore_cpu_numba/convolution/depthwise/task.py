"""The task of depthwise convolution, forward and backward by data: calls a kernel for rows.

`convolution/depthwise/data.py` plans it. A work item is a strip of rows of some vectors of channels
in one plane of one image. The strips of a plane are consecutive items.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import address
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.depthwise.kernel import DEPTHWISE_CALL, OPERAND, ROW
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS

MATRIX = Record(
    "operand of a depthwise convolution",
    ("address", "address"),
    ("batch plane block x z y", "bytes", "strides"),
)
DEPTHWISE = Record(
    "depthwise",
    ("kernel last_kernel stream_kernel", "address", "each a `DEPTHWISE_CALL`"),
    ("lists", "address"),
    ("rows", Pointer(ROW)),
    ("row_count strips", "count"),
    ("vectors whole", "count", "of channels, and whole ones"),
    ("chunk chunks", "count", "vectors of an item, and items of them"),
    ("lanes", "count", "of the last vector"),
    ("planes", "count", "of dst"),
    ("src", "address"),
    ("src_batch src_block", "bytes", "strides"),
    ("weights", "address"),
    ("weights_plane weights_block", "bytes", "strides"),
    ("dst", "address"),
    ("dst_batch dst_plane dst_block", "bytes", "strides"),
    ("operand_count", "count"),
    ("src_zero_point weights_zero_point", "address"),
    ("operands", Many(MATRIX)),
)
ROOM = Record("room of operands", ("operands", Many(OPERAND, MOST_OPERANDS)))


@task(DEPTHWISE)
def depthwise_loop(params, begin, end):
    """Compute the items [begin, end)."""
    strips, chunks = params.strips, params.chunks
    planes, rows = params.planes, params.row_count
    room = ROOM.room()
    streams = params.stream_kernel != 0 and params.dst % LINE == 0
    for item in range(begin, end):
        strip, index = item % strips, item // strips
        chunk, index = index % chunks, index // chunks
        plane, image = index % planes, index // planes
        first, last = rows * strip // strips, rows * (strip + 1) // strips
        vector = chunk * params.chunk
        end_vector = min(vector + params.chunk, params.vectors)
        whole = min(end_vector, params.whole) - vector
        if whole > 0:
            kernel = params.stream_kernel if streams else params.kernel
            _run(params, room, kernel, image, plane, vector, whole, first, last)
        if vector + whole < end_vector:
            kernel = params.last_kernel
            _run(params, room, kernel, image, plane, vector + whole, 1, first, last)


@device
def _run(params, room, kernel, image, plane, vector, vectors, first, last):
    """Run the kernel on the rows [first, last) of some vectors of a plane."""
    for i in range(params.operand_count):
        matrix, operand = params.operands[i], room.operands[i]
        place = image * matrix.batch + plane * matrix.plane
        place += vector * matrix.block
        operand.address = matrix.address + place
        operand.block = matrix.block
        operand.x = matrix.x
        operand.z = matrix.z
        operand.y = matrix.y
    src, weights, dst = params.src, params.weights, params.dst
    src += image * params.src_batch + vector * params.src_block
    weights += plane * params.weights_plane + vector * params.weights_block
    dst += image * params.dst_batch + plane * params.dst_plane
    dst += vector * params.dst_block
    DEPTHWISE_CALL.call(
        kernel, src=src, weights=weights, dst=dst, rows=params.rows[first],
        row_count=last - first, lists=params.lists, vectors=vectors, src_block=params.src_block,
        weights_block=params.weights_block, dst_block=params.dst_block, lanes=params.lanes,
        operands=address(room.operands), src_zero_point=params.src_zero_point,
        weights_zero_point=params.weights_zero_point,
    )  # fmt: skip
