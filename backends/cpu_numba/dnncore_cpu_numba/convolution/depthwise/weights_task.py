"""The task of depthwise weights gradients: calls a kernel for blocks of rows.

`convolution/depthwise/weights.py` plans it. A work item is a part of the pixels, for some vectors
of channels and one pair of planes. All groups of rows of taps are computed for a block of pixels
before the next block, so that the block stays in cache.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.depthwise.weights_kernel import DEPTHWISE_WEIGHTS_CALL

GROUP = Record(
    "group of rows of taps",
    ("whole last", "address", "a `DEPTHWISE_WEIGHTS_CALL`: for whole vectors, for the last one"),
    ("records nbytes", "bytes", "to its records, and of one of them"),
    ("sums", "bytes", "to its sums"),
)
DEPTHWISE_WEIGHTS = Record(
    "gradient of depthwise weights",
    ("groups", Pointer(GROUP), "those for the first plane of src, then for others"),
    ("group_count", "count"),
    ("records", "address"),
    ("row_count row_block row_blocks", "count", "rows of an image, of a block, and blocks"),
    ("images parts", "count"),
    ("vectors whole", "count", "of channels, and whole ones"),
    ("chunk chunks", "count", "vectors of an item, and items of them"),
    ("lanes", "count", "of the last vector"),
    ("src_planes diff_dst_planes", "count"),
    ("src", "address"),
    ("src_batch src_plane src_block", "bytes", "strides"),
    ("diff_dst", "address"),
    ("diff_dst_batch diff_dst_plane diff_dst_block", "bytes", "strides"),
    ("sums", "address"),
    ("sums_part sums_src_plane sums_diff_dst_plane sums_block", "bytes", "strides"),
    ("bias", "address"),
    ("bias_part bias_plane bias_block", "bytes", "strides"),
)


@task(DEPTHWISE_WEIGHTS)
def depthwise_weights_loop(params, begin, end):
    """Compute the items [begin, end)."""
    parts, chunks = params.parts, params.chunks
    groups, planes = params.group_count, params.src_planes
    blocks = params.images * params.row_blocks
    for item in range(begin, end):
        chunk, index = item % chunks, item // chunks
        part, index = index % parts, index // parts
        src_plane, diff_dst_plane = index % planes, index // planes
        first, last = blocks * part // parts, blocks * (part + 1) // parts
        vector = chunk * params.chunk
        end_vector = min(vector + params.chunk, params.vectors)
        whole = min(end_vector, params.whole) - vector
        for block in range(first, last):
            again = int(block > first)
            for group in range(groups):
                if whole > 0:
                    _run(
                        params, part, group, src_plane, diff_dst_plane, vector, whole, block, again
                    )
                if vector + whole < end_vector:
                    at = vector + whole
                    _run(params, part, group, src_plane, diff_dst_plane, at, 0, block, again)


@device
def _run(params, part, group, src_plane, diff_dst_plane, vector, whole, block, accumulate):
    """Run a kernel on a block of rows for `whole` vectors, or for the last one if this is 0."""
    image = block // params.row_blocks
    row = block % params.row_blocks * params.row_block
    rows = min(params.row_block, params.row_count - row)
    src = params.src + image * params.src_batch
    src += src_plane * params.src_plane + vector * params.src_block
    diff_dst = params.diff_dst + image * params.diff_dst_batch
    diff_dst += diff_dst_plane * params.diff_dst_plane
    diff_dst += vector * params.diff_dst_block
    sums = params.sums + part * params.sums_part
    sums += src_plane * params.sums_src_plane
    sums += diff_dst_plane * params.sums_diff_dst_plane
    sums += vector * params.sums_block
    bias = params.bias + part * params.bias_part
    bias += diff_dst_plane * params.bias_plane + vector * params.bias_block
    group += params.group_count * min(src_plane, 1)
    entry = params.groups[group]
    sums += entry.sums
    records = params.records + entry.records + row * entry.nbytes
    DEPTHWISE_WEIGHTS_CALL.call(
        entry.whole if whole else entry.last, src=src, diff_dst=diff_dst, sums=sums, bias=bias,
        rows=records, row_count=rows, lanes=params.lanes, accumulate=accumulate,
        vectors=max(whole, 1), src_block=params.src_block, diff_dst_block=params.diff_dst_block,
        sums_block=params.sums_block, bias_block=params.bias_block,
    )  # fmt: skip
