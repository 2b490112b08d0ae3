"""Knobs: parameters of implementations that programs choose."""

import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy import registered, relu_op

import dnncore as dnn
from dnncore import backend
from dnncore.knobs import Knob, read_knobs, write_knobs
from dnncore.problem import read

CPU = dnn.engine("cpu")
WRONG_KNOBS = {
    "1st": ("1st", 1, (1,), "text"),
    "a name": (None, 1, (1,), "text"),
    "sequence": ("tile", 1, {1, 2}, "text"),
    "1 to 4096 values": ("tile", 1, (), "text"),
    "has 1 to 4096 values": ("tile", 1, range(5000), "text"),
    "counts at all": ("tile", 1, range(10**30), "text"),
    "one of each": ("tile", 1, (1, 1), "text"),
    "one type": ("tile", 1, (1, "a"), "text"),
    "whole number": ("tile", 1.0, (1.0, 2.0), "text"),
    "is not in its values": ("tile", 3, (1, 2), "text"),
    "truth": ("tile", True, (1, 2), "text"),
    "looks like a number": ("tile", "1", ("1", "2"), "text"),
    "line": ("tile", 1, (1, 2), "two\nlines"),
    "text": ("tile", 1, (1, 2), None),
}


class Tunable(backend.Implementation):
    """Writes its knobs' values into dst."""

    name = "toybackend:tunable"

    def accept(self, op, attr, engine, hint):
        return self.accepted(op.resolve_any(dst=op.src), size=8, order="rows")

    def accepted(self, op, size, order):
        if (size, order) == (16, "columns"):
            return backend.Refused("attribute", f"columns have no size {size}")
        return backend.Accepted(
            op,
            lambda: backend.HostFunction(partial(self.write, size, order)),
            seconds=1e-9 * size,
            knobs=[
                Knob("size", 8, range(8, 33, 8), "elements of a chunk"),
                Knob("order", "rows", ("rows", "columns"), "of the loops"),
            ],
            tune=lambda values: self.accepted(op, **values),
        )

    @staticmethod
    def write(size, order, src, dst):
        dst.numpy()[...] = size if order == "rows" else -size


def result(pd):
    src = dnn.Memory.from_numpy(np.zeros(pd.src_desc.dims, np.float32), engine=CPU)
    dst = dnn.Memory(pd.dst_desc, CPU)
    pd.primitive().execute(CPU.stream(), src=src, dst=dst).wait()
    (value,) = set(dst.numpy().flat)
    return value


@pytest.fixture
def tunable():
    with registered(Tunable()):
        yield


@pytest.mark.parametrize("rule", WRONG_KNOBS)
def test_a_wrong_knob_is_refused(rule):
    with pytest.raises(dnn.DescriptorError, match=r"^knob"):
        Knob(*WRONG_KNOBS[rule])


def test_values_reach_the_implementation(tunable):
    assert result(dnn.PrimitiveDesc(relu_op())) == 8
    assert result(dnn.PrimitiveDesc(relu_op(), knobs={"size": 24})) == 24
    assert result(dnn.PrimitiveDesc(relu_op(), knobs={"order": "columns"})) == -8
    assert result(dnn.PrimitiveDesc(relu_op(), knobs={"order": "columns", "size": 32})) == -32


def test_a_descriptor_lists_knobs_and_values(tunable):
    pd = dnn.PrimitiveDesc(relu_op(), knobs={"size": 24})
    assert [knob.name for knob in pd.knobs] == ["size", "order"]
    assert pd.knob_values == {"size": 24, "order": "rows"}
    assert pd.requested_knobs == {"size": 24}
    assert pd.seconds == pytest.approx(24e-9)
    assert repr(pd) == "<eltwise by toybackend:tunable with size:24 on cpu>"
    assert dnn.PrimitiveDesc(relu_op(), skip_impl="toybackend:*").knobs == ()


def test_values_are_part_of_the_key(tunable):
    usual, small, large = (
        dnn.PrimitiveDesc(relu_op(), knobs=knobs) for knobs in (None, {"size": 16}, {"size": 24})
    )
    assert len({usual, small, large}) == 3
    assert dnn.PrimitiveDesc(relu_op(), knobs={}) == usual
    assert pickle.loads(pickle.dumps(large)) == large


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"size": 9}, "attribute: knob 'size' must be one of 8, 16, 24, 32; got 9"),
        ({"size": "rows"}, "attribute: knob 'size' must be one of 8, 16, 24, 32; got 'rows'"),
        ({"width": 8}, "attribute: has no knob 'width'; it has size, order"),
        ({"size": 16, "order": "columns"}, "attribute: columns have no size 16"),
    ],
)
def test_an_implementation_without_the_values_refuses(tunable, knobs, reason):
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), knobs=knobs)
    refusals = {refusal.impl_name: refusal for refusal in caught.value.refusals}
    assert str(refusals["toybackend:tunable"]) == f"toybackend:tunable: {reason}"
    assert "has no knob" in refusals["reference:eltwise"].reason


@pytest.mark.parametrize("knobs", [[("size", 8)], "size:8", {8: 8}, {"size": 8.0}, {"size": True}])
def test_a_request_of_another_type_is_refused(tunable, knobs):
    with pytest.raises(dnn.DescriptorError, match="knob"):
        dnn.PrimitiveDesc(relu_op(), knobs=knobs)


def test_what_tune_returns_is_checked():
    class Liar(Tunable):
        def accepted(self, op, size, order):
            return super().accepted(op, size, order) if size == 8 else "fast"

    with registered(Liar()), pytest.warns(dnn.PluginWarning, match="tune returned str"):
        pd = next(dnn.primitive_descs(relu_op(), CPU, knobs={"size": 16}), None)
    assert pd is None


def test_an_exception_of_tune_is_a_refusal():
    class Raises(Tunable):
        def accepted(self, op, size, order):
            return super().accepted(op, {8: 8}[size], order)

    with registered(Raises()), pytest.warns(dnn.PluginWarning, match="KeyError"):
        assert not list(dnn.primitive_descs(relu_op(), CPU, knobs={"size": 16}))


VALUES = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True),
    st.integers(-(10**17), 10**17) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,9}", fullmatch=True),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # on a busy machine
@given(VALUES)
def test_the_text_of_values_is_read_back(values):
    assert read_knobs(write_knobs(values)) == values


@pytest.mark.parametrize(
    "text", ["size", "size:", ":8", "size:8+size:9", "size:8 ", "size:8+", "+"]
)
def test_a_wrong_text_is_refused(text):
    with pytest.raises(dnn.DescriptorError, match="knobs: expected NAME:VALUE"):
        read_knobs(text)


def test_problems_have_knobs(tunable):
    (problem,) = read("--eltwise --knobs=size:24+order:columns 2x3")
    assert problem.wishes["knobs"] == {"size": 24, "order": "columns"}
    assert str(problem) == "--eltwise --knobs=size:24+order:columns 2x3"
    with pytest.raises(dnn.DescriptorError, match="knobs: expected"):
        read("--eltwise --knobs=size 2x3")
    small, large = read("--eltwise --knobs=size:8,size:16 2x3")
    assert (small.knobs, large.knobs) == ("size:8", "size:16")
