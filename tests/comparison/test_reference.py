"""The reference backend's part of the contract: what it accepts, refuses and leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from dnncore_reference.convolution import BACKWARD_DATA, FORWARD
from dnncore_reference.definition import rounded
from dnncore_reference.eltwise import FORWARD as ELTWISE
from dnncore_reference.pooling import BACKWARD as POOLING_BACKWARD
from dnncore_reference.pooling import FORWARD as POOLING
from toy import ToyEngine

import dnncore as dnn
from dnncore.backend import Accepted, Engine, Refused

NO_ATTRIBUTES = dnn.Attributes()


def desc(*dims, tag=None):
    return dnn.MemoryDesc(dims, "f32", tag)


def relu(src, dst=None):
    return dnn.EltwiseForward("forward_inference", "relu", src=src, dst=dst or src)


def accept(table, op, engine=None, hint=None):
    return table[0].accept(op, NO_ATTRIBUTES, engine or dnn.engine("cpu"), hint)


def test_any_host_engine_is_served():
    engine = ToyEngine()
    answer = accept(ELTWISE, relu(desc(3)), engine)
    assert isinstance(answer, Accepted)
    values = np.array([-1.0, 0.0, 2.0], np.float32)
    src = dnn.Memory.from_numpy(values, engine=engine)
    dst = dnn.Memory(desc(3), engine)
    answer.build().bind([src, dst], None)(engine.stream(), ())
    assert dst.numpy().tolist() == [0.0, 0.0, 2.0]


def test_a_device_is_refused():
    class DeviceEngine(Engine):
        kind = "device"

    answer = accept(ELTWISE, relu(desc(3)), DeviceEngine())
    assert answer == Refused("device", "works on host memory only; got engine device:0")


def test_another_backends_secret_format_is_refused():
    weights = dnn.MemoryDesc((8, 8, 3, 3), "f32", "toy:winograd", nbytes=4096)
    op = dnn.ConvolutionForward(
        "forward_inference", src=desc(1, 8, 6, 6), weights=weights, dst=desc(1, 8, 4, 4)
    )
    answer = accept(FORWARD, op)
    assert isinstance(answer, Refused)
    assert answer.kind == "format"
    assert answer.reason == "weights has the format 'toy:winograd', not one of strides"


def test_any_becomes_row_major_or_the_format_of_the_model():
    op = dnn.ConvolutionBackwardData(
        diff_src=desc(1, 8, 6, 6, tag="any"),
        weights=desc(8, 8, 3, 3, tag="any"),
        diff_dst=desc(1, 8, 4, 4, tag="nhwc"),
    )
    answer = accept(BACKWARD_DATA, op)
    assert (answer.op.diff_src.tag, answer.op.weights.tag) == ("abcd", "abcd")
    nhwc = desc(2, 8, 4, 4, tag="nhwc")
    assert accept(ELTWISE, relu(nhwc, nhwc.with_format("any"))).op.dst == nhwc


@pytest.mark.parametrize(
    ("prop_kind", "workspace"),
    [("forward_training", dnn.MemoryDesc((1, 2, 2, 2), "u8", "nhwc")), ("forward_inference", None)],
)
def test_the_workspace_has_the_layout_of_dst(prop_kind, workspace):
    src, dst = desc(1, 2, 4, 4, tag="nhwc"), desc(1, 2, 2, 2, tag="any")
    op = dnn.PoolingForward(prop_kind, "max", src=src, dst=dst, kernel=(2, 2), strides=(2, 2))
    assert accept(POOLING, op).workspace == workspace


def test_a_gradient_without_workspace_is_refused():
    src, dst = desc(1, 2, 4, 4), desc(1, 2, 2, 2)
    window = {"kernel": (2, 2), "strides": (2, 2)}
    forward = dnn.PoolingForward("forward_inference", "max", src=src, dst=dst, **window)
    hint = dnn.PrimitiveDesc(forward, dnn.engine("cpu"), impl="reference:*")
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **window)
    answer = accept(POOLING_BACKWARD, backward, hint=hint)
    assert isinstance(answer, Refused)
    assert "forward_training" in answer.reason


@pytest.mark.parametrize(
    ("data_type", "values", "expected"),
    [
        ("s8", [0.5, 1.5, -2.5, 1e9, -np.inf, np.nan], [0, 2, -2, 127, -128, 0]),
        ("u8", [-1.0, 255.5, np.inf], [0, 255, 255]),
        ("s32", [2.0**31, -(2.0**31) - 1.0], [2**31 - 1, -(2**31)]),
        ("f32", [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1e39], [1.0, 1 + 2.0**-22, np.inf]),
    ],
)
def test_rounding(data_type, values, expected):
    with np.errstate(all="ignore"):
        assert rounded(np.array(values), data_type).tolist() == expected
