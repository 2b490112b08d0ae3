"""Types and attributes that opencl converts around its kernels, beside the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case
from dnncore.testing.checks.case import make_round

CPUS = [t for t in TARGETS if t.engine_name.startswith("opencl") and t.engine.is_cpu]
F8 = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
GROUPS = "--attr-scales=wei:per_tensor:f32:8x1"
PROBLEMS = {
    "an odd number of 4-bit elements into blocks": (
        "--reorder --sdt=s32 --ddt=u4 --stag=abx --dtag=aBc8b 3x5x7"
    ),
    "4-bit elements in groups": (
        "--reorder --sdt=s4 --ddt=f32 --stag=ab --dtag=ba --attr-scales=src:per_tensor:f32:4x1"
        " --attr-zero-points=src:per_tensor:s4:4x1 8x6"
    ),
    "scales and zero points of each index": (
        "--reorder --sdt=s8 --ddt=u8 --stag=abx --dtag=axb"
        " --attr-scales=src:per_dim_1+dst:per_dim_0"
        " --attr-zero-points=src:common:3+dst:common:7 3x5x7"
    ),
    "f64 to scaled integers": (
        "--reorder --sdt=f64 --ddt=s32 --stag=abx --dtag=axb --attr-scales=dst:per_dim_1 3x5x7"
    ),
    "post-ops of f64 alone": (
        "--reorder --sdt=f64 --ddt=bf16 --stag=abx --dtag=axb"
        " --attr-post-ops=sum:0.5+linear:0.3:1 3x5x7"
    ),
    "post-ops of 4-bit elements": (
        "--reorder --sdt=f8_e5m2 --ddt=s4 --attr-post-ops=sum:0.5+linear:2:1 3x5x7"
    ),
    "a mask with padding": (
        "--eltwise --dt=bf16 --alg=tanh --attr-dropout=0.4:12345:aBx8b --tag=aBx8b"
        " --attr-rounding-mode=dst:stochastic --attr-post-ops=linear:2:1 3x5x7"
    ),
    "scales of both operands": (
        "--binary --alg=add --sdt=s8:u8 --ddt=f32 --attr-scales=src0:common:2+src1:common:4"
        " 3x5x7:3x1x7"
    ),
    "softmax of integers": (
        "--softmax --sdt=s8 --ddt=u8 --axis=1"
        " --attr-scales=src:common:0.25+dst:common:0.0078125 3x9x7"
    ),
    "decompressed weights": (
        "--matmul --dt=bf16:u4:bf16 --attr-scales=wei:per_tensor:bf16:16x1"
        " --attr-zero-points=wei:per_tensor:u8:16x1 --bia-dt=f32 --bia_mask=2 5x32:32x7"
    ),
    "weights of f8": "--matmul --dt=f16:f8_e4m3:f32 --attr-scales=wei:common:2 --wtag=ba 5x33:33x7",
    "ranges of K with their scales, and dropout": (
        f"--matmul --dt=s8:s4:f32 {GROUPS} --attr-zero-points=wei:per_tensor:s4:8x1"
        " --attr-dropout=0.4:12345 3x5x32:3x32x7"
    ),
    "ranges of K and steps": (
        f"--matmul --dt=u8:s8:u8 {GROUPS} --attr-post-ops=sum:0.5+relu 5x32:32x7"
    ),
    "groups of rows, of columns and of terms": (
        "--matmul --dt=u8:s4:f32 --attr-scales=src:3:f32:2x4+wei:3:bf16:8x3"
        " --attr-post-ops=sum:0.5 6x16:16x9"
    ),
    "groups of columns, which are rows of tiles": (
        "--matmul --dt=s8:u8:s32 --dtag=acb --attr-scales=src:7:f16:5x3+wei:7:f32:3x3 2x35x6:2x6x33"
    ),
    "groups of output channels": (
        "--ip --dt=s8:u4:s8 --stag=aB4b --dtag=ba --attr-scales=wei:3:f32:2x1"
        " --attr-zero-points=src:0+wei:3 mb5_ic9_oc100"
    ),
    "groups of input channels, where there are pixels": (
        "--ip --dir=FWD_D --dt=s8:s8:f32 --stag=aBc8b --wtag=bac --attr-scales=dst:0+wei:3:f16:3x1"
        " --attr-zero-points=wei:3:s4 mb3_ic3_iw2_oc9"
    ),
    "weights decoded for one row, at odd places": (
        "--matmul --dt=f32:u4:f32 --attr-scales=wei:3:f32:10x7"
        " --attr-zero-points=wei:3:s8:4x1 1x140:140x301"
    ),
    "weights decoded in a batch": (
        "--matmul --dt=bf16:s4:f32 --attr-scales=wei:7:bf16:4x2 --attr-zero-points=wei:7:u4:2x2"
        " 3x2x64:3x64x300"
    ),
    "weights decoded by columns": (
        "--ip --dir=FWD_D --dt=f16:u4:f16 --stag=ab --wtag=ab --attr-scales=wei:3:f32:1x4"
        " --attr-zero-points=wei:3:u4:1x2 mb3ic8oc140"
    ),
    "weights decoded where the pixels of K count slowest": (
        "--ip --dir=FWD_D --dt=f32:u4:f32 --stag=axb --wtag=bac --attr-scales=wei:3"
        " --attr-zero-points=wei:3:s4 mb5_ic33_iw3_oc9"
    ),
    "f64 with scales along K and post-ops": (
        "--matmul --dt=f64 --bia-dt=f64 --bia_mask=2 --attr-scales=src:3:bf16:2x4+wei:3:f32:8x3"
        " --attr-post-ops=sum:0.3+gelu_erf+add:bf16:2 --attr-dropout=0.4:12345 6x16:16x9"
    ),
    "parts of a sum of f64": "--matmul --dt=f64 --attr-post-ops=linear:0.1:0.7 1x2000:2000x3",
    "an image of f64 with borders": (
        "--conv --dir=FWD_D --dt=f64 --stag=aBcd8b --dtag=acdb --attr-scales=wei:3"
        " g2mb2ic6oc10ih7oh4kh3sh2dh0ph1"
    ),
    "gradients of f64": (
        "--conv --dir=BWD_WB --dt=f64 --bia-dt=f64 --stag=acdb mb3ic5oc9ih6oh6kh3ph1"
    ),
    "slopes of f64": "--eltwise --dir=BWD_D --dt=f64 --alg=gelu_erf 3x5x7",
    "rows of f64": "--softmax --sdt=f64 --ddt=f64 --axis=1 --attr-scales=src:0:bf16+dst:0 3x65x2",
    "scaled rows": "--softmax --sdt=bf16 --ddt=f32 --axis=1 --attr-scales=src:0 8x130",
    "gradients of windows of f64": "--pool --dir=BWD_D --dt=f64 mb2ic3ih7oh4kh3sh2ph1",
    "zero points of channels beside padding": (
        "--conv --dt=s8:s8:s32 --attr-zero-points=src:per_dim_1+wei:common:3"
        " g2mb2ic6oc8ih6oh6kh3ph1"
    ),
    "4-bit zero points of channels": (
        "--conv --dt=u8:s8:s8 --attr-zero-points=dst:2:s4 g5mb2ic5oc5ih7oh7kh3ph1"
    ),
    "a 4-bit zero point beside other bits": (
        "--matmul --dt=s8:u4:u8 --attr-zero-points=dst:0:u4 2x7x17:2x17x8"
    ),
    "parts of a sum of halves": "--matmul --dt=f16 1x2000:2000x3",
}
AT_RANDOM = "--attr-rounding-mode=dst:stochastic"
RANDOM = {
    "phases of diff_src": (
        "--conv --dir=BWD_D --dt=bf16 --attr-rounding-mode=diff_src:stochastic"
        " mb2ic5oc7ih6oh3kh3sh2ph1"
    ),
    "rows side by side": (
        f"--softmax --sdt=bf16 --ddt=bf16 --stag=axb --dtag=axb --axis=2 {AT_RANDOM} 3x32x7"
    ),
    "vectors of channels": (
        f"--pool --dt=f16 --tag=axb --alg=avg_p {AT_RANDOM} mb2ic32ih8oh4kh3sh2ph1"
    ),
    "neighbours of dst": (
        f"--reduction --sdt=f32 --ddt=f16 --stag=axb --alg=sum {AT_RANDOM} 3x32x50:3x32x1"
    ),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("target", CPUS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_types_and_attributes(name, target):
    ((problem,)) = read(PROBLEMS[name])
    result = run_case(
        problem, target.engine, impl="opencl:*", checks=("random", "guards", "padding")
    )
    assert result.executed
    assert not result.failures


def outputs(op, attr, engine, impl, inputs):
    """The result of an implementation as an array."""
    pd = dnn.PrimitiveDesc(op, engine, attr, impl=impl)
    memories = {
        argument.name: dnn.Memory.from_numpy(inputs[argument.name].copy(), desc, engine)
        if argument.name in inputs
        else dnn.Memory(desc, engine)
        for argument, desc in pd.arguments
    }
    pd.primitive().execute(engine.stream(), **memories).wait()
    return np.array(memories[pd.op.result_name].numpy())


@pytest.mark.parametrize("target", CPUS, ids=str)
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_those_of_the_reference(name, target):
    ((problem,)) = read(RANDOM[name])
    inputs = make_round(problem.op, problem.attr, "random", 3, None).inputs
    cases = ((target.engine, "opencl:*"), (dnn.engine("cpu"), "reference:*"))
    got, expected = (outputs(problem.op, problem.attr, *case, inputs) for case in cases)
    assert np.mean(got == expected) > 0.98  # with others, every second bit would be wrong


@pytest.mark.parametrize("target", CPUS, ids=str)
@pytest.mark.parametrize("name", F8)
def test_all_values_of_8_bit_floats(name, target):
    own = np.arange(256, dtype=np.uint8).view(F8[name])
    with np.errstate(invalid="ignore"):
        finite = own.astype(np.float64)
    finite = np.sort(finite[np.isfinite(finite)])
    ties = (finite[1:] + finite[:-1]) / 2
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    near = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])
    for src, src_type, dst_type in (
        (own, name, "f32"), (own, name, "s4"), (halves, "f16", name), (near, "f64", name),
    ):  # fmt: skip
        descs = [dnn.MemoryDesc(src.shape, own_type) for own_type in (src_type, dst_type)]
        op = dnn.Reorder(src=descs[0], dst=descs[1])
        cases = ((target.engine, "opencl:*"), (dnn.engine("cpu"), "reference:*"))
        got, expected = (outputs(op, dnn.Attributes(), *case, {"src": src}) for case in cases)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got.astype("f8"), expected.astype("f8"))


@pytest.mark.parametrize("target", CPUS, ids=str)
@pytest.mark.parametrize("probability", [-np.inf, -0.5, 2.0**-20, 1.0, 1.5, np.inf, np.nan])
def test_any_probability_of_dropout(probability, target):
    engine, desc = target.engine, dnn.MemoryDesc((7, 9))
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    attr = dnn.Attributes(dropout=dnn.Dropout(has_mask=True))
    pd = dnn.PrimitiveDesc(op, engine, attr, impl="opencl:*")
    values = {"src": 1, "dropout_probability": probability, "dropout_seed": 7}
    given = {argument.name: dnn.Memory(own, engine) for argument, own in pd.arguments}
    for name, value in values.items():
        given[name].fill(value)
    pd.primitive().execute(engine.stream(), **given).wait()
    assert (given["dropout_mask"].numpy() == (not probability >= 1)).all()
