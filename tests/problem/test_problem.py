"""The problem text: lines of benchdnn, and writing and reading of every operation."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import KINDS, problems, retyped

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.ops.window import window_output
from dnncore.problem import DRIVERS, Problem, read, read_files
from dnncore.testing.problems.random_problems import draw


def desc(dims, tag="any", data_type="f32", **layout):
    return dnn.MemoryDesc(dims, data_type, tag, **layout)


def the(text):
    """The one problem of a text."""
    (problem,) = read(text)
    return problem


def convolution(src, weights, dst, *, bias=True, **fields):
    return dnn.ConvolutionForward(
        "forward_training",
        src=desc(src),
        weights=desc(weights),
        bias=desc((dst[1],), "x") if bias else None,
        dst=desc(dst),
        **fields,
    )


def inner_product(mb, ic, oc):
    return dnn.InnerProductForward(
        "forward_training",
        src=desc((mb, *ic)),
        weights=desc((oc, *ic)),
        bias=desc((oc,), "x"),
        dst=desc((mb, oc)),
    )


def matmul(src, weights, dst, **fields):
    return dnn.MatMul(src=desc(src), weights=desc(weights), dst=desc(dst), **fields)


def pooling(algorithm, src, dst, kernel, **fields):
    return dnn.PoolingForward(
        "forward_training", algorithm, src=desc(src, None), dst=desc(dst, None), kernel=kernel,
        **fields,
    )  # fmt: skip


def lrn(src, algorithm="across_channels", **fields):
    numbers = {"alpha": 1 / 8192, **fields}
    x = desc(src, None)
    return dnn.LRNForward("forward_training", algorithm, src=x, dst=x, **numbers)


# line -> its operation, written by hand
LINES = {
    # ResNet-50's first layer and others of known networks
    'mb50ic3ih224oc64oh112kh7sh2ph3n"conv1"': convolution(
        (50, 3, 224, 224), (64, 3, 7, 7), (50, 64, 112, 112),
        strides=2, padding_l=3, padding_r=2,
    ),
    "mb50ic64ih56oc256oh56kh1ph0": convolution(
        (50, 64, 56, 56), (256, 64, 1, 1), (50, 256, 56, 56)
    ),
    "mb50ic64ih56oc64oh56kh3ph1": convolution(
        (50, 64, 56, 56), (64, 64, 3, 3), (50, 64, 56, 56), padding_l=1
    ),
    "g1mb256ic3ih227oc96oh55kh11sh4ph0": convolution(
        (256, 3, 227, 227), (1, 96, 3, 11, 11), (256, 96, 55, 55), strides=4
    ),
    "g2mb256ic96ih27oc256oh27kh5ph2": convolution(
        (256, 96, 27, 27), (2, 128, 48, 5, 5), (256, 256, 27, 27), padding_l=2
    ),
    "mb64ic64ih224oc64oh224kh3ph1": convolution(
        (64, 64, 224, 224), (64, 64, 3, 3), (64, 64, 224, 224), padding_l=1
    ),
    "mb32ic3oc32ih224oh112kh3sh2ph1": convolution(
        (32, 3, 224, 224), (32, 3, 3, 3), (32, 32, 112, 112),
        strides=2, padding_l=1, padding_r=0,
    ),
    "g32mb1ic32ih112oc32oh112kh3sh1ph1": convolution(
        (1, 32, 112, 112), (32, 1, 1, 3, 3), (1, 32, 112, 112), padding_l=1
    ),
    'mb1ic3ih224oc64oh112kh7sh2ph3n"c1"': convolution(
        (1, 3, 224, 224), (64, 3, 7, 7), (1, 64, 112, 112), strides=2, padding_l=3, padding_r=2
    ),
    # absent letters
    "ic3_ih224_oc64_kh7_sh2_ph3": convolution(
        (2, 3, 224, 224), (64, 3, 7, 7), (2, 64, 112, 112), strides=2, padding_l=3
    ),
    "ic4oc8ih10oh10kh3": convolution(
        (2, 4, 10, 10), (8, 4, 3, 3), (2, 8, 10, 10), padding_l=1
    ),
    "ic4oc8ih10kh3dh1": convolution((2, 4, 10, 10), (8, 4, 3, 3), (2, 8, 6, 6), dilations=1),
    "mb1ic4oc8iw10ow8kw3": convolution((1, 4, 10), (8, 4, 3), (1, 8, 8)),
    "mb1ic4oc8_id5kd3_ih6kh1_iw7kw2": convolution(
        (1, 4, 5, 6, 7), (8, 4, 3, 1, 2), (1, 8, 3, 6, 6)
    ),
    "mb1ic4oc8_id5kd3pd1": convolution(
        (1, 4, 5, 5, 5), (8, 4, 3, 3, 3), (1, 8, 5, 5, 5), padding_l=1
    ),
    "mb1_ic4oc8_ih9oh4kh3sh2dh0ph0_iw10ow4kw3sw2dw0pw0": convolution(
        (1, 4, 9, 10), (8, 4, 3, 3), (1, 8, 4, 4), strides=2, padding_r=(0, -1)
    ),
    "--ip mb2ic1oc1": inner_product(2, (1,), 1),
    "--ip mb256ic9216oc4096": inner_product(256, (9216,), 4096),
    "--ip mb50ic2048oc1000": inner_product(50, (2048,), 1000),
    "--ip mb256ic256ih6oc4096": inner_product(256, (256, 6, 6), 4096),
    "--ip mb2ic3_id2ih3iw4_oc5": inner_product(2, (3, 2, 3, 4), 5),
    "--matmul 12x128x64:12x64x128": matmul((12, 128, 64), (12, 64, 128), (12, 128, 128)),
    "--matmul 30x4096:4096x14336": matmul((30, 4096), (4096, 14336), (30, 14336)),
    "--matmul 2x128x64:2x64x128:2x128x128": matmul((2, 128, 64), (2, 64, 128), (2, 128, 128)),
    "--matmul 1x3x4:5x4x6": matmul((1, 3, 4), (5, 4, 6), (5, 3, 6)),
    "--matmul --bia_dt=f32 --bia_mask=4 2x10x30:2x30x20": matmul(
        (2, 10, 30), (2, 30, 20), (2, 10, 20), bias=desc((1, 1, 20), None)
    ),
    "--matmul --bia-dt=f32 10x30:30x20": matmul(
        (10, 30), (30, 20), (10, 20), bias=desc((1, 20), None)
    ),
    "--matmul --strides=8x4x1:24x6x1:21x7x1 3x2x4:3x4x6": dnn.MatMul(
        src=desc((3, 2, 4), None, strides=(8, 4, 1)),
        weights=desc((3, 4, 6), None, strides=(24, 6, 1)),
        dst=desc((3, 2, 6), None, strides=(21, 7, 1)),
    ),
    "--matmul --stag=acb --wtag=abx --strides=::8x4x1 2x2x3:2x3x2": dnn.MatMul(
        src=desc((2, 2, 3), "acb"),
        weights=desc((2, 3, 2), "abc"),
        dst=desc((2, 2, 2), None, strides=(8, 4, 1)),
    ),
    "--pool mb50ic64_ih112oh56_kh3sh2": pooling(
        "max", (50, 64, 112, 112), (50, 64, 56, 56), 3, strides=2, padding_l=0, padding_r=1
    ),
    "--pool --alg=avg_np mb50ic2048_ih7oh1_kh7sh1": pooling(
        "avg_exclude_padding", (50, 2048, 7, 7), (50, 2048, 1, 1), 7
    ),
    "--pool --alg=avg_p mb96ic768_ih17oh17_kh3sh1ph1": pooling(
        "avg_include_padding", (96, 768, 17, 17), (96, 768, 17, 17), 3, padding_l=1
    ),
    "--pool --alg=pooling_avg_exclude_padding ic2iw4kw2": pooling(
        "avg_exclude_padding", (2, 2, 4), (2, 2, 3), 2
    ),
    "--lrn mb256ic96_ih55": lrn((256, 96, 55, 55)),
    "--lrn mb256ic256_ih27": lrn((256, 256, 27, 27)),
    "--lrn --alg=WITHIN mb2ic3_iw9_ls3alpha1e-4beta0.5k2": lrn(
        (2, 3, 9), "within_channel", local_size=3, alpha=1e-4, beta=0.5, k=2
    ),
    "--lrn --alg=lrn_across_channels mb2ic16ls7": lrn((2, 16), local_size=7),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_means_what_benchdnn_means(line):
    text = line if line.startswith("--") else f"--conv {line}"
    assert the(text).op == LINES[line]


X = desc((2, 3, 4, 5), None)
CHANNELS_LAST = desc((2, 3, 4, 5), "acdb")
WORDS = {
    "--eltwise 2x3x4x5": dnn.EltwiseForward("forward_training", "relu", src=X, dst=X),
    "--eltwise --tag=axb --alg=linear --alpha=2 --beta=-0.5 2x3x4x5": dnn.EltwiseForward(
        "forward_training", "linear", src=CHANNELS_LAST, dst=CHANNELS_LAST, alpha=2, beta=-0.5
    ),
    "--eltwise --dir=FWD_I --alg=eltwise_tanh --stag=acdb --dtag=any 2x3x4x5": dnn.EltwiseForward(
        "forward_inference", "tanh", src=CHANNELS_LAST, dst=desc((2, 3, 4, 5))
    ),
    "--eltwise --dir=BWD_D --alg=RELU 2x3x4x5": dnn.EltwiseBackward(
        "relu", src=X, diff_dst=X, diff_src=X
    ),
    "--eltwise --dir=BWD_D --alg=relu_dst --stag=any --dtag=abx:axb 2x3x4x5": dnn.EltwiseBackward(
        "relu_use_dst_for_bwd", dst=X, diff_dst=CHANNELS_LAST, diff_src=desc((2, 3, 4, 5))
    ),
    "--softmax 2x3x4x5": dnn.SoftmaxForward(
        "forward_training", "accurate", src=X, dst=desc((2, 3, 4, 5)), axis=1
    ),
    "--softmax --alg=LOGSOFTMAX --axis=3 --dtag=abx --dir=FWD_I 2x3x4x5": dnn.SoftmaxForward(
        "forward_inference", "log", src=X, dst=X, axis=3
    ),
    "--softmax --alg=softmax_log --dir=BWD_D --stag=axb --dtag=abx 2x3x4x5": dnn.SoftmaxBackward(
        "log", dst=X, diff_dst=X, diff_src=CHANNELS_LAST, axis=1
    ),
    "--prelu --dir=FWD_I --stag=axb:abx --dtag=axb 2x3x4x5:1x3x1x1": dnn.PReLUForward(
        "forward_inference", src=CHANNELS_LAST, weights=desc((1, 3, 1, 1), None), dst=CHANNELS_LAST
    ),
    "--prelu --dir=bwd_dw --stag=abx:abx:axb:any --dtag=abx 2x3x4x5:1x3x1x1": dnn.PReLUBackward(
        src=X, weights=desc((1, 3, 1, 1), None), diff_dst=X, diff_src=CHANNELS_LAST,
        diff_weights=desc((1, 3, 1, 1)),
    ),
    "--binary --alg=MUL --stag=axb:abx --dtag=axb 2x3x4x5:1x3x1x1": dnn.Binary(
        "mul", src0=CHANNELS_LAST, src1=desc((1, 3, 1, 1), None), dst=CHANNELS_LAST
    ),
    "--binary --sdt=f32:f32 --ddt=f32 --alg=binary_sub 2x3x4x5:2": dnn.Binary(
        "sub", src0=X, src1=desc((2, 1, 1, 1), None), dst=desc((2, 3, 4, 5))
    ),
    "--binary --alg=SELECT 2x3x4x5:1x3x4x5:2x3x1x1": dnn.Binary(
        "select", src0=X, src1=desc((1, 3, 4, 5), None),
        src2=desc((2, 3, 1, 1), None, "s8"), dst=desc((2, 3, 4, 5)),
    ),
    "--sum 2x3x4x5": dnn.Sum((1, 1), srcs=[X, X], dst=desc((2, 3, 4, 5))),
    "--sum --sdt=f32:f32:f32 --scales=2:4:0.5 --stag=abx:axb:abx --dtag=axb 2x3x4x5": dnn.Sum(
        (2, 4, 0.5), srcs=[X, CHANNELS_LAST, X], dst=CHANNELS_LAST
    ),
    "--sum --sdt=f32 --scales=3 --dtag=undef 2x3x4x5": dnn.Sum(
        (3,), srcs=[X], dst=desc((2, 3, 4, 5))
    ),
    "--concat --axis=2 --dtag=axb 2x3x4x5:2x3x1x5": dnn.Concat(
        srcs=[X, desc((2, 3, 1, 5), "nchw")], dst=desc((2, 3, 5, 5), "nhwc"), axis=2
    ),
    "--shuffle --dir=BWD_D --axis=2 --group=2 --stag=any --dtag=abx 2x3x4x5": dnn.ShuffleBackward(
        diff_src=desc((2, 3, 4, 5)), diff_dst=X, axis=2, group_size=2
    ),
    "--resampling --dir=FWD_I --alg=linear --tag=abx mb2ic3_ih4oh7_iw5ow2":
        dnn.ResamplingForward(
            "forward_inference", "linear", src=X, dst=desc((2, 3, 7, 2), "nchw")
        ),
    "--reduction --alg=norm_lp_sum --p=2 --eps=0.5 2x3x4x5:2x1x4x1": dnn.Reduction(
        "norm_lp_sum", src=X, dst=desc((2, 1, 4, 1)), p=2, eps=0.5
    ),
    "--reduction --stag=axb --alg=reduction_mean 2x3x4x5:1x3x4x5": dnn.Reduction(
        "mean", src=CHANNELS_LAST, dst=desc((1, 3, 4, 5)), p=1
    ),
    "--reorder --sdt=f32 --ddt=s8 --dtag=aBcd8b 2x3x4x5": dnn.Reorder(
        src=X, dst=desc((2, 3, 4, 5), "aBcd8b", "s8")
    ),
    "--reorder --strides=:80x20x5x1 2x3x4x5": dnn.Reorder(
        src=X, dst=desc((2, 3, 4, 5), None, strides=(80, 20, 5, 1))
    ),
    "--lrn --dir=BWD_D --stag=abx:axb --dtag=axb mb2ic3_ih4iw5_ls5alpha0.5": dnn.LRNBackward(
        "across_channels", src=X, diff_src=CHANNELS_LAST, diff_dst=CHANNELS_LAST, alpha=0.5
    ),
    "--pool --dir=BWD_D --tag=axb mb2ic3_ih4kh2_iw5kw3": dnn.PoolingBackward(
        "max", diff_src=CHANNELS_LAST, diff_dst=desc((2, 3, 3, 3), "acdb"), kernel=(2, 3)
    ),
    "--conv --dir=BWD_WB --wtag=abx ic3oc4iw5kw2": dnn.ConvolutionBackwardWeights(
        src=desc((2, 3, 5)), diff_weights=desc((4, 3, 2), None), diff_bias=desc((4,), None),
        diff_dst=desc((2, 4, 4)),
    ),
    "--conv --dir=BWD_D --alg=auto ic3oc4iw5kw2": dnn.ConvolutionBackwardData(
        diff_src=desc((2, 3, 5)), weights=desc((4, 3, 2)), diff_dst=desc((2, 4, 4)),
        algorithm="auto",
    ),
    "--conv --dir=FWD_D --alg=convolution_winograd mb1ic4oc8iw10ow8kw3": convolution(
        (1, 4, 10), (8, 4, 3), (1, 8, 8), bias=False, algorithm="winograd"
    ),
    "--conv --dir=FWD_I --dt=f32:f32:f32 ic3oc4iw5kw2": dnn.ConvolutionForward(
        "forward_inference", src=desc((2, 3, 5)), weights=desc((4, 3, 2)), dst=desc((2, 4, 4))
    ),
    "--ip --dir=BWD_W --stag=ab@8x1@3 mb2ic3oc4": dnn.InnerProductBackwardWeights(
        src=desc((2, 3), "ab", strides=(8, 1), offset0=3),
        diff_weights=desc((4, 3)), diff_dst=desc((2, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", WORDS)
def test_options_set_the_operation(line):
    assert the(line).op == WORDS[line]


CHAINS = {
    "relu": [dnn.PostOp.eltwise("relu")],
    "relu:0.1+sum:0.25": [dnn.PostOp.eltwise("relu", 0.1), dnn.PostOp.sum(0.25)],
    "eltwise_linear:2:-1+binary_add:f32:per_tensor": [
        dnn.PostOp.eltwise("linear", 2, -1), dnn.PostOp.binary("add", X)
    ],
    "sum:1e+22+exp": [dnn.PostOp.sum(1e22), dnn.PostOp.eltwise("exp")],
    "mul:f32:per_oc": [dnn.PostOp.binary("mul", desc((1, 3, 1, 1), None))],
    "max:f32:per_tensor:axb": [dnn.PostOp.binary("max", CHANNELS_LAST)],
    "add:f32:common+prelu:2": [
        dnn.PostOp.binary("add", desc((1, 1, 1, 1), None)),
        dnn.PostOp.prelu(desc((1, 3, 1, 1), None)),
    ],
    "div:f32:9:abx:8x8x8x1": [
        dnn.PostOp.binary("div", desc((2, 1, 1, 5), None, strides=(8, 8, 8, 1)))
    ],
    "select:f32.per_oc.axb:per_dim_01": [
        dnn.PostOp.binary("select", desc((1, 3, 1, 1), "acdb"), desc((2, 3, 1, 1), None, "s8"))
    ],
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_post_ops(chain):
    attr = the(f"--eltwise --attr-post-ops={chain} 2x3x4x5").attr
    assert attr == dnn.Attributes(CHAINS[chain])


def test_other_attributes():
    words = "--attr-scratchpad=user --attr-deterministic=true --attr-fpmath=bf16"
    problem = the(f"--eltwise {words} --impl=cpu_numba:* --skip-impl=*:ref,*:gemm 2x3")
    assert problem.attr == dnn.Attributes(scratchpad="user", deterministic=True, fpmath="bf16")
    assert (problem.impl, problem.skip_impl) == ("cpu_numba:*", "*:ref,*:gemm")


# -- the state between words -----------------------------------------------------------------------


def texts(text):
    return [str(problem) for problem in read(text)]


def test_options_apply_to_all_shapes_after_them():
    assert texts("--eltwise --alg=exp 2x3 --tag=ba 4x5 --alg=abs 6x7") == [
        "--eltwise --alg=exp 2x3",
        "--eltwise --tag=ba --alg=exp 4x5",
        "--eltwise --tag=ba --alg=abs 6x7",
    ]


@pytest.mark.parametrize("words", ["--reset", "--eltwise"])
def test_a_driver_and_reset_restore_the_defaults(words):
    assert texts(f"--eltwise --alg=exp --attr-post-ops=relu {words} 2x3") == ["--eltwise 2x3"]


def test_alternatives_are_multiplied():
    found = texts("--eltwise --dir=FWD_D,BWD_D --tag=abx,axb --attr-post-ops=,relu 2x3x4")
    expected = itertools.product(
        ("", " --dir=BWD_D"), ("", " --tag=acb"), ("", " --attr-post-ops=relu")
    )
    assert sorted(found) == sorted(f"--eltwise{''.join(words)} 2x3x4" for words in expected)


def test_mb_overrides_the_batch():
    (own, one, seven) = read("--conv --mb=0,1,7 mb4ic3oc4iw5kw2")
    assert [problem.op.src.dims[0] for problem in (own, one, seven)] == [4, 1, 7]
    assert the("--softmax --mb=9 4x5").op.src.dims == (9, 5)


def test_match_drops_problems_without_a_match():
    words = '--eltwise --alg=exp,abs,relu 2x3n"a:one" 2x4'
    assert texts(f"--match=abs.*4$ {words}") == ["--eltwise --alg=abs 2x4"]
    assert len(read(f"--match=a:one {words}")) == 3
    assert len(read(f"--match=a:one --match= {words}")) == 6
    assert texts(f"--match=exp {words} --lrn mb2ic3 --match= mb2ic3") == [
        '--eltwise --alg=exp 2x3n"a:one"',
        "--eltwise --alg=exp 2x4",
        "--lrn mb2_ic3_ls5alpha0.0001220703125beta0.75k1",
    ]


def test_a_name_is_kept_with_its_multiplicity():
    first, second = read('--conv ic3oc4iw5kw2n"net:conv2*4" ic3oc4iw5kw2_n"net:conv3"')
    assert (first.name, second.name) == ("net:conv2*4", "net:conv3")
    assert first.op == second.op
    assert first != second
    assert the(str(first)) == first


def test_words_may_come_from_a_shell():
    assert read(["--eltwise", "--alg=exp", "2x3"]) == read("--eltwise --alg=exp 2x3")


# -- files -----------------------------------------------------------------------------------------


def test_files_have_lines_comments_and_other_files(tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "shapes").write_text('# two\n2x3n"a"  # one\n\n  4x5 # --alg=nothing\n')
    (tmp_path / "sets" / "all").write_text("--reset --alg=exp,abs\n--batch=shapes\n")
    (tmp_path / "main").write_text("--eltwise\n--batch=sets/all\n--batch=here\n")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "here").write_text("6x7")
    monkeypatch.chdir(tmp_path / "cwd")
    expected = ['exp 2x3n"a"', 'abs 2x3n"a"', "exp 4x5", "abs 4x5", "exp 6x7", "abs 6x7"]
    assert [str(p) for p in read_files(tmp_path / "main")] == [
        f"--eltwise --alg={words}" for words in expected
    ]
    assert texts("--sum --batch=here") == ["--sum 6x7"]


# -- writing ---------------------------------------------------------------------------------------

WRITTEN = [
    ("--conv --dir=BWD_WB --stag=acdb --wtag=abx --dtag=aBcd16b"
     " g2mb2_ic4oc6_ih10oh4kh3sh2dh0ph0prh0_iw9ow4kw3sw2dw0pw0"),
    ("--conv --dir=FWD_I --attr-post-ops=relu:0.1+sum+add:f32:2+prelu:8:dabc@1x1x1x2@5"
     " mb2_ic4oc6_ih3oh3kh1sh1dh0ph0_iw4ow4kw1sw1dw0pw0"),
    "--ip --dir=FWD_IB --stag=abx mb2_ic16_ih6iw6_oc7",
    "--matmul --bia-dt=f32 --bia_mask=4 --wtag=acb 2x3x4:2x4x5",
    "--eltwise --dir=BWD_D --tag=acb --alg=elu_dst --alpha=0.5 2x3x4",
    ("--pool --dir=FWD_I --stag=aBcd8b --dtag=any --alg=avg_np"
     " mb2_ic3_ih4oh3kh2sh1dh0ph0_iw4ow5kw2sw1dw0pw1"),
    "--lrn --alg=WITHIN mb2_ic3_iw4_ls5alpha1e-05beta0.75k1",
    "--softmax --dir=BWD_D --stag=any --dtag=abx:acb --alg=LOGSOFTMAX --axis=2 2x3x4",
    "--prelu --dir=BWD_DW --sdt=f16:f32 --stag=abx:ba:ba:any --dtag=ba 2x3:2x3",
    "--binary --sdt=f32:f32:s8 --stag=abx:ba:abx --alg=SELECT 2x3:2x3:1x3",
    "--sum --sdt=f32:f32:f32 --dtag=ab@8x1@3 --scales=1:-1:2 2x3",
    "--reduction --alg=norm_lp_max --p=3 --eps=0.5 2x3:2x1",
    '--reorder --sdt=u8 --ddt=bf16 --dtag=ba --impl=cpu:* --skip-impl=*:ref 2x3n"r:1*2"',
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_a_written_text_has_the_settings_without_defaults_in_one_order(text):
    assert str(the(text)) == text


def test_a_line_may_continue_and_a_word_may_continue_after_a_comma():
    text = """--eltwise \\
        --alg=exp, \\
              abs,\\
        relu
    2x3 \\
    4x5 2y"""
    with pytest.raises(dnn.DescriptorError, match="problem text, line 5, word 3: 2y: "):
        read(text)
    found = texts(text.removesuffix("2y"))
    assert sorted(found) == sorted(
        f"--eltwise{alg} {shape}"
        for alg in (" --alg=exp", " --alg=abs", "")
        for shape in ("2x3", "4x5")
    )
    assert texts("--sum 2x3 \\") == ["--sum 2x3"]


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_operation_reads_back(driver):
    drawn = draw(40, driver, seed=1)
    assert {type(problem.op) for problem in drawn} == set(DRIVERS[driver].operations)
    for problem in drawn:
        assert read(str(problem)) == [problem]


def test_a_text_of_many_problems_reads_back():
    many = [Problem(op) for kind in KINDS for op in problems(kind, 5)]
    assert read("\n".join(map(str, many))) == many


LETTERS = "abcdefghijkl"


@st.composite
def formats(draw, dims, *, concrete, repeats=True):
    """A layout for these dims: a tag or strides, with gaps, repeated elements, an offset."""
    if not concrete and draw(st.integers(0, 3)) == 0:
        return {"format": "any"}
    order = draw(st.permutations(range(len(dims))))
    blocks = [
        (dim, draw(st.sampled_from((2, 3, 8, 16))))
        for dim in draw(st.lists(st.sampled_from(range(len(dims))), max_size=3))
    ]
    split = {dim for dim, _ in blocks}
    tag = "".join(LETTERS[dim].upper() if dim in split else LETTERS[dim] for dim in order)
    tag += "".join(f"{size}{LETTERS[dim]}" for dim, size in blocks)
    strides, step = [0] * len(dims), 1
    block = [1] * len(dims)
    for dim, size in blocks:
        step *= size
        block[dim] *= size
    for dim in reversed(order):
        step += draw(st.sampled_from((0, 0, 0, 1, 5)))
        strides[dim] = draw(st.sampled_from((step, step, step, step, 0 if repeats else step)))
        step *= max(-(-dims[dim] // block[dim]), 1)
    layout = {"format": tag, "offset0": draw(st.sampled_from((0, 0, 0, 1, 64)))}
    return layout | ({"strides": strides} if draw(st.booleans()) else {})


def reformatted(draw, op):
    """The same operation with another layout for every tensor, `any` where it is permitted."""

    written = {argument.name for argument in op.ARGUMENTS if argument.direction == "out"}

    def other(old, name, concrete):
        if isinstance(old, tuple):
            return tuple(other(one, name, concrete) for one in old)
        layout = formats(old.dims, concrete=concrete, repeats=name not in written)
        return dnn.MemoryDesc(old.dims, old.data_type, **draw(layout))

    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, dnn.MemoryDesc) or field.name == "srcs":
            try:
                op = dataclasses.replace(op, **{field.name: other(value, field.name, False)})
            except dnn.DescriptorError:
                op = dataclasses.replace(op, **{field.name: other(value, field.name, True)})
    return op


NUMBERS = st.floats(-3e38, 3e38)


@st.composite
def chains(draw, dims):
    """Attributes with operands that fit a result of these dims."""

    def operand(data_type="f32"):
        own = tuple(n if draw(st.booleans()) else 1 for n in dims)
        return dnn.MemoryDesc(own, data_type, **draw(formats(own, concrete=True)))

    steps = []
    for kind in draw(st.lists(st.sampled_from(("sum", "eltwise", "binary", "prelu")), max_size=3)):
        if kind == "sum":
            steps.append(dnn.PostOp.sum(draw(NUMBERS)))
        elif kind == "prelu":
            steps.append(dnn.PostOp.prelu(operand()))
        elif kind == "binary":
            algorithm = draw(st.sampled_from([*BINARY]))
            condition = [operand("s8")] if algorithm == "select" else []
            steps.append(dnn.PostOp.binary(algorithm, operand(), *condition))
        else:
            low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
            name = draw(st.sampled_from([*ELTWISE]))
            steps.append(dnn.PostOp.eltwise(name, low or 1.0, max(high, low or 1.0)))
    return dnn.Attributes(
        steps,
        scratchpad=draw(st.sampled_from(("library", "user"))),
        deterministic=draw(st.booleans()),
        fpmath=draw(st.sampled_from(("strict", "ieee", "bf16", "f16", "tf32", "any"))),
        scratchpad_limit=draw(st.sampled_from((None, 0, 1, 10**12))),
    )


KNOBS = st.sampled_from(["", "vectors:2", "order:rows+size:-8"])
NAMES = st.text(st.characters(codec="ascii", exclude_characters='"', categories=("L", "N", "P")))


@cache
def pool():
    return [op for kind in KINDS for op in problems(kind, 5)]


@st.composite
def any_problem(draw):
    op = reformatted(draw, draw(st.sampled_from(pool())))
    if hasattr(op, "prop_kind"):
        prop_kind = draw(st.sampled_from(("forward_training", "forward_inference")))
        with contextlib.suppress(dnn.DescriptorError):  # inference keeps no statistics
            op = dataclasses.replace(op, prop_kind=prop_kind)
    op = retyped(op, draw(st.sampled_from(("f16", "bf16"))), lambda: draw(st.booleans()))
    names = draw(NAMES), draw(NAMES), draw(NAMES)
    return Problem(op, draw(chains(op.result.dims)), *names, knobs=draw(KNOBS))


# `any_problem` draws its pool once.
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.nested_given])
@given(any_problem())
def test_every_format_and_attribute_reads_back(problem):
    assert read(str(problem)) == [problem]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_window_reads_back(data):
    def number(low, high):
        return data.draw(st.integers(low, high))

    spatial = number(1, 3)
    columns = []
    for _ in range(spatial):
        i, k, s, d, left = number(0, 9), number(1, 4), number(1, 4), number(0, 2), number(0, 4)
        right = number(1 - s, 4)
        columns.append((i, window_output(i, k, s, d, left, right), k, s, d, left, right))
    src, dst, kernel, strides, dilations, left, right = zip(*columns, strict=True)
    if min(dst) < 0:
        return
    window = {"strides": strides, "dilations": dilations, "padding_l": left, "padding_r": right}
    ops = [
        pooling("max", (2, 3, *src), (2, 3, *dst), kernel, **window),
        convolution((2, 3, *src), (4, 3, *kernel), (2, 4, *dst), bias=False, **window),
    ]
    assert read("\n".join(str(Problem(op)) for op in ops)) == [Problem(op) for op in ops]


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS)
def test_every_number_reads_back(alpha, beta):
    x = desc((2, 3), None)
    ops = [
        dnn.EltwiseForward("forward_training", "linear", src=x, dst=x, alpha=alpha, beta=beta),
        dnn.LRNForward(
            "forward_training", "across_channels", src=x, dst=x, alpha=alpha, beta=beta, k=alpha
        ),
        dnn.Sum((alpha, beta), srcs=[x, x], dst=x),
        dnn.Reduction("norm_lp_max", src=x, dst=desc((2, 1)), p=1 + abs(alpha), eps=beta),
    ]
    for op in ops:
        assert read(str(Problem(op))) == [Problem(op)]


def test_an_opaque_format_has_no_text():
    op = dataclasses.replace(
        the("--ip mb2ic3oc4").op, weights=dnn.MemoryDesc((4, 3), "f32", "cpu:packed:6", nbytes=64)
    )
    with pytest.raises(dnn.DescriptorError, match="cpu:packed:6"):
        str(Problem(op))
