"""Gradients belong to their forward operations: adjoint where linear, else along a direction.

For a linear f, <f(x), y> = <x, f'(y)>. For any f, with x moved by h along v,

    <f(x + h v) - f(x - h v), y> / (2 h) = <v, f'(x, y)> + O(h**2)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import REFERENCE, Target, run
from problems import inputs_of, problems

import dnncore as dnn
from dnncore.comparison.fills import fill_normal

COUNT = 12
STEP = 2.0**-8


def product(a, b):
    return float(np.vdot(a.astype(np.float64), b.astype(np.float64)))


def cases(*kinds):
    found = [op for kind in kinds for op in problems(kind, COUNT)]
    names = [f"{type(op).__name__}-{i % COUNT}" for i, op in enumerate(found)]
    return pytest.mark.parametrize("op", found, ids=names)


def implementation(target, op):
    return target.primitive_descs(op)[0]


# -- linear operations, on every engine ------------------------------------------------------------


def linear_forward(op):
    """The forward operation without bias, the gradient's input in it, and the fixed one."""
    roles = {"src": op.src_role, "dst": op.dst_role}
    if isinstance(op, dnn.PoolingBackward):
        fields = {name: getattr(op, name) for name in ("algorithm", "kernel")}
        operation: Any = dnn.PoolingForward
        fixed = None
    elif type(op).__name__.startswith("Inner"):
        fields, operation = {"weights": op.weights_role}, dnn.InnerProductForward
        fixed = "src" if isinstance(op, dnn.InnerProductBackwardWeights) else "weights"
    elif type(op).__name__.startswith("Deconvolution"):
        fields, operation = {"weights": op.weights_role}, dnn.DeconvolutionForward
        fixed = "src" if isinstance(op, dnn.DeconvolutionBackwardWeights) else "weights"
    else:
        fields, operation = {"weights": op.weights_role}, dnn.ConvolutionForward
        fixed = "src" if isinstance(op, dnn.ConvolutionBackwardWeights) else "weights"
    window = ("strides", "dilations", "padding_l", "padding_r")
    fields |= {name: getattr(op, name) for name in window if hasattr(op, name)}
    return operation("forward_inference", **roles, **fields), fixed


@pytest.mark.in_turn
@cases(
    dnn.ConvolutionBackwardData,
    dnn.ConvolutionBackwardWeights,
    dnn.DeconvolutionBackwardData,
    dnn.DeconvolutionBackwardWeights,
    dnn.InnerProductBackwardData,
    dnn.InnerProductBackwardWeights,
    dnn.PoolingBackward,
)
def test_the_gradient_is_adjoint(target: Target, op):
    if isinstance(op, dnn.PoolingBackward) and op.is_max:
        return  # not linear; tests/operations/test_pooling.py has its own, along the winners
    forward, fixed = linear_forward(op)
    pd, back = implementation(target, forward), implementation(target, op)
    varied = "weights" if fixed == "src" else "src"
    x, y = fill_normal(pd.descs[varied], 1), fill_normal(pd.dst_desc, 2)
    kept = {fixed: fill_normal(pd.descs[fixed], 3)} if fixed else {}
    dst = run(pd, {varied: x, **kept})["dst"]
    gradient = run(back, {"diff_dst": y, **kept})[f"diff_{varied}"]
    scale = product(np.abs(dst), np.abs(y)) + 1e-6
    assert abs(product(dst, y) - product(x, gradient)) < 1e-5 * scale


# -- all others, by the reference ------------------------------------------------------------------


@cases(dnn.EltwiseBackward, dnn.LRNBackward, dnn.PReLUBackward, dnn.SoftmaxBackward)
def test_the_gradient_is_the_slope_along_a_direction(op):
    inputs = inputs_of(op)
    forward = op.forward_op
    src = inputs["src"].astype(np.float64)
    if getattr(op, "function", "") in ("log", "sqrt", "pow"):
        src = np.abs(src) + 0.5
    kinks = [0.0, getattr(op, "alpha", 0.0), getattr(op, "beta", 0.0), 2.0, -2.0]
    for kink in kinks:  # no step across a corner
        near = np.abs(src - kink) < 4 * STEP
        src = np.where(near, kink + 8 * STEP, src)
    inputs["src"] = src.astype(np.float32)
    pd = implementation(REFERENCE, forward)
    inputs |= {k: v for k, v in run(pd, inputs).items() if k in ("dst", "workspace")}
    direction = np.sign(fill_normal(forward.src, 5)).astype(np.float64)
    high, low = (
        run(pd, inputs | {"src": (inputs["src"] + s * direction).astype(np.float32)})["dst"]
        for s in (STEP, -STEP)
    )
    slopes = run(implementation(REFERENCE, op), inputs)["diff_src"]
    y = inputs["diff_dst"]
    along = product(high.astype(np.float64) - low, y) / (2 * STEP)
    size = product(np.abs(slopes), np.abs(direction)) + product(np.abs(high) + 1, np.abs(y))
    assert abs(along - product(direction, slopes)) < 1e-3 * size + 1e-6
