"""The allowed errors of a result.

A result y of K accumulated products, computed with f32's unit roundoff u, is correct if

    |y - ref| <= eps * |ref| + growth(K) * u * magnitude + tiny
    growth(K) = min(K, 8 * sqrt(K))

magnitude is the same result computed from absolute values, so that the bound also holds if terms
cancel. eps is twice the roundoff of y's type, because the reference is rounded as well. For f16 and
bf16, only eps differs. The square root applies to long sums, in which rounding errors cancel
(Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). If `fpmath`
allows f32 to be rounded to fewer bits before products, this rounding of the magnitude is added.

An elementary function may have the error that OpenCL allows. One ulp counts as two roundings. The
records of `dnncore.algorithms` state the number and size of roundings. For a post-op, the error of
its input x becomes the difference between its results for x and for x - error or x + error. This
module computes all terms except the first and the last.
"""

from __future__ import annotations

import numpy as np

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.rounding import ROUNDOFF, Array
from dnncore.attributes import Attributes, PostOp
from dnncore.ops import EltwiseForward, Operation
from dnncore.problem import driver_of
from dnncore.problem.drivers.accumulation import PLAIN, accumulated
from dnncore.problem.drivers.driver import Evaluate, Inputs
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["noise"]

# The roundoff of the types that fpmath allows; for "any" it is that of the coarsest type.
_FPMATH = {"tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-9, "any": 2.0**-9}


def noise(
    op: Operation,
    attr: Attributes,
    inputs: Inputs,
    evaluate: Evaluate,
    workspace_error: Array | None = None,
) -> dict[str, Array]:
    """The allowed error of each float output before it is stored. Exact outputs are omitted.

    evaluate: computes the outputs of an operation as the reference does.
    workspace_error: absolute errors of the workspace that `op` reads; None if it is exact.
    """
    with np.errstate(all="ignore"):
        driver = driver_of(type(op))
        errors = driver.errors.get(type(op), accumulated)(op, inputs, evaluate)
        if driver.workspace_errors is not None and workspace_error is not None:
            added = driver.workspace_errors(op, inputs, workspace_error, evaluate)
            errors[op.result_name] += added
        for name, lost in _lost_by_factors(op, attr, inputs, evaluate).items():
            errors[name] += lost
        name = op.result_name
        if attr.post_ops:
            x = evaluate(op, PLAIN, inputs)[name]
            error = errors.get(name, np.zeros(x.shape))
            for i, step in enumerate(attr.post_ops):
                operands = {
                    f"post_op_0_{own}": inputs[f"post_op_{i}_{own}"] for own, _ in step.operands
                }
                x, error = _through(step, x, error, operands, inputs.get(name), evaluate)
            errors[name] = error
    return errors


def _lost_by_factors(
    op: Operation, attr: Attributes, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Array]:
    """The error if both factors of every product are rounded, as `fpmath` allows for f32."""
    roundoff = _FPMATH.get(attr.fpmath, 0.0)
    if not roundoff or op.data_type != "f32" or not driver_of(type(op)).has_products:
        return {}
    sizes = evaluate(op, PLAIN, {name: np.abs(array) for name, array in inputs.items()})
    return {name: 2 * roundoff * size.astype(np.float64) for name, size in sizes.items()}


# -- post-ops -------------------------------------------------------------------------------------


def _through(
    step: PostOp, x: Array, error: Array, operands: Inputs, old: Array | None, evaluate: Evaluate
) -> tuple[Array, Array]:
    """The value after a step, and its error: the step's own error plus the propagated one."""
    desc = MemoryDesc(x.shape, "f32")
    op = EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    before = {} if old is None else {"dst": old}

    def value(x: Array) -> Array:
        inputs = {"src": x, **before, **operands}
        return evaluate(op, Attributes((step,)), inputs)["dst"].astype(np.float64)

    x = x.astype(np.float64)
    reach = error + 2 * ROUNDOFF * np.abs(x)  # at least the distance of two float32
    y = value(x)
    grown = np.maximum(np.abs(value(x + reach) - y), np.abs(value(x - reach) - y))
    return y, np.where(error > 0, grown, 0.0) + POST_OPS[step.kind].error(step, x, y, old)
