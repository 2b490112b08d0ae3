"""Algebraic checks: gradients compared with forward implementations, and linearity.

For a linear f, <f(x), y> = <x, f'(y)>. For an affine f, f(a) + f(b) = f(a + b) + f(0). For integers
both hold without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_dtypes import finfo

from dnncore.attributes import Attributes
from dnncore.comparison.compare import Expected, expected_outputs
from dnncore.comparison.error_bounds import believed_factor
from dnncore.comparison.fills import fill_integers, fill_normal, reads
from dnncore.ops import Operation
from dnncore.ops.types import HALF_TYPES
from dnncore.problem import driver_of
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.testing.checks.case import Round, Trial, equal
from dnncore.testing.checks.guarded import Arguments
from dnncore.testing.checks.results import CheckFailed

__all__ = ["adjoint", "linear", "slope", "workspaces"]

Array = np.ndarray[Any, Any]
ROUNDING = 1e-5  # relative to the sum of absolute values; float32's error after rounding


def _run(pd: PrimitiveDesc, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Execute an implementation other than the trial's."""
    return _executed(pd, inputs).outcome()[0]


def _executed(pd: PrimitiveDesc, inputs: Mapping[str, Array]) -> Arguments:
    arguments = Arguments(pd, inputs)
    stream = pd.engine.stream()
    pd.primitive().execute(stream, **arguments.memories).wait()
    stream.wait()
    return arguments


def _workspace(forward: PrimitiveDesc, inputs: Mapping[str, Array]) -> Array:
    """Return the workspace that a forward implementation writes; its bytes if it is private."""
    box = _executed(forward, _read(forward.op, inputs)).boxes["workspace"]
    return box.own_bytes() if box.is_opaque else box.result()[0]


def _forwards(trial: Trial) -> list[PrimitiveDesc]:
    """Yield implementations of the gradient's forward operation on the same engine, best first."""
    forward = trial.pd.op.forward_op
    assert forward is not None
    with trial.case.clock("building"):
        found = primitive_descs(forward, trial.case.engine, impl="", skip_impl="")
        return list(found)


def _rounding(op: Operation, *, exact: bool) -> float:
    """Return the allowed error relative to the sum of absolute values. It is larger for results in
    16-bit types, which are rounded even if they are exact in f32.
    """
    halves = [desc.dtype for _, desc in op.tensors() if desc.data_type in HALF_TYPES]
    if halves:
        return 2 * max(float(finfo(dtype).eps) for dtype in halves)  # type: ignore[no-untyped-call]
    return 0.0 if exact else ROUNDING


def _product(a: Array, b: Array) -> float:
    return float(np.vdot(a.astype(np.float64), b.astype(np.float64)))


# -- adjointness ----------------------------------------------------------------------------------


def adjoint(trial: Trial) -> None:
    """The gradient of a linear operation is the adjoint of the best forward implementation.

    Max pooling is linear if the same elements are the maxima.
    """
    op = trial.pd.op
    if op.forward_op is None or not _affine_in(op) or trial.case.attr.post_ops:
        return
    forward = next(iter(_forwards(trial)), None)
    if forward is None:
        return
    given = trial.case.round("integers")
    gradients = trial.outputs("integers")
    x = _forward_inputs(op, forward, given.inputs, trial.case.seed)
    y = given.inputs["diff_dst"]
    dst = _run(forward, x)["dst"]
    if np.any(dst == finfo(dst.dtype).min):  # type: ignore[no-untyped-call]  # of ml_dtypes
        return  # a window inside the padding has no maximum
    left = _product(dst, y)
    right = sum(_product(x[n.removeprefix("diff_")], g) for n, g in gradients.items())
    scale = _product(np.abs(dst), np.abs(y)) + 1.0
    factor = max(believed_factor(trial.pd), believed_factor(forward))
    exact = given.exact and trial.pd.exact and forward.exact
    allowed = _rounding(op, exact=exact) * scale * factor
    if not abs(left - right) <= allowed:
        if trial.wrong(given, gradients):
            return  # the checks of values report this
        raise CheckFailed(
            f"not the adjoint of {forward.impl_name}: <f(x), y> is {left:.9g} and <x, f'(y)>"
            f" {right:.9g}; allowed {allowed:.2g}"
        )


def _forward_inputs(
    op: Operation, forward: PrimitiveDesc, given: Mapping[str, Array], seed: int
) -> dict[str, Array]:
    """Return forward inputs: random for tensors whose gradient is computed, else zeros."""
    written = {a.name.removeprefix("diff_") for a, _ in op.tensors() if a.direction == "out"}
    inputs = {}
    for place, (argument, desc) in enumerate(forward.arguments):
        name = argument.name
        if argument.direction == "in":
            fresh = name in written and name not in given
            drawn = fill_integers(desc, (seed, place)) if fresh else np.zeros(desc.dims, desc.dtype)
            inputs[name] = given.get(name, drawn)
    return inputs


# -- workspaces -----------------------------------------------------------------------------------


