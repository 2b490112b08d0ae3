"""Packs matrices in panels of groups for the microkernels: the task and its step."""

from __future__ import annotations

import itertools

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_i64
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.copies.interleave_kernel import INTERLEAVE_CALL, InterleaveKernel
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

PART = 512  # rows of an item: small enough that each thread has an item
_GRAIN = 4096  # least elements of a thread's part


@task(Record(
    "packing in groups",
    ("src dst", "address"),
    ("kernel masked", "address", "`INTERLEAVE_CALL`; the second one for the last lanes"),
    ("from_matrix to_matrix", "address", "of tables of offsets of matrices in bytes"),
    ("rows", "count", "of a matrix"),
    ("blocks parts", "count", "of columns and of rows"),
    ("length", "count", "rows of a part"),
    ("lanes last_lanes", "count", "of a block, and of the last one"),
    ("src_row src_block dst_part dst_block", "bytes"),
))  # fmt: skip
def _interleave(params, begin, end):
    """Pack the items [begin, end): parts of blocks of matrices."""
    blocks, parts, length = params.blocks, params.parts, params.length
    for item in range(begin, end):
        part = item % parts
        block = item // parts % blocks
        matrix = item // parts // blocks
        src = params.src + load_i64(params.from_matrix, matrix) + block * params.src_block
        dst = params.dst + load_i64(params.to_matrix, matrix) + block * params.dst_block
        is_last = block == blocks - 1 and params.last_lanes < params.lanes
        INTERLEAVE_CALL.call(
            params.masked if is_last else params.kernel,
            src=src + part * length * params.src_row, dst=dst + part * params.dst_part,
            src_row=params.src_row, rows=min(length, params.rows - part * length),
            lanes=params.last_lanes if is_last else params.lanes,
        )  # fmt: skip


def interleave_step(source: Tensor, target: Tensor, lanes: int, group: int) -> Step:
    """Return a step that packs matrices (..., rows, columns) in panels.

    source: plain, with contiguous columns. target: such as `...CB16c2b` for 16 lanes and groups of
    2 rows. Its matrices consist of whole panels.
    """
    *batch, rows, columns = source.desc.dims
    size = source.desc.itemsize
    tables = []
    for desc in (source.desc, target.desc):
        steps = [size * stride for stride in desc.strides[:-2]]
        places = itertools.product(*map(range, batch))
        tables.append(np.array([sum(map(int.__mul__, at, steps)) for at in places], np.int64))
    blocks, parts = -(-columns // lanes), -(-rows // PART)
    values = {
        "src": source.address, "dst": target.address,
        "kernel": InterleaveKernel(lanes, group).address,
        "masked": InterleaveKernel(lanes, group, masked=True).address,
        "from_matrix": Table(tables[0]), "to_matrix": Table(tables[1]), "rows": rows,
        "blocks": blocks, "parts": parts, "length": PART, "lanes": lanes,
        "last_lanes": columns - (blocks - 1) * lanes, "src_row": size * source.desc.strides[-2],
        "src_block": size * lanes, "dst_part": PART // group * 4 * lanes,
        "dst_block": size * target.desc.strides[-1],
    }  # fmt: skip
    items = len(tables[0]) * blocks * parts
    return Step(_interleave, values, items, grain=-(-_GRAIN // (lanes * min(rows, PART) or 1)))
