"""Compiled functions stay in memory while a program uses them, and not much longer."""

import gc
from collections import deque

import numpy as np
import pytest
from dnncore_cpu_numba.codegen import native

import dnncore as dnn
from dnncore.cache import primitives
from dnncore.problem import read
from dnncore.selection import ranking

CPU = dnn.engine("cpu")
KEPT = 2
WIDTHS = range(13, 21)  # of rows whose places are compiled in: each has a kernel of its own


@pytest.fixture
def few_kept(monkeypatch):
    """Keep few functions that nobody uses."""
    monkeypatch.setattr(native, "_recent", deque(maxlen=KEPT))
    forget()
    yield
    forget()


def forget():
    primitives.clear()
    ranking.forget()
    gc.collect()


def convolution(width):
    """A bound convolution whose every dst is the width of its rows, and its dst."""
    src = dnn.MemoryDesc((1, 5, 5, width + 2), "f32", "acdb")
    dst = dnn.MemoryDesc((1, 3, 3, width), "f32", "acdb")
    op = dnn.ConvolutionForward(
        "forward_inference", src=src, weights=dnn.MemoryDesc((3, 5, 3, 3), "f32", "any"),
        dst=dst, strides=(1, 1), padding_l=(0, 0), padding_r=(0, 0),
    )  # fmt: skip
    pd = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:brgemm*")
    memories = {argument.name: dnn.Memory(desc, CPU) for argument, desc in pd.arguments}
    memories["src"].fill(1.0)
    memories["weights"].fill(width / 45)
    return pd.primitive().bind(**memories), memories["dst"]


def test_unused_functions_are_unloaded(few_kept):
    convolution(WIDTHS[0] - 1)
    before = native.loaded()
    counts = []
    for width in WIDTHS:
        convolution(width)
        forget()
        counts.append(native.loaded())
    assert max(counts) <= before + KEPT + 4  # those of one shape
    assert len(native._unused) <= 4


def test_functions_in_use_stay(few_kept):
    calls = {width: convolution(width) for width in WIDTHS[:3]}
    sequence = dnn.Sequence([call for call, _ in calls.values()])
    stream = CPU.stream()
    for width in WIDTHS[3:]:
        convolution(width)
        forget()
    for width, (call, dst) in calls.items():
        dst.fill(0.0)
        call(stream)
        np.testing.assert_allclose(dst.numpy(), width, rtol=1e-5)
        dst.fill(0.0)
    sequence(stream)
    for width, (_, dst) in calls.items():
        np.testing.assert_allclose(dst.numpy(), width, rtol=1e-5)


def test_functions_that_are_loaded_again_compute(few_kept):
    for _ in range(2):
        for width in WIDTHS[:4]:
            call, dst = convolution(width)
            call(CPU.stream())
            np.testing.assert_allclose(dst.numpy(), width, rtol=1e-5)
            forget()


def test_one_kernel_serves_images_of_any_number_of_channels():
    """The distance of up to twelve pixels of a row is an argument."""

    def made(channels):
        src = dnn.MemoryDesc((1, channels, 6, 12), "f32", "acdb")
        weights = dnn.MemoryDesc((40, channels, 3, 3), "f32", "any")
        op = dnn.ConvolutionForward(
            "forward_inference", src=src, weights=weights,
            dst=dnn.MemoryDesc((1, 40, 4, 10), "f32", "acdb"), strides=(1, 1), padding_l=(0, 0),
            padding_r=(0, 0),
        )  # fmt: skip
        pd = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:brgemm:*")
        return {code.address for code in pd.primitive().executable._code}

    assert made(21) == made(25) == made(33)


TEXTS = (
    "--rnn --alg=VANILLA_GRU l1t2mb2_slc3dhc3",
    "--rnn --dir=BWD_DW --alg=VANILLA_GRU l1t2mb2_slc3dhc3",
    "--bnorm --dir=BWD_DW mb2ic3ih4",
    "--sdpa 1x1x3x4:1x1x4x5:1x1x5x3",
)


@pytest.mark.parametrize("text", TEXTS)
def test_each_program_of_an_answer_keeps_its_code(text):
    """Answers are cached and built again. Else the second program would run unloaded code."""
    (problem,) = read(text)
    pd = dnn.PrimitiveDesc(problem.op, CPU, problem.attr, impl="cpu_numba:*")
    first, second = (pd._build() for _ in range(2))
    assert first._code == second._code
