"""Products with small weights, with values that vary along K, of f64, and with random numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

from checks import Target, check
from dnncore_cpu_numba.codegen.isa import BEST

import dnncore as dnn
from dnncore.problem import read

ALL = f"cpu_numba:brgemm:{BEST.name}"
GROUPS = "--attr-scales=wei:per_ocic:{}:{} --attr-zero-points=wei:per_ocic:{}:{}"


def check_text(text, impl):
    (problem,) = read(text)
    check(Target("cpu", "cpu", impl=impl), problem.op, problem.attr)


@pytest.mark.parametrize(
    "text",
    [
        "--dt=f32:u4:f32 " + GROUPS.format("f32", "32x1", "u4", "16x1") + " 9x64:64x19",
        "--dt=bf16:s4:bf16 --wtag=ba " + GROUPS.format("f16", "64x3", "s8", "32x1") + " 7x64:64x9",
        "--dt=f16:s8:f32 --attr-scales=wei:per_oc --attr-post-ops=sum:0.5+tanh 6x20:20x17",
        "--dt=f32:f8_e4m3:f32 --stag=acb 2x5x24:1x24x33",
        "--dt=f16:f8_e5m2:f16 5x24:24x3",
        "--attr-scales=src:per_ocic:f32:1x8+wei:per_ocic:f32:4x2 5x16:16x18",
    ],
)
def test_decompressed_weights(text):
    check_text("--matmul " + text, ALL)


@pytest.mark.parametrize(
    "text",
    [
        "--matmul --dt=f32:u4:f32 " + GROUPS.format("f32", "128x1", "u4", "128x1") + " 1x256:256x7",
        "--matmul --dt=f32:s4:f32 " + GROUPS.format("bf16", "32x2", "s4", "8x1") + " 3x384:384x10",
        "--matmul --dt=bf16:u8:f32 --wtag=ba --attr-zero-points=wei:per_oc:s32 4x24:24x9",
        "--matmul --dt=f32:u4:f32 --wtag=ba 2x36:36x5",
        (
            "--matmul --dt=f32:s8:f32 --bia-dt=f32 --bia_mask=2 --stag=ba --attr-post-ops=relu"
            " --attr-scales=src:common+wei:per_oc+dst:common 2x40:40x6"
        ),
        "--ip --dt=f32:u4:f32 --attr-scales=wei:per_ocic:f32:2x32 mb2ic128oc6",
        "--ip --dt=bf16:s8:bf16 --bia-dt=f32 --attr-scales=wei:per_oc mb3ic5ih4oc9",
    ],
)
def test_few_rows(text):
    check_text(text, ALL)


@pytest.mark.parametrize(
    "text",
    [
        (
            "--matmul --dt=u8:u4:f32 --attr-scales=src:per_ocic:f32:1x16+wei:per_ocic:f32:8x1"
            " --attr-post-ops=linear:0.3:0.7 5x48:48x17"
        ),
        "--matmul --dt=s8:s8:s32 --attr-zero-points=src:per_ocic:s32:1x8+wei:common:u4 5x48:48x17",
        (
            "--matmul --dt=s8:u8:s8 --bia-dt=s32 --bia_mask=4 --attr-scales=dst:common"
            " --attr-zero-points=wei:per_ocic:s8 2x5x12:1x12x9"
        ),
        (
            "--ip --dt=s8:u4:u8 --bia-dt=f32 --attr-scales=wei:per_ocic:f16:2x4"
            " --attr-zero-points=wei:per_ocic:u4:1x8+dst:common mb3ic16oc6"
        ),
        (
            "--conv --dt=u8:s8:s8 --bia-dt=s32 --attr-zero-points=src:per_oc+dst:per_oc"
            " --attr-scales=wei:per_oc+dst:per_oc g2mb2ic6ih7oc10kh3ph2dh1"
        ),
    ],
)
def test_integers_with_values_along_k(text):
    check_text(text, "cpu_numba:gemm")


@pytest.mark.parametrize(
    "text",
    [
        "--conv --dt=u8:s8:s8 --attr-zero-points=dst:2:s4 g5mb2ic5oc5ih7oh7kh3ph1",
        "--matmul --dt=s8 --attr-dropout=0.5 --attr-zero-points=dst:0:s4+src:0:u4 5x17:17x9",
        "--ip --dt=u8:s8:s8 --attr-zero-points=dst:0:s4+wei:0:u4 mb3ic17oc7",
    ],
)
def test_zero_points_of_4_bits(text):
    check_text(text, "cpu_numba:*")


@pytest.mark.parametrize(
    "text",
    [
        "--matmul --dt=bf16:bf16:f32 --wtag=ba --dtag=ba --attr-scales=src:3:f32:1x1 16x7:7x15",
        "--matmul --dt=bf16 --bia-dt=f32 --bia_mask=4 --attr-scales=src:15 1x1x2x17:1x2x17x9",
        "--matmul --dt=f64 --attr-scales=wei:3:f16:3x1+src:1 5x33:33x9",
        "--ip --dt=f64 --bia-dt=f64 --attr-scales=wei:3 mb5_ic7_iw29_oc7",
    ],
)
def test_scales_along_k_of_floats(text):
    check_text(text, "cpu_numba:*")


@pytest.mark.parametrize("impl", [ALL, "cpu_numba:gemm"])
def test_each_of_them_says_what_it_leaves_to_the_other(impl):
    src, weights, dst = (dnn.MemoryDesc((8, 8), own) for own in ("u8", "s8", "f32"))
    op = dnn.MatMul(src=src, weights=weights, dst=dst)
    uniform = dnn.Attributes(scales={"weights": dnn.Scales(mask=2)})
    varying = dnn.Attributes(scales={"weights": dnn.Scales(mask=3, groups=(4, 1))})
    accepted, refused = (uniform, varying) if impl == ALL else (varying, uniform)
    cpu = dnn.engine("cpu")
    assert dnn.PrimitiveDesc(op, cpu, accepted, impl=f"{impl},cpu_numba:brgemm:*")
    lines = dnn.PrimitiveDesc(op, cpu, refused).explain().splitlines()
    assert any(f" {impl}: " in line and "vary along K" in line for line in lines), lines


@pytest.mark.parametrize(
    "text",
    [
        "--matmul --dt=f64 --bia-dt=f64 --bia_mask=4 --stag=acb --wtag=acb 2x9x70:2x70x13",
        "--matmul --dt=f64 --attr-post-ops=sum:0.5+tanh 5x2100:2100x9",
        "--ip --dt=f64 --bia-dt=f64 --stag=acdb mb3ic5ih3oc9",
        "--ip --dir=BWD_D --dt=f64 mb4ic16ih2oc9",
        "--ip --dir=BWD_WB --dt=f64 --bia-dt=f64 mb4ic5ih3oc9",
        "--conv --dt=f64 --bia-dt=f64 --stag=acdb --attr-post-ops=relu g2mb2ic6ih8oc10kh3ph1sh2",
        (
            "--conv --dt=f64 --bia-dt=f64 --stag=aBx8b --dtag=aBx16b"
            " --attr-post-ops=sum:0.5+relu+add:f32:per_oc g2mb2ic16ih6oc32kh3ph1"
        ),
        "--conv --dir=BWD_D --dt=f64 --attr-post-ops=tanh g2mb2ic6ih9oc10kh3sh2",
        "--conv --dir=BWD_WB --dt=f64 --bia-dt=f64 mb2ic3iw9oc10kw3pw1",
    ],
)
def test_f64(text):
    check_text(text, f"cpu_numba:gemm,{ALL}" if "conv" in text else ALL)


@pytest.mark.parametrize(
    "text",
    [
        "--matmul --attr-dropout=0.5 --attr-post-ops=relu 9x30:30x19",
        (
            "--matmul --dt=u8:s8:u8 --bia-dt=f32 --bia_mask=2 --attr-dropout=0.3"
            " --attr-scales=wei:per_oc+dst:common --attr-post-ops=linear:0.3:0.1 9x30:30x19"
        ),
        "--ip --dt=bf16 --attr-rounding-mode=dst:stochastic mb2ic16ih3oc9",
        "--conv --dir=BWD_D --dt=f16 --attr-rounding-mode=diff_src:stochastic mb2ic8ih6oc9kh3ph1",
    ],
)
def test_random_numbers(text):
    check_text(text, "cpu_numba:*avx512_core,cpu_numba:*avx2,cpu_numba:*simd128")
