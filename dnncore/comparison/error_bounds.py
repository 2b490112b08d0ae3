"""The allowed errors of a result.

A result y is correct if

    |y - ref| <= eps * |ref| + limit + tiny

eps is twice the roundoff of y's type, because the reference is rounded as well. The limit is the
largest error of the computation in f32, also for f16 and bf16. For a sum of products it is the
limit of `dnncore.algorithms.rounding`. If `fpmath` allows f32 to be rounded to fewer bits before
products, this rounding of the absolute values is added.

An elementary function may have the error that OpenCL allows. One ulp counts as two roundings. The
records of `dnncore.algorithms` state the number and size of roundings. A post-op changes the error
of its input x into the difference between its results for x and for x - error or x + error. This
module computes all terms except the first and the last. It also computes the expected root mean
square of the errors, by which `dnncore.comparison.statistics` judges whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import finfo

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.propagation import Approximate
from dnncore.algorithms.rounding import LEAST_NORMAL, ROUNDOFF, Array, Noise
from dnncore.attributes import Attributes
from dnncore.comparison import quantized
from dnncore.ops import EltwiseForward, Operation, Reorder
from dnncore.ops.depthwise import depthwise_of
from dnncore.post_op import PostOp
from dnncore.problem import driver_of
from dnncore.problem.drivers.accumulation import PLAIN, absolute, accumulated
from dnncore.problem.drivers.driver import ErrorRule, Evaluate, Inputs
from dnncore.tensors.datatypes import data_type, from_numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["believed_factor", "error_factor", "noise"]

# The roundoff of the types that fpmath allows; for "any" it is the roundoff of the coarsest type.
_FPMATH = {"tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-9, "any": 2.0**-9}


def error_factor(op: Operation) -> float:
    """Return the largest error factor that the algorithm of `op` permits: 1 except for Winograd."""
    return driver_of(type(op)).error_factor(op)


def believed_factor(pd: PrimitiveDesc) -> float:
    """Return the claimed error factor, but at most that of the algorithm that `pd` requests."""
    most = error_factor(pd.op)
    return max(1.0, pd.error_factor) if pd.error_factor <= most else most


def noise(
    op: Operation,
    attr: Attributes,
    inputs: Inputs,
    values: Inputs,
    evaluate: Evaluate,
    workspace_error: Array | None = None,
) -> dict[str, Noise]:
    """Return the noise of each output before it is stored, by name. Exact outputs are omitted.

    The reference computes post-ops in float64. An implementation may store float32 between the
    steps, so that numbers overflow or underflow. The limit includes such results.

    op: the operation on tensors of any types.
    inputs: the values of the tensors, of their types.
    values: the outputs.
    evaluate: computes the outputs of an operation as the reference does.
    workspace_error: absolute errors of the workspace that `op` reads; None if it is exact.
    """
    if isinstance(op, Reorder) and attr.words and all(s.kind == "sum" for s in attr.post_ops):
        return {}
    if quantized.is_integer_product(op):
        return _of_integer_product(op, attr, inputs, values, evaluate)
    with np.errstate(all="ignore"):
        numbers = driver_of(type(op)).integers(op, attr, inputs)
        if numbers is not None:
            return _of_stages(op, attr, numbers, inputs, values, evaluate)
    read, inputs = inputs, quantized.dequantized(op, attr, inputs)
    between = op.result.dtype  # of the result before a depthwise convolution
    op = quantized.in_f32(op)
    with np.errstate(all="ignore"):
        driver = driver_of(type(op))
        rule: ErrorRule = driver.errors.get(type(op), accumulated)
        old = inputs
        inputs = {own: array for own, array in old.items() if own != op.result_name}
        errors = rule(op, inputs, evaluate)
        if driver.workspace_errors is not None and workspace_error is not None:
            added = driver.workspace_errors(op, inputs, workspace_error, evaluate)
            for name, lost in added.items():
                errors[name] += Noise.within(lost)
        for name, lost in _lost_by_factors(op, attr, inputs, evaluate).items():
            errors[name] += Noise.within(lost)
        name = op.result_name
        if attr.post_ops or attr.words or not data_type(kind_of(values[name])).is_float:
            x = evaluate(op, PLAIN, inputs)[name]
            error = errors.get(name, Noise.within(np.zeros(x.shape)))
            if np.any(error.limit > 0):  # a 0 may be a result of rounding, which a step can magnify
                error += Noise.within(np.where(np.abs(x) < LEAST_NORMAL, LEAST_NORMAL, 0.0))
            x, error = _finished(op, attr, x, error, old, read, evaluate, between=between)
            errors[name] = _of_stored(attr, x, error, values[name])
    return errors


def _finished(
    op: Operation, attr: Attributes, x: Array, error: Noise, inputs: Inputs, read: Inputs,
    evaluate: Evaluate, *, exact: bool = False, between: Any = None,
) -> tuple[Array, Noise]:  # fmt: skip
    """Return the result and its noise after dropout, post-ops, scales and zero points.

    read: the inputs as the operation reads them.
    exact: whether the result is a product of integers.
    between: the type to which x is rounded before a depthwise convolution.
    """
    name = op.result_name
    if attr.dropout:
        mask = _mask(attr, x.shape, read, evaluate)
        x, error = quantized.dropped(x, error, mask, float(read["dropout_probability"][0]))
    for i, step in enumerate(attr.post_ops):
        if step.kind == "depthwise":
            named = {own: inputs[f"post_op_{i}_{own}"] for own, _ in step.operands}
            x, error = _through_depthwise(step, x, error, named, between, evaluate)
            continue
        operands = {f"post_op_0_{own}": inputs[f"post_op_{i}_{own}"] for own, _ in step.operands}
        before = inputs.get(name) if step.kind == "sum" else None
        lost = error.is_unknown & ~np.isfinite(x)  # x + error is NaN, too
        x, error = _through(step, x, error, operands, before, evaluate, exact=exact)
        error = error.unknown_where(lost)
    return quantized.stored(attr, name, x, error, read, exact)


def _mask(attr: Attributes, dims: tuple[int, ...], read: Inputs, evaluate: Evaluate) -> Array:
    """Return the mask of dropout. It depends only on the arguments of dropout."""
    assert attr.dropout is not None
    desc = MemoryDesc(dims, "f32")
    op = EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    dropout = Attributes(dropout=replace(attr.dropout, has_mask=True))
    return evaluate(op, dropout, {**read, "src": np.zeros(dims, np.float32)})["dropout_mask"]


def _of_stored(attr: Attributes, x: Array, error: Noise, values: Array) -> Noise:
    """Return the noise of a stored result whose value before storing was x."""
    if not data_type(kind_of(values)).is_float:
        return Noise.within(quantized.allowed_steps(x, error, values))
    if attr.rounding == "stochastic":
        return error
    distance = _distance(x, values)
    error = Noise(np.maximum(error.limit, distance), error.rms)
    return error.unknown_where(np.isinf(distance))


def kind_of(values: Array) -> str:
    """The data type of an array."""
    return from_numpy_dtype(values.dtype)


def _of_integer_product(
    op: Operation, attr: Attributes, inputs: Inputs, values: Inputs, evaluate: Evaluate
) -> dict[str, Noise]:
    """Return no noise, unless post-ops have errors."""
    if all(map(quantized.is_exact, attr.post_ops)):
        return {}
    name = op.result_name
    of_inputs: dict[str, Any] = {
        kind: {own: given for own, given in getattr(attr, kind).items() if own != name}
        for kind in ("scales", "zero_points")
    }
    with np.errstate(all="ignore"):
        wide = op.with_descs(**{name: op.result.with_data_type("f32")})
        x = evaluate(wide, Attributes(**of_inputs), inputs)[name]
        error = Noise.within(np.zeros(x.shape))
        x, error = _finished(op, attr, x, error, inputs, inputs, evaluate, exact=True)
        return {name: _of_stored(attr, x, error, values[name])}


def _of_stages(
    op: Operation, attr: Attributes, numbers: Mapping[str, Approximate], inputs: Inputs,
    values: Inputs, evaluate: Evaluate,
) -> dict[str, Noise]:  # fmt: skip
    """Return the noise of outputs from their numbers before they are stored."""
    found = {}
    for name, own in numbers.items():
        x, error = own.value, own.noise
        if name == op.result_name:
            x, error = _finished(op, attr, x, error, inputs, inputs, evaluate)
        found[name] = _of_stored(attr, x, error, values[name])
    return found


def _distance(x: Array, values: Array) -> Array:
    """Return the distance of results; infinite if only one of them is NaN."""
    x = x.astype(values.dtype)
    distance = np.abs(x.astype(np.float64) - values.astype(np.float64))
    distance = np.where(np.isnan(x) != np.isnan(values), np.inf, distance)
    return np.nan_to_num(distance, nan=0.0, posinf=np.inf)  # 0 if both are NaN or equal infinities


def _lost_by_factors(
    op: Operation, attr: Attributes, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Array]:
    """Return the error if both factors of every product are rounded, as `fpmath` allows for f32."""
    roundoff = _FPMATH.get(attr.fpmath, 0.0)
    if not roundoff or not driver_of(type(op)).has_products:
        return {}
    return {op.result_name: 2 * roundoff * absolute(op, inputs, evaluate)}


# -- post-ops -------------------------------------------------------------------------------------


def _through_depthwise(
    step: PostOp, x: Array, error: Noise, operands: Inputs, between: Any, evaluate: Evaluate
) -> tuple[Array, Noise]:
    """Return the value after a depthwise convolution, and its noise.

    An error of x is multiplied by the absolute values of the weights. Rounding x to its stored type
    may move x and x + error by half a step each.
    """
    x = x.astype(between)
    limits = finfo(between)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    eps, least = float(limits.eps), float(limits.smallest_subnormal)
    step_size = eps * np.abs(x.astype(np.float64)) + least
    error += Noise.within(np.where(error.limit > 0, step_size, 0.0))
    src = MemoryDesc(x.shape, from_numpy_dtype(x.dtype))
    op: Any = quantized.in_f32(depthwise_of(step, src))
    inputs = {name: values.astype(np.float32) for name, values in {"src": x, **operands}.items()}
    rule: ErrorRule = driver_of(type(op)).errors.get(type(op), accumulated)
    own = rule(op, inputs, evaluate)["dst"]
    bare, weights = op.with_descs(bias=None), np.abs(inputs["weights"])

    def grown(values: Array, factors: Array) -> Array:
        """Return the sums of products; infinite where a limit is."""
        given = {"src": values.astype(np.float32), "weights": factors}
        return evaluate(bare, PLAIN, given)["dst"].astype(np.float64)

    scale = max(1e-30, float(np.nanmax(error.rms, initial=0.0)))  # squares must not underflow
    rms = np.sqrt(grown((error.rms / scale) ** 2, weights**2)) * scale
    y = evaluate(op, PLAIN, inputs)["dst"].astype(np.float64)
    return y, Noise(grown(error.limit, weights), rms) + own


def _through(
    step: PostOp, x: Array, error: Noise, operands: Inputs, old: Array | None, evaluate: Evaluate,
    *, exact: bool = False,
) -> tuple[Array, Noise]:  # fmt: skip
    """Return the value after a step, and its noise: the noise of the step plus the propagated
    noise.

    exact: whether the step follows a product of integers.
    """
    desc = MemoryDesc(x.shape, "f32")
    op = EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    if old is not None and step.zero_point:  # the f32 tensors below have no zero point
        old = old.astype(np.float32) - np.float32(step.zero_point)
        step = replace(step, zero_point=0)
    before = {} if old is None else {"dst": old.astype(np.float32)}

    def value(x: Array) -> Array:
        inputs = {"src": x, **before, **operands}
        return evaluate(op, Attributes((step,)), inputs)["dst"].astype(np.float64)

    x = x.astype(np.float64)
    reach = error.limit + 2 * ROUNDOFF * np.abs(x)  # at least the distance of adjacent float32
    y = value(x)
    ends = [(end, value(end)) for end in (x - reach, x + reach)]
    grown = np.maximum(*(np.abs(at_end - y) for _, at_end in ends))
    grown = np.where(error.limit == 0, 0.0, grown)
    grown = np.where(np.isnan(error.limit), np.nan, grown)  # NaN means an unknown error
    slope = np.divide(grown, reach, out=np.zeros_like(grown), where=reach > 0)
    if exact and quantized.is_exact(step):
        return y, Noise(grown, slope * error.rms)
    own = POST_OPS[step.kind].error(step, x, y, old)
    for end, at_end in ends:  # the rounded number may be far from y, if the step is steep
        other = POST_OPS[step.kind].error(step, end, at_end, old)
        own = np.where(error.limit > 0, np.fmax(own, other), own)
    if np.any(own > 0):  # a small rounded result may be replaced by 0
        own = own + LEAST_NORMAL
    return y, Noise(grown, slope * error.rms) + Noise.within(own)
