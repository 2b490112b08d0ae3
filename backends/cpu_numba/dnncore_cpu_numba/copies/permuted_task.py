"""Kernels of rows at all steps of a nest."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import stack
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.copies.permuted_kernel import ROW_CALL
from dnncore_cpu_numba.copies.reformat import TENSORS


@task(Record(
    "permuted rows",
    ("nest", Pointer(NEST)),
    ("kernel streamed", "address", "`ROW_CALL`; the second one if dst is a whole line"),
    ("starts", TENSORS),
    ("shape", Many("address"), "`PERMUTED`"),
))  # fmt: skip
def permute_rows(params, begin, end):
    """Call a kernel of copies for some steps of the nest."""
    position, tensors = stack(MAX_LOOPS), TENSORS.room()
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        streams = params.streamed != 0 and tensors.dst % LINE == 0
        ROW_CALL.call(
            params.streamed if streams else params.kernel, src=tensors.src, dst=tensors.dst,
            planes=1, rows=1, plane_weights=0, row_weights=0, shape=params.shape,
        )  # fmt: skip
        advance(params.nest, position, tensors, 1)
