"""Deconvolution: values by numpy, algebra, rules, its compositions."""

import numpy as np
import pytest

import dnncore as dnn
from dnncore import functional as F
from dnncore.backend import Composition


def desc(*dims):
    return dnn.MemoryDesc(dims)


def deconvolution(**changes):
    fields = {"src": desc(2, 3, 4, 4), "weights": desc(5, 3, 3, 3), "dst": desc(2, 5, 6, 6)}
    return dnn.DeconvolutionForward("forward_training", **(fields | changes))


def test_an_impulse_gives_the_kernel_at_its_window():
    image, kernel = np.zeros((1, 1, 3, 3), np.float32), np.arange(1, 5, dtype=np.float32)
    image[0, 0, 1, 2] = 1
    dst = F.deconv2d(image, kernel.reshape(1, 1, 2, 2), strides=2)
    assert dst[0, 0, 2:4, 4:6].tolist() == [[1, 2], [3, 4]]
    assert dst.sum() == 10


def test_channels_are_exchanged_in_comparison_with_convolution():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 5)), rng.normal(size=(4, 3, 2))
    y = rng.normal(size=(2, 4, 6))
    spread = F.deconv1d(x, w)
    gathered = F.conv1d(y, w.swapaxes(0, 1))
    assert np.vdot(spread, y) == pytest.approx(np.vdot(x, gathered))


def long(backend, engine, channels=1):
    """A deconvolution with 3,000 phases."""
    src, dst = desc(1, channels, 2), desc(1, channels + 1, 3002)
    op = dnn.DeconvolutionForward(
        "forward_training", src=src, weights=desc(channels + 1, channels, 2), dst=dst, strides=3000
    )
    return dnn.PrimitiveDesc(op, engine, impl=f"{backend}:*")


def test_long_strides_have_too_many_phases_for_products():
    pytest.importorskip("dnncore_cpu_numba")
    pd = long("cpu_numba", dnn.engine("cpu"))
    tensors = {name: dnn.Memory(getattr(pd.op, name)) for name in ("src", "weights", "dst")}
    tensors["src"].numpy()[...] = [[[1, 10]]]
    tensors["weights"].numpy()[...] = [[[2, 3]], [[0, 0]]]
    pd.primitive().execute(dnn.engine("cpu").stream(), **tensors).wait()
    got = tensors["dst"].numpy()[0, 0]
    assert {int(i): float(got[i]) for i in got.nonzero()[0]} == {0: 2, 1: 3, 3000: 20, 3001: 30}


def test_opencl_refuses_long_strides(target_engine):
    if target_engine.kind == "cpu":
        pytest.skip("only OpenCL launches each phase")
    with pytest.raises(dnn.NoImplementation, match="has up to 1024 phases; strides make 3000"):
        long("opencl", target_engine, channels=2)


RULES = {
    "src must be 2 along h, that is (dst 4 - kernel 3 + padding 0 + 0) / stride 1 + 1; got 4":
        lambda: deconvolution(dst=desc(2, 5, 4, 6)),
    "src has 3 channels but weights expect 4": lambda: deconvolution(weights=desc(5, 4, 3, 3)),
    "dst must begin with (2, 5)": lambda: deconvolution(dst=desc(2, 6, 6, 6)),
    "bias must be (5,)": lambda: deconvolution(bias=desc(3)),
    "unknown algorithm 'winograd'": lambda: deconvolution(algorithm="winograd"),
    "prop_kind must be one of": lambda: dnn.DeconvolutionForward(
        "backward", src=desc(1, 1, 2), weights=desc(1, 1, 1), dst=desc(1, 1, 2)),
    "padding 3 + 3 cuts off more than the 4 cells along w": lambda: F.deconv1d(
        [[[1, 2, 3]]], [[[1, 10]]], padding=3),
}  # fmt: skip


@pytest.mark.parametrize("text", RULES)
def test_rules(text):
    with pytest.raises(dnn.DescriptorError) as caught:
        RULES[text]()
    assert text in str(caught.value)


def test_weights_have_no_zero_points():
    op = deconvolution()
    with pytest.raises(dnn.DescriptorError, match="only src, dst can have them"):
        dnn.Attributes(zero_points={"weights": dnn.ZeroPoints()}).check(op)


def names(op, attr=None):
    return [pd.impl_name for pd in dnn.primitive_descs(op, dnn.engine("cpu"), attr)]


def test_implementations_and_their_refusals():
    found = names(deconvolution())
    assert "cpu_numba:convolution" in found
    assert "cpu_numba:phases" not in found
    scaled = dnn.Attributes(scales={"src": dnn.Scales()})
    assert "cpu_numba:convolution" not in names(deconvolution(), scaled)
    pd = dnn.PrimitiveDesc(deconvolution(), dnn.engine("cpu"), scaled, impl="cpu_numba:phases")
    assert pd.detail
    text = dnn.PrimitiveDesc(deconvolution(), dnn.engine("cpu"), scaled).explain()
    assert "takes no scales and no zero points" in text


class Doubled(Composition):
    """relu(2 x) in two steps; the first writes to a room."""

    STEM = "doubled"

    def compose(self, op, attr, steps):
        op = op.resolve_any(dst=op.src)
        room = steps.room(op.src)
        twice = dnn.EltwiseForward("forward_inference", "linear", src=op.src, dst=room.desc,
                                   alpha=2.0)  # fmt: skip
        steps.add(twice, dnn.Attributes(), src="src", dst=room)
        steps.add(op.with_descs(src=room.desc), attr, src=room, dst="dst")
        return op


@pytest.mark.parametrize("order", ["in", "out"])
def test_a_composition_runs_its_steps_in_order(order, target_engine):
    src = dnn.Memory.from_numpy(np.float32([[-1, 2, 3]]), engine=target_engine)
    dst = dnn.Memory(src.desc, target_engine)
    backend = "cpu_numba" if target_engine.kind == "cpu" else target_engine.kind
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=src.desc)
    accepted = Doubled(backend).accept(op, dnn.Attributes(), target_engine, None)
    assert accepted.scratchpad_bytes > 0
    executable = accepted.build()
    scratchpad = dnn.Memory(dnn.MemoryDesc((accepted.scratchpad_bytes,), "u8"), target_engine)
    stream = target_engine.stream("in" if target_engine.kind == "cpu" else order)
    executable.bind([src, dst], scratchpad.buffer)(stream, ()).wait()
    assert dst.numpy().tolist() == [[0, 4, 6]]


@pytest.fixture(params=["cpu", "pocl"])
def target_engine(request):
    try:
        return dnn.engine("cpu" if request.param == "cpu" else "opencl:0")
    except dnn.DnnError as error:
        pytest.skip(str(error))


def test_a_refusal_names_the_step():
    op = deconvolution()
    answer = Doubled("toy").accept(
        dnn.EltwiseForward("forward_inference", "relu", src=op.src, dst=op.src),
        dnn.Attributes(), dnn.engine("cpu"), None,
    )  # fmt: skip
    assert "eltwise" in answer.reason
