"""The task of depthwise gradients by weights: it runs images through a kernel.

`convolution/depthwise/weights.py` plans it. A work item is a part of the pixels, for
some vectors of channels and one pair of planes. The groups of rows of taps take turns on each block
of pixels, which stays in cache.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.pointers import call, load_i64
from dnncore_cpu_numba.codegen.task import device, task

__all__ = ["PARAMETERS", "depthwise_weights_loop"]

PARAMETERS = (
    "groups", "group_count", "records", "row_count", "row_block", "row_blocks", "images",
    "parts", "vectors",
    "whole", "chunk", "chunks", "lanes", "src_planes", "diff_dst_planes", "src", "src_batch",
    "src_plane", "src_block", "diff_dst", "diff_dst_batch", "diff_dst_plane", "diff_dst_block",
    "sums", "sums_part", "sums_src_plane", "sums_diff_dst_plane", "sums_block",
    "bias", "bias_part", "bias_plane", "bias_block",
)  # fmt: skip
"""The task's parameters. Strides are in bytes; `groups` is a table of (kernel for whole vectors,
kernel for the last one, offset in `records`, bytes of a record, offset in `sums`): those for the
first plane of src, then for others."""
(
    GROUPS, GROUP_COUNT, RECORDS, ROW_COUNT, ROW_BLOCK, ROW_BLOCKS, IMAGES, PARTS, VECTORS,
    WHOLE, CHUNK, CHUNKS, LANES, SRC_PLANES, DIFF_DST_PLANES, SRC, SRC_BATCH,
    SRC_PLANE, SRC_BLOCK, DIFF_DST, DIFF_DST_BATCH, DIFF_DST_PLANE, DIFF_DST_BLOCK,
    SUMS, SUMS_PART, SUMS_SRC_PLANE, SUMS_DIFF_DST_PLANE, SUMS_BLOCK,
    BIAS, BIAS_PART, BIAS_PLANE, BIAS_BLOCK,
) = range(len(PARAMETERS))  # fmt: skip


@task
def depthwise_weights_loop(params, begin, end):
    """Run the items [begin, end)."""
    parts, chunks = load_i64(params, PARTS), load_i64(params, CHUNKS)
    groups, planes = load_i64(params, GROUP_COUNT), load_i64(params, SRC_PLANES)
    blocks = load_i64(params, IMAGES) * load_i64(params, ROW_BLOCKS)
    for item in range(begin, end):
        chunk, index = item % chunks, item // chunks
        part, index = index % parts, index // parts
        src_plane, diff_dst_plane = index % planes, index // planes
        first, last = blocks * part // parts, blocks * (part + 1) // parts
        vector = chunk * load_i64(params, CHUNK)
        end_vector = min(vector + load_i64(params, CHUNK), load_i64(params, VECTORS))
        whole = min(end_vector, load_i64(params, WHOLE)) - vector
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
    """Run a kernel on a block of rows for so many whole vectors, or for the last one."""
    image = block // load_i64(params, ROW_BLOCKS)
    row = block % load_i64(params, ROW_BLOCKS) * load_i64(params, ROW_BLOCK)
    rows = min(load_i64(params, ROW_BLOCK), load_i64(params, ROW_COUNT) - row)
    src = load_i64(params, SRC) + image * load_i64(params, SRC_BATCH)
    src += src_plane * load_i64(params, SRC_PLANE) + vector * load_i64(params, SRC_BLOCK)
    diff_dst = load_i64(params, DIFF_DST) + image * load_i64(params, DIFF_DST_BATCH)
    diff_dst += diff_dst_plane * load_i64(params, DIFF_DST_PLANE)
    diff_dst += vector * load_i64(params, DIFF_DST_BLOCK)
    sums = load_i64(params, SUMS) + part * load_i64(params, SUMS_PART)
    sums += src_plane * load_i64(params, SUMS_SRC_PLANE)
    sums += diff_dst_plane * load_i64(params, SUMS_DIFF_DST_PLANE)
    sums += vector * load_i64(params, SUMS_BLOCK)
    bias = load_i64(params, BIAS) + part * load_i64(params, BIAS_PART)
    bias += diff_dst_plane * load_i64(params, BIAS_PLANE) + vector * load_i64(params, BIAS_BLOCK)
    group += load_i64(params, GROUP_COUNT) * min(src_plane, 1)
    entry = load_i64(params, GROUPS) + 40 * group
    sums += load_i64(entry, 4)
    records = load_i64(params, RECORDS) + load_i64(entry, 2) + row * load_i64(entry, 3)
    call(
        load_i64(entry, 0 if whole else 1),
        (
            src, diff_dst, sums, bias, records, rows, load_i64(params, LANES), accumulate,
            max(whole, 1), load_i64(params, SRC_BLOCK), load_i64(params, DIFF_DST_BLOCK),
            load_i64(params, SUMS_BLOCK), load_i64(params, BIAS_BLOCK),
        ),
    )  # fmt: skip
