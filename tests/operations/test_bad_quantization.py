"""Wrong scales, zero points, dropout, types and masks are refused with the rule and the value."""

from __future__ import annotations

import re

import numpy as np
import pytest

import dnncore as dnn

CPU = dnn.engine("cpu")
SCALED = dnn.Attributes(
    scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=2), "dst": dnn.Scales()},
    zero_points={"src": dnn.ZeroPoints()},
)


def matmul(src="u8", weights="s8", dst="u8"):
    return dnn.MatMul(
        src=dnn.MemoryDesc((3, 8), src),
        weights=dnn.MemoryDesc((8, 5), weights),
        dst=dnn.MemoryDesc((3, 5), dst),
    )


def inner_product():
    return dnn.InnerProductForward(
        "forward_inference",
        src=dnn.MemoryDesc((3, 8), "u8"),
        weights=dnn.MemoryDesc((5, 8), "s8"),
        dst=dnn.MemoryDesc((3, 5), "u8"),
    )


def reorder():
    return dnn.Reorder(src=dnn.MemoryDesc((3, 8)), dst=dnn.MemoryDesc((3, 8), "u8"))


def scaled(**scales):
    return {"scales": scales}


def shifted(**zero_points):
    return {"zero_points": zero_points}


ATTRIBUTES = [
    (
        matmul(),
        scaled(weights=dnn.Scales(mask=4)),
        "one of 0, 1, 2, 3 for dims (8, 5); got 4; bit d is set for one value per index of dim d",
    ),
    (
        inner_product(),
        scaled(weights=dnn.Scales(mask=2)),
        "one of 0, 1, 3 for dims (5, 8); got 2",
    ),
    (matmul(), scaled(bias=dnn.Scales()), "scales of bias: only src, weights, dst can have them"),
    (matmul(), scaled(source=dnn.Scales()), "scales of source: only src, weights, dst can have"),
    (
        matmul(),
        scaled(weights=dnn.Scales(3, (3, 1))),
        "groups must divide the last two dims; got (3, 1) for (8, 5)",
    ),
    (
        matmul(),
        scaled(weights=dnn.Scales(2, (4, 1))),
        "the mask must contain the dims that are divided in groups; got mask 2 and groups (4, 1)",
    ),
    (
        matmul(),
        scaled(dst=dnn.Scales(3, (1, 5))),
        "scales of dst: only src or weights can have groups; got groups (1, 5); leave them out",
    ),
    (
        matmul("f32", "f32", "f32"),
        shifted(src=dnn.ZeroPoints()),
        "zero_points of src: only tensors of integers have them; got f32",
    ),
    (
        matmul(),
        {"rounding": "stochastic"},
        "stochastic rounding needs dst of type f16, bf16, f8_e4m3, f8_e5m2; got u8",
    ),
    (reorder(), {"dropout": dnn.Dropout()}, "reorder: it has no dropout; leave the attribute out"),
    (
        matmul("f32", "f32", "f32"),
        {"post_ops": [dnn.PostOp.sum(1.0, 3)]},
        "a sum with a zero point needs dst of type s32, s8, u8; got f32; leave zero_point out",
    ),
    (
        matmul(),
        {"post_ops": [dnn.PostOp.binary("add", dnn.MemoryDesc((3, 5), "s4"))]},
        "must be of type f32, f16, bf16, s32, s8, u8; got s4",
    ),
]


