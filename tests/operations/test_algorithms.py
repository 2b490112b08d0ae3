"""The records of algorithms: their texts against the reference, and their parts against each other.

The texts are evaluated by Python itself with the functions of `math`. So they are a definition that
shares no code with the reference, and the documents show what is computed.
"""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, USE_DST, check_eltwise, eltwise_names
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION

NAMES = {name: value for name, value in vars(math).items() if not name.startswith("_")}
CPU = dnn.engine("cpu")
VALUES = np.array([-3.5, -1.25, -0.5, -0.125, 0.375, 0.75, 1.5, 2.5, 4.25], np.float32)
PROBES = [(name, alpha, beta) for name, record in ELTWISE.items() for alpha, beta in record.probes]


def evaluate(text: str, **values: float) -> float:
    return float(eval(text, {**NAMES, "abs": abs, "round": round}, values))


def inputs(name: str) -> np.ndarray:
    return np.abs(VALUES) if ELTWISE[name].is_positive else VALUES


def run(op, **arrays):
    pd = dnn.PrimitiveDesc(op, CPU, impl="reference:*")
    memories = {name: dnn.Memory.from_numpy(array) for name, array in arrays.items()}
    result = dnn.Memory(op.result, CPU)
    pd.primitive().execute(CPU.stream(), **memories, **{op.result_name: result})
    return result.numpy()


@pytest.mark.parametrize(("name", "alpha", "beta"), PROBES)
def test_the_formula_is_what_the_reference_computes(name, alpha, beta):
    src = inputs(name)
    desc = dnn.MemoryDesc(src.shape)
    op = dnn.EltwiseForward("forward_inference", name, src=desc, dst=desc, alpha=alpha, beta=beta)
    formula = ELTWISE[name].formula
    expected = [evaluate(formula, s=float(s), alpha=alpha, beta=beta) for s in src]
    np.testing.assert_allclose(run(op, src=src), expected, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize(("name", "alpha", "beta"), PROBES)
def test_the_slope_is_what_the_reference_computes(name, alpha, beta):
    if not ELTWISE[name].slope:
        return
    src = inputs(name)
    desc = dnn.MemoryDesc(src.shape)
    op = dnn.EltwiseBackward(name, src=desc, diff_dst=desc, diff_src=desc, alpha=alpha, beta=beta)
    slope = ELTWISE[name].slope
    expected = [evaluate(slope, s=float(s), alpha=alpha, beta=beta) for s in src]
    found = run(op, src=src, diff_dst=np.ones_like(src))
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "alpha", "beta"), PROBES)
def test_the_slope_is_the_derivative_of_the_formula(name, alpha, beta):
    """Central differences in float64; their error is of the order of the step's square."""
    record, step = ELTWISE[name], 1e-5
    if not record.slope:
        return

    def f(s: float) -> float:
        return evaluate(record.formula, s=s, alpha=alpha, beta=beta)

    for s in map(float, inputs(name)):
        if any(abs(s - corner) < 2 * step for corner in record.corners(alpha, beta)):
            continue
        slope = evaluate(record.slope, s=s, alpha=alpha, beta=beta)
        expected = (f(s + step) - f(s - step)) / (2 * step)
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("name", "alpha", "beta"), PROBES)
def test_the_slope_of_dst_is_the_slope(name, alpha, beta):
    record = ELTWISE[name]
    if not record.slope_of_dst or not is_valid(name + USE_DST, alpha, beta):
        return
    for s in map(float, inputs(name)):
        d = evaluate(record.formula, s=s, alpha=alpha, beta=beta)
        slope = evaluate(record.slope, s=s, alpha=alpha, beta=beta)
        found = evaluate(record.slope_of_dst, d=d, alpha=alpha, beta=beta)
        assert found == pytest.approx(slope, rel=1e-9)


def is_valid(name: str, alpha: float, beta: float) -> bool:
    try:
        check_eltwise("eltwise", name, alpha, beta)
    except dnn.DescriptorError:
        return False
    return True


@pytest.mark.parametrize("name", ELTWISE)
def test_a_record_is_complete(name):
    record = ELTWISE[name]
    assert (record.slope_error is not None) == bool(record.slope)
    assert (record.slope_of_dst_error is not None) == bool(record.slope_of_dst)
    assert (record.inverse is not None) == bool(record.slope_of_dst)
    assert record.probes
    assert all(is_valid(name, alpha, beta) for alpha, beta in record.probes)
    assert ("alpha" in record.formula) == any(alpha != 0 for alpha, _ in record.probes)
    assert ("beta" in record.formula) == any(beta != 0 for _, beta in record.probes)


@pytest.mark.parametrize("name", BINARY)
def test_the_formula_of_binary_is_what_the_reference_computes(name):
    src0 = np.array([-2.5, -1, 0, 0.5, 1, 3], np.float32)
    src1 = np.array([1.5, -1, 2, 0.25, -0.75, 3], np.float32)
    src2 = np.array([1, 0, 0, 2, -1, 0], np.int8)
    arrays: dict[str, np.ndarray] = {"src0": src0, "src1": src1}
    if BINARY[name].has_condition:
        arrays["src2"] = src2
    types = {"src2": "s8"}
    descs = {key: dnn.MemoryDesc(a.shape, types.get(key, "f32")) for key, a in arrays.items()}
    found = run(dnn.Binary(name, **descs, dst=descs["src0"]), **arrays)
    rows = [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
    names = {"max": max, "min": min}
    expected = [float(eval(BINARY[name].formula, names, row)) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("name", REDUCTION)
def test_the_formula_of_reduction_is_what_the_reference_computes(name, p):
    src = np.array([[-2.5, -1, 0.5, 3], [1, 2, 4, -8], [0.125, 0.25, -0.5, 1]], np.float32)
    desc, dst = dnn.MemoryDesc(src.shape), dnn.MemoryDesc((3, 1))
    found = run(dnn.Reduction(name, src=desc, dst=dst, p=p, eps=0.5), src=src)
    names = {"max": larger, "min": min, "sum": np.sum, "prod": np.prod, "abs": np.abs}
    values = {"p": p, "eps": 0.5, "count": src.shape[1]}
    expected = [eval(REDUCTION[name].formula, names, {**values, "s": row}) for row in src]
    np.testing.assert_allclose(found[:, 0], expected, rtol=3e-7)


def larger(*values):
    return max(values) if len(values) > 1 else values[0].max()


def test_post_ops_of_the_records_are_those_of_the_class():
    fields = {name for record in POST_OPS.values() for name in record.fields}
    assert fields == set(inspect.signature(dnn.PostOp).parameters) - {"kind"}
    assert all(set(record.operands) <= set(record.fields) for record in POST_OPS.values())
    assert all(callable(getattr(dnn.PostOp, kind)) for kind in POST_OPS)


def test_names_with_a_gradient():
    assert "round" not in eltwise_names(gradient=True)
    assert "tanh_use_dst_for_bwd" in eltwise_names(gradient=True)
    assert eltwise_names() == list(ELTWISE)
