"""Fills a part of the scratchpad with one byte value, before a tensor is copied into it."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import store_i64
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor

GRAIN = 8192  # least words of a thread's part


@task(Record("fill", ("target", "address"), ("word", "count", "the bits of 8 bytes")))
def _fill(params, begin, end):
    """Fill the words [begin, end)."""
    target, word = params.target, params.word
    for i in range(begin, end):
        store_i64(target, i, word)


def fill_step(room: Tensor, byte: int = 0) -> Step:
    """Return a step that sets all bytes of a tensor in the scratchpad.

    The size is rounded up to whole words, which the scratchpad provides.
    """
    word = int.from_bytes(bytes([byte] * 8), "little", signed=True)
    words = -(-room.desc.nbytes // 8)
    return Step(_fill, {"target": room.address, "word": word}, words, grain=GRAIN)