@pytest.mark.parametrize(("op", "words", "message"), ATTRIBUTES)
def test_attributes_that_do_not_apply_are_refused(op, words, message):
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)) as error:
        dnn.PrimitiveDesc(op, CPU, dnn.Attributes(**words))
    assert str(error.value).startswith(op.KIND)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dnn.Scales(-1), "scales: mask must be a whole number, a sum of 2**dim; got -1"),
        (lambda: dnn.Scales(True), "scales: mask must be a whole number"),
        (lambda: dnn.Scales(0, (4,)), "groups must be () or two numbers above 0"),
        (lambda: dnn.Scales(0, 4), "groups must be () or two numbers above 0"),
        (lambda: dnn.Scales(data_type="s8"), "data_type must be one of f32, f16, bf16; got 's8'"),
        (lambda: dnn.ZeroPoints(data_type="f32"), "one of s32, s8, u8, s4, u4; got 'f32'"),
        (lambda: dnn.Scales(data_type=np.zeros(2)), "data_type must be one of f32, f16, bf16; got"),
        (lambda: dnn.Scales(data_type=None), "data_type must be one of f32, f16, bf16; got None"),
        (lambda: dnn.Dropout(np.zeros(2)), "seed_type must be 's64' or 's32'; got array"),
        (lambda: dnn.Dropout("u8"), "seed_type must be 's64' or 's32'; got 'u8'"),
        (lambda: dnn.Dropout(has_mask=1), "has_mask must be True or False; got 1"),
        (lambda: dnn.Attributes(accumulation="f64"), "accumulation must be one of strict, relaxed"),
        (lambda: dnn.Attributes(rounding="up"), "rounding must be one of environment, stochastic"),
        (lambda: dnn.Attributes(**scaled(src=0.5)), "must map names of tensors to Scales"),
        (
            lambda: dnn.Attributes(**scaled(src=dnn.ZeroPoints())),
            "must map names of tensors to Scales",
        ),
        (lambda: dnn.Attributes(zero_points=dnn.ZeroPoints()), "must be a mapping, such as"),
        (lambda: dnn.PostOp.sum(1.0, 1.5), "zero_point must be a whole number from -2^31"),
        (lambda: dnn.PostOp.sum(1.0, 2**31), "zero_point must be a whole number from -2^31"),
        (
            lambda: matmul("s8", "s8", "f64"),
            "dst must be of type f32, f16, bf16, s32, s8 or u8, because",
        ),
        (
            lambda: matmul("f32", "f16", "f32"),
            "weights must be of type f32, f8_e5m2, f8_e4m3, s8, u8, s4 or u4",
        ),
    ],
)
def test_wrong_parts_are_refused(make, message):
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        make()


@pytest.fixture
def call():
    """A primitive with scales and a zero point, and its arguments."""
    pd = dnn.PrimitiveDesc(matmul(), CPU, SCALED)
    memories = {a.name: dnn.Memory(desc, CPU) for a, desc in pd.arguments}
    return pd.primitive(), memories


@pytest.mark.parametrize("name", ["src_scales", "weights_scales", "dst_scales", "src_zero_points"])
def test_a_missing_argument_is_named(call, name):
    primitive, memories = call
    del memories[name]
    with pytest.raises(dnn.DescriptorError, match=f"matmul: argument {name} is missing; it takes"):
        primitive.execute(CPU.stream(), **memories)


class Elsewhere(dnn.backend.HostEngine):
    kind = "elsewhere"


WRONG = [
    (
        "src_scales",
        np.ones(1, "f4"),
        "MemoryDesc((1,), 'f32', 'a'); its array must have the shape (1, 1), with elements",
    ),
    (
        "weights_scales",
        np.ones((5, 1), "f4"),
        "weights_scales must be laid out as MemoryDesc((1, 5), 'f32', 'ab')",
    ),
    (
        "weights_scales",
        np.ones((1, 1), "f4"),
        "make it of the primitive descriptor's weights_scales",
    ),
    ("src_zero_points", np.ones((1, 1), "f4"), "reorder it to the primitive descriptor's src_zero"),
    ("dst_scales", 0.5, "dst_scales must be a Memory; got float; make one with Memory.from_numpy"),
    (
        "dst_scales",
        np.ones((1, 1), "f4"),
        "dst_scales must be a Memory; got ndarray; make one with Memory.from_numpy",
    ),
]


@pytest.mark.parametrize(("name", "values", "message"), WRONG)
def test_a_wrong_argument_is_refused(call, name, values, message):
    primitive, memories = call
    is_memory = "must be a Memory" not in message
    memories[name] = dnn.Memory.from_numpy(values) if is_memory else values
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        primitive.execute(CPU.stream(), **memories)


def test_scales_of_another_engine_are_refused(call):
    primitive, memories = call
    memories["src_scales"] = dnn.Memory(dnn.MemoryDesc((1, 1)), Elsewhere())
    text = "src_scales must be a memory of cpu; got one of elsewhere:0; move it with"
    with pytest.raises(dnn.DescriptorError, match=text):
        primitive.execute(CPU.stream(), **memories)


class Plain(dnn.backend.Implementation):
    """Supports no attributes."""

    name = "toy:plain"
    data_types = ("u8", "s8")

    def accept(self, op, attr, engine, hint):
        raise AssertionError


def test_a_refusal_states_what_is_supported():
    answer = Plain().answer(matmul(), SCALED, CPU, None)
    assert answer.reason == "takes no scales, dropout and the like; got scales"
    Plain.attributes = ("scales", "operand_types")
    answer = Plain().answer(matmul(), SCALED, CPU, None)
    assert answer.reason == "takes scales, operand types; got zero points"
