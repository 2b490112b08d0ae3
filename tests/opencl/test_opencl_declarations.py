"""Programs for PoCL declare the built-in functions that they call."""

from __future__ import annotations

from pathlib import Path

import pytest
from dnncore_opencl.devices.pocl_declarations import WITHOUT_HEADER, is_quicker
from dnncore_opencl.runtime import build

import dnncore as dnn

GOLDEN = Path(__file__).parents[1] / "golden"
CALLS = """
#define PASTE(a, b) a##b
#define LOAD(n) PASTE(vload, n)
__kernel void several(__global float *a, __global int *b, __global double *c, __local int *d) {
    const size_t i = get_global_id(0) + get_local_id(1) * get_num_groups(0);
    const float4 x = LOAD(4)(i, a), y = fmax(min(x, 2.0f), (float4)(0.5f));
    const int4 z = convert_int4_sat_rte(exp(y)) + clamp(vload4(0, b), 1, 9) + isnan(x);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    vstore4(convert_float4(abs(z)) + as_float4(z) + fma(x, y, x), i, a);
    c[0] = fabs(c[1]) + convert_double(INT_MIN) + rint(c[2]) + FLT_MAX;
    d[0] = mul_hi(b[0], b[1]);
    b[0] = max(d[0], isfinite(a[9]) ? INT_MAX : 0) + bitselect(b[2], b[3], b[4]);
}
"""
OTHERS = "__kernel void others(__global float *a) { a[0] = sinpi(a[1]) + degrees(a[2]); }"
KERNELS = ("cpu_convolution", "reduction_columns", "tiled_product", "transpose_tiled")


@pytest.fixture
def options(monkeypatch):
    """The options of each build that succeeds."""
    found = []
    build_program = build._build

    def recorded(program, device, options):
        made = build_program(program, device, options)
        found.append(tuple(options))
        return made

    monkeypatch.setattr(build, "_build", recorded)
    return found


@pytest.mark.parametrize(
    ("source", "is_declared"),
    [
        (CALLS, True),
        (OTHERS, False),
        *(((GOLDEN / f"{name}.cl").read_text(), True) for name in KERNELS),
    ],
    ids=["known", "others", *KERNELS],
)
def test_a_program_is_built_with_the_header_only_if_it_must_be(options, source, is_declared):
    engine = dnn.engine("pocl")
    if not is_quicker(engine.native.device):
        pytest.skip("another release of PoCL")
    engine.program(f"// {__name__}\n{source}")
    assert [set(WITHOUT_HEADER) <= {*each} for each in options] == [is_declared]
