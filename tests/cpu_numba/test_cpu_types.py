"""Operations without products in half types and integers, in the ways of the CPU backend.

Beside the kit's cases: long and streamed tensors, in place, mixed types, and post-ops, before which
a result must not be rounded.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.runtime import tensor

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case

CPU = dnn.engine("cpu")

# Rounded before the post-ops, too, a result would differ: the kit compares with one rounding.
ROUNDED_ONCE = """
--pool --dt=bf16 --dir=FWD_I --alg=avg_np --attr-post-ops=linear:3:0.1 mb2ic35_ih9oh5kh3sh2ph1
--pool --dt=f16 --alg=avg_p --tag=axb --attr-post-ops=sum:0.5+linear:3 mb2ic35_ih9oh5kh3sh2ph1
--lrn --dt=bf16 --dir=FWD_D --alg=WITHIN --attr-post-ops=linear:3:0.1 mb2ic7ih9
--lrn --dt=f16 --dir=BWD_D --tag=axb --alg=ACROSS mb2ic32ih5
--softmax --sdt=f32 --ddt=bf16 --axis=1 --attr-post-ops=linear:3:0.1 5x100
--reduction --alg=mean --sdt=f16 --ddt=f16 --p=2 --attr-post-ops=sum:2+linear:3 5x37x9:5x1x9
"""
# Vectors longer than softmax's buffer; results that are streamed, with and without whole lines.
LONG = """
--softmax --sdt=bf16 --ddt=bf16 --axis=1 2x40000
--softmax --sdt=f16 --ddt=f32 --alg=LOGSOFTMAX --axis=0 5000x3
--softmax --dir=BWD_D --sdt=bf16 --ddt=bf16 --axis=1 3x5001
--softmax --sdt=bf16 --ddt=bf16 --axis=1 5x257
--softmax --dir=BWD_D --sdt=f16 --ddt=f16 --alg=LOGSOFTMAX --axis=1 3x2048
--eltwise --dt=bf16 --alg=relu 42001
--eltwise --dt=f16 --alg=square --attr-post-ops=linear:2 210x201
--binary --sdt=bf16:f32 --ddt=bf16 --alg=add 210x201:1x201
--binary --sdt=bf16:bf16 --ddt=bf16 --alg=add --stag=abx:abx 5x9x257:5x9x1
--binary --sdt=f16:f16 --ddt=f16 --alg=div --stag=axb:axb 2x64x9x9:1x64x1x1
--binary --sdt=f32:f32 --ddt=f32 --alg=sub --stag=abx:abx 5x9x256:5x1x1
--pool --dt=bf16 --alg=max --tag=axb mb2ic64_ih13oh13kh3ph1
--pool --dir=FWD_I --dt=f16 --alg=max --tag=axb mb2ic130_ih13oh7kh3sh2ph1
"""
INTEGERS = """
--pool --dt=s32 --alg=max --tag=axb mb2ic35_ih9oh5kh3sh2ph1
--pool --dt=s32 --alg=max mb2ic35_ih9oh5kh3sh2ph1
--pool --dt=u8 --alg=max --tag=aBx16b mb2ic35_ih9oh5kh3sh2ph1
--pool --dir=FWD_I --dt=s8 --alg=max --tag=axb mb1ic130_ih9oh5kh3sh2ph1
--pool --dir=FWD_I --dt=u8 --alg=max mb1ic35_ih9oh5kh3sh2ph1
--pool --dir=FWD_I --dt=s8:f32 --alg=avg_np mb2ic35_ih9oh5kh3sh2ph1
--eltwise --dt=s8 --alg=linear --alpha=0.5 --beta=1 --attr-post-ops=sum:2 3x37x5
--binary --sdt=u8:s32 --ddt=bf16 --alg=mul 3x37x5:1x37x1
--sum --sdt=s32:u8 --ddt=s8 --scales=1:2 3x37x5
--softmax --sdt=s8 --ddt=u8 --axis=2 3x37x5
--reduction --alg=max --sdt=u8 --ddt=s32 7x4000:1x1
"""
PROBLEMS = read(ROUNDED_ONCE + LONG + INTEGERS)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_ways_of_other_types(problem, monkeypatch):
    monkeypatch.setattr(tensor, "STREAM_RESULT_BYTES", 1 << 12)
    result = run_case(problem, CPU, impl="cpu_numba:*", checks=["integers", "random"])
    assert not result.failures, str(result)
    assert result.impl_names


@pytest.mark.parametrize("kind", ["f16", "bf16", "u8"])
@pytest.mark.parametrize("length", [1, 63, 4097])
def test_in_place(kind, length):
    desc = dnn.MemoryDesc((length,), kind)
    values = np.arange(length).astype(np.float32) % 250
    memory = dnn.Memory.from_numpy(values.astype(desc.dtype), desc, CPU)
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=0.5)
    stream = CPU.stream()
    primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    primitive.execute(stream, src=memory, dst=memory).wait()
    np.testing.assert_array_equal(
        memory.numpy().astype(np.float32), np.rint(values / 2) if kind == "u8" else values / 2
    )


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("tag", ["nchw", "nhwc", "nChw16c"])
def test_the_largest_of_all_halves(kind, tag):
    """All bits, so NaN and infinities of both signs."""
    src, dst = dnn.MemoryDesc((2, 37, 11, 11), kind), dnn.MemoryDesc((2, 37, 6, 6), kind)
    bits = np.random.default_rng(0).integers(0, 1 << 16, src.dims, np.uint16, endpoint=False)
    bits[0] &= 0xFF0F if kind == "bf16" else 0xFBFF  # fewer NaN
    op = dnn.PoolingForward(
        "forward_inference", "max", src=src.with_format(tag), dst=dst.with_format(tag),
        kernel=(3, 3), strides=(2, 2), padding_l=(1, 1),
    )  # fmt: skip
    stream, found = CPU.stream(), []
    memory = dnn.reorder(dnn.Memory.from_numpy(bits.view(src.dtype), src, CPU), op.src, CPU, stream)
    for impl in ("cpu_numba:*", "reference:*"):
        result = dnn.Memory(op.dst, CPU)
        dnn.PrimitiveDesc(op, CPU, impl=impl).primitive().execute(stream, src=memory, dst=result)
        found.append(result.numpy().astype(np.float32))
    np.testing.assert_array_equal(*found)


def test_a_bias_with_gaps_is_cut_from_a_row_of_ones():
    """Sums of an odd number of pairs of bf16, in two places that are not neighbours."""
    for problem in read("--ip --dir=BWD_WB --dt=bf16:f32:bf16 --bia-dt=f32 --btag=a@2 mb5ic3oc2"):
        result = run_case(problem, CPU, impl="cpu_numba:*", checks=["integers", "random"])
        assert result.impl_names
        assert not result.failures
