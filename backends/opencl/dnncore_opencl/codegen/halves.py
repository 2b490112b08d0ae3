"""f16 and bf16 in kernels that compute in f32: how their elements are read and written, by scalars.

The functions are those of `codegen/halves.cl`.
"""

from __future__ import annotations

from dnncore_opencl.codegen.vectors import HALVES, TYPES, with_lanes
from dnncore_opencl.runtime.launch import template

__all__ = ["FROM_FLOAT", "HALVES", "TO_FLOAT", "functions", "result_defines"]

TO_FLOAT = {"f32": "({})", "f16": "f16_to_float({})", "bf16": "bf16_to_float({})"}
FROM_FLOAT = {"f32": "({})", "f16": "float_to_f16({})", "bf16": "float_to_bf16({})"}


def functions() -> str:
    """Return the text of the functions, for one element at a time; a source may hold it twice."""
    return f"#ifndef HALVES\n#define HALVES\n{with_lanes(template('halves'), 1)}\n#endif\n"


def result_defines(data_type: str) -> dict[str, str]:
    """Return RESULT, the type of a result's elements, and how floats become them and back."""
    return {
        "RESULT": TYPES[data_type],
        "TO_RESULT(x)": FROM_FLOAT[data_type].format("x"),
        "FROM_RESULT(x)": TO_FLOAT[data_type].format("x"),
    }