def workspaces(trial: Trial) -> None:
    """The gradient is correct with the workspace of every forward implementation.

    Rounding of the workspace may change the result. So a bound applies even to the reference. Its
    results with its own workspace define correct results.
    """
    if "workspace" not in trial.pd.op.saved:
        return
    case = trial.case
    given = case.round("random")
    for forward in _forwards(trial):
        pd = case.sibling(trial, case.attr, hint=forward)
        if pd is None:
            continue  # another's private workspace, or a layout that this one refuses
        workspace = _workspace(forward, given.inputs)
        outputs = trial.execute({**given.inputs, "workspace": workspace}, pd=pd)
        wrong = trial.unlike(_with_workspace_of(forward, given, workspace), outputs)
        if wrong and not equal(outputs, trial.outputs("random")):
            raise CheckFailed(f"with {forward.impl_name}'s workspace: {wrong}")


def _read(op: Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of an operation among some tensors."""
    return {name: inputs[name] for name in reads(op, Attributes())}


def _with_workspace_of(
    forward: PrimitiveDesc, given: Round, workspace: Array
) -> Mapping[str, Expected]:
    """Return the expected outputs of a gradient that reads any correct workspace of `forward`.

    Without a rule for errors of the workspace, the reference reads the same workspace. It cannot
    read a private one.
    """
    if forward.descs["workspace"].format_kind == "opaque":
        return given.expected
    if driver_of(type(given.op)).workspace_errors is None:
        return expected_outputs(
            given.op, given.attr, {**given.inputs, "workspace": workspace}, random_order=True
        )
    own = expected_outputs(forward.op, Attributes(), _read(forward.op, given.inputs))
    error = own["workspace"].bound(believed_factor(forward))
    if not isinstance(error, np.ndarray):  # exact
        return given.expected
    return expected_outputs(given.op, given.attr, given.inputs, error)


# -- the reference's own oracles ------------------------------------------------------------------


def _affine_in(op: Operation) -> str:
    """Return the name of an argument in which the operation is affine, or ""."""
    return driver_of(type(op)).linear_in(op)


def linear(trial: Trial) -> None:
    """The reference, affine in an argument: f(a) + f(b) = f(a + b) + f(0)."""
    op: Operation = trial.pd.op
    name = _affine_in(op)
    if not trial.pd.is_reference or not name or trial.case.attr.post_ops:
        return
    given = trial.case.round("integers")
    a = given.inputs[name]
    b = fill_integers(trial.pd.descs[name], (trial.case.seed, 1))
    results = [
        trial.execute({**given.inputs, name: x.astype(a.dtype)})[op.result_name]
        for x in (a, b, a + b, np.zeros_like(a))
    ]
    compared = ~np.any([_saturated(result) for result in results], axis=0)
    is_rounded = bool(trial.case.attr.scales) and np.issubdtype(results[0].dtype, np.integer)
    fa, fb, fab, f0 = (result.astype(np.float64) for result in results)
    sizes = np.abs(fa) + np.abs(fb) + np.abs(f0) + 1e-3
    allowed = _rounding(op, exact=given.exact) * sizes
    allowed += 2.0 if is_rounded else 0.0  # half a unit for each of the four results
    errors = np.where(compared, np.abs(fa + fb - fab - f0), 0.0)
    if np.any(errors > allowed):
        off = float(np.max(errors))
        raise CheckFailed(f"not linear in {name}: f(a) + f(b) - f(a + b) - f(0) is up to {off:.3g}")


def _saturated(result: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the elements at a limit of an integer type. The exact results may exceed it."""
    if not np.issubdtype(result.dtype, np.integer):
        return np.zeros(result.shape, np.bool_)
    ends = np.iinfo(result.dtype)
    return np.isin(result, [ends.min, ends.max])


STEP = 2.0**-8


def slope(trial: Trial) -> None:
    """The reference's gradients are the slopes of its forward operations along a direction.

    If x moves by h along v, <f(x + h v) - f(x - h v), y> / (2 h) = <v, f'(x, y)> + O(h**2).
    """
    op: Operation = trial.pd.op
    smooth = driver_of(type(op)).smooth
    if not trial.pd.is_reference or smooth is None or op.forward_op is None:
        return
    if trial.case.attr.post_ops:
        return
    if any(desc.data_type in HALF_TYPES for _, desc in op.tensors()):
        return  # too coarse for finite differences; formulas do not depend on types
    inputs = trial.case.round("random").inputs
    src = smooth(op, inputs["src"].astype(np.float64))
    if src is None:
        return
    y = inputs["diff_dst"]
    forward = next(pd for pd in _forwards(trial) if pd.is_reference)
    absent = {  # gradients read no shift
        name: np.zeros(forward.descs[name].dims, forward.descs[name].dtype)
        for name in reads(forward.op, Attributes())
        if name not in inputs
    }
    read = _read(forward.op, {**inputs, **absent})
    v = np.sign(fill_normal(trial.pd.descs["diff_src"], (trial.case.seed, 2))).astype(np.float64)
    at, high, low = (
        _run(forward, {**read, "src": (src + s * v).astype(np.float32)}) for s in (0.0, STEP, -STEP)
    )
    kept = {**inputs, **at, "src": src.astype(np.float32)}
    slopes = trial.execute(kept)["diff_src"]
    along = _product(high["dst"].astype(np.float64) - low["dst"], y) / (2 * STEP)
    size = _product(np.abs(slopes), np.abs(v)) + _product(np.abs(high["dst"]) + 1, np.abs(y))
    if not abs(along - _product(v, slopes)) <= 1e-3 * size + 1e-6:
        raise CheckFailed(
            f"along a direction the slope is {along:.6g} and the gradient gives"
            f" {_product(v, slopes):.6g}; allowed {1e-3 * size:.2g}"
        )
