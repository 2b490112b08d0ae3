"""Judgement of a call: whether its results diverge, which implementation is wrong, and the errors.

The reference computes the call again in float64 from the call's inputs. The errors of both
implementations are measured from its results, and bounded (`dnncore.comparison`). Two
implementations diverge if their difference exceeds the sum of their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import Noise
from dnncore.comparison.compare import (
    Comparison,
    Expected,
    compare,
    correct_values,
    expected_outputs,
)
from dnncore.comparison.error_bounds import believed_factor, error_factor
from dnncore.comparison.fills import keeps_integers
from dnncore.comparison.statistics import judge as judge_errors
from dnncore.crosschecking.call import Call, NotComparable
from dnncore.crosschecking.heat_map import ratios
from dnncore.crosschecking.strays import Stray
from dnncore.ops.types import HALF_TYPES
from dnncore.problem import driver_of
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.datatypes import data_type, from_numpy_dtype

__all__ = ["Claims", "Difference", "Judgement", "are_equal", "judge", "promises"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

EXACT_SUMS = 2**24
"""Sums of integers up to this size are exact in f32."""

EXACT_FACTORS = 2**11
"""Integers up to this size are exact in TF32 and in each type that is computed in f32."""


@dataclass(frozen=True)
class Difference:
    """An argument whose values diverge.

    comparison: the comparison of the call's values with those of the other implementation.
    errors: the error of each element, divided by its bound.
    """

    argument: str
    comparison: Comparison
    errors: Array = field(repr=False)


@dataclass(frozen=True)
class Claims:
    """The claims of an implementation about its errors.

    exact: whether results are exact if no rounding can occur.
    error_factor: the factor of its bounds.
    """

    exact: bool
    error_factor: float

    @classmethod
    def of(cls, pd: PrimitiveDesc) -> Claims:
        """The claims that the algorithm of the operation permits."""
        return cls(pd.exact or error_factor(pd.op) == 1.0, believed_factor(pd))


@dataclass(frozen=True)
class Judgement:
    """The result of comparing a call with the reference.

    differences: the arguments that diverge, in order; none if the call is right.
    verdict: lines of text about the two implementations.
    blames_other: whether the call is within its bounds and the other implementation is not.
    """

    differences: tuple[Difference, ...] = ()
    verdict: tuple[str, ...] = ()
    blames_other: bool = False


RIGHT = Judgement()


def are_equal(a: Arrays, b: Arrays) -> bool:
    """Whether all values of `a` equal those of `b`. NaN equals NaN."""
    return all(np.array_equal(a[name], b[name], equal_nan=_is_float(a[name])) for name in a)


def judge(
    call: Call, others: Arrays | None = None, other: PrimitiveDesc | None = None, *,
    claims: Claims | None = None,
) -> Judgement:  # fmt: skip
    """Compare a call's outputs with those of another implementation, or of the reference.

    others: outputs of `other`; None to compare with the reference.
    claims: the claims of the implementation that computed the outputs; by default the claims of
        `call.pd`.

    Raises `BackendNotFound` if no reference is installed, and `NotComparable` if there is no output
    that is readable for both.
    """
    judgement = _judged_values(call, others, other, claims)
    strays = tuple(map(_of_stray, call.strays))
    if not strays:
        return judgement
    return replace(judgement, differences=(*strays, *judgement.differences), blames_other=False)


def _of_stray(stray: Stray) -> Difference:
    comparison = compare(stray.got, stray.expected)
    if stray.beside:
        comparison = replace(comparison, ok=False, beside=stray.beside)
    return Difference(stray.argument, comparison, ratios(stray.got, stray.expected, 0.0))


def _judged_values(
    call: Call, others: Arrays | None, other: PrimitiveDesc | None, claims: Claims | None
) -> Judgement:
    if others is not None and not _common(call.outputs, others):
        name = other.impl_name if other else "the other implementation"
        raise NotComparable(f"no output can be read of both {call.pd.impl_name} and {name}")
    if others is not None and are_equal(_common(call.outputs, others), others):
        return RIGHT
    values = correct_values(call.pd.op, call.pd.attr, call.inputs)
    if others is None and are_equal(call.outputs, values):
        return RIGHT
    expected = _expected(call, values)
    exact = _is_exact(call, values)
    if others is None or other is None:
        claims = claims or Claims.of(call.pd)
        return Judgement(tuple(_beyond_bounds(call.outputs, expected, claims, exact=exact)))
    found = [
        difference
        for name, right in expected.items()
        if name in call.outputs and name in others
        for difference in _between(name, call, others[name], other, right)
    ]
    if not found:
        return RIGHT
    ours = _beyond_bounds(call.outputs, expected, Claims.of(call.pd), exact=exact)
    theirs = _beyond_bounds(others, expected, Claims.of(other), exact=exact)
    name = found[0].argument
    errors = [
        expected[name].check(got, error_factor=believed_factor(pd))
        for got, pd in ((call.outputs[name], call.pd), (others[name], other))
    ]
    names = (call.pd.impl_name, other.impl_name)
    verdict = _closer(names, errors, (bool(ours), bool(theirs)))
    return Judgement(tuple(found), tuple(verdict), bool(theirs) and not ours)


def _expected(call: Call, values: Arrays) -> dict[str, Expected]:
    """Return the correct outputs. Where padding times infinity is NaN, any result is accepted."""
    op = call.pd.op
    expected = expected_outputs(op, call.pd.attr, call.inputs, values=values)
    pads = any(getattr(op, "padding_l", ())) or any(getattr(op, "padding_r", ()))
    has_infinity = any(np.isinf(inputs).any() for inputs in call.inputs.values())
    if not (pads and has_infinity and driver_of(type(op)).has_products):
        return expected
    return {
        name: replace(right, noise=right.noise.unknown_where(np.isnan(right.values)))
        if right.noise is not None
        else right
        for name, right in expected.items()
    }


def _common(a: Arrays, b: Arrays) -> Arrays:
    return {name: a[name] for name in a if name in b}


def _beyond_bounds(
    outputs: Arrays, expected: Mapping[str, Expected], claims: Claims, *, exact: bool
) -> list[Difference]:
    """Return the outputs that break the claims of their implementation.

    exact: whether no rounding can occur.
    """
    exact = exact and claims.exact
    factor = claims.error_factor
    found = []
    for name, right in expected.items():
        if name not in outputs:
            continue
        got = outputs[name]
        comparison = right.check(got, exact=exact, error_factor=factor)
        if comparison.ok and (lost := _badly_rounded(right, got, factor)):
            comparison = replace(comparison, ok=False, lost=lost)
        if not comparison.ok:
            bound = 0.0 if exact else right.bound(factor)
            settled = got if exact else right.settled(got, bound)
            found.append(Difference(name, comparison, ratios(settled, right.values, bound)))
    return found


def _between(
    name: str, call: Call, theirs: Array, other: PrimitiveDesc, right: Expected
) -> list[Difference]:
    """Return the difference of two implementations, if it exceeds the sum of both bounds."""
    bound = right.bound(believed_factor(call.pd)) + right.bound(believed_factor(other))
    ours = right.settled(call.outputs[name], bound)
    theirs = right.settled(theirs, bound)
    comparison = compare(ours, theirs, bound)
    return [] if comparison.ok else [Difference(name, comparison, ratios(ours, theirs, bound))]


# -- promises --------------------------------------------------------------------------------------


def _is_exact(call: Call, values: Arrays) -> bool:
    """Whether all numbers are integers and so small that no rounding can occur."""
    op, attr = call.pd.op, call.pd.attr
    if attr.post_ops or attr.fpmath not in ("strict", "ieee") or not keeps_integers(op, attr):
        return False
    if not all(map(_is_whole, call.inputs.values())):
        return False
    size = max([1.0, *map(_largest, call.inputs.values())])
    if driver_of(type(op)).has_products:
        if size > EXACT_FACTORS:
            return False
        size *= size
    terms = 1.0 + op.flops / max(1, op.result.nelems)
    return terms * size <= EXACT_SUMS and max(map(_largest, values.values())) <= EXACT_SUMS


def _largest(values: Array) -> float:
    return float(np.abs(values.astype(np.float64)).max(initial=0.0))


def _is_whole(values: Array) -> bool:
    numbers = values.astype(np.float64)
    return bool(np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all())


def _badly_rounded(right: Expected, got: Array, factor: float) -> str:
    """Describe a wrong rounding to a half type, such as truncation; "" if there is none.

    The order of users' values is not known, so the largest error of sums replaces the expected
    error. Equal results share one error, so each value counts once.
    """
    if right.noise is None or from_numpy_dtype(right.values.dtype) not in HALF_TYPES:
        return ""
    values = right.values.astype(np.float64).ravel()
    _, first = np.unique(values, return_index=True)
    limit = factor * np.broadcast_to(right.noise.limit, right.values.shape).ravel()[first]
    each = replace(
        right, values=right.values.ravel()[first], noise=Noise(limit, limit), judged=True
    )
    errors = each.errors(np.asarray(got).ravel()[first])
    return judge_errors(errors) if errors is not None else ""


def promises(call: Call, differences: tuple[Difference, ...], again: Arrays | None) -> list[str]:
    """Return lines about the promises that the call's implementation broke.

    again: the outputs of a second launch on the same inputs; None if it failed.
    """
    name = call.pd.impl_name
    lines = [
        f"{name} writes beside the elements of {d.argument}: into padding, gaps or other tensors"
        if d.comparison.beside
        else f"{name} changes its input {d.argument}"
        for d in differences
        if d.comparison.beside or d.argument not in call.outputs
    ]
    differences = tuple(d for d in differences if not d.comparison.beside)
    if not any(d.argument in call.outputs for d in differences):
        return lines
    if any(d.comparison.lost for d in differences):
        lines.append(f"{name} breaks its bound: all errors together show lost precision")
    elif any(d.comparison.bound == 0 and not d.comparison.misplaced for d in differences):
        lines.append(f"{name} must be exact: its inputs are whole numbers, or it only moves values")
    else:
        lines.append(f"{name} breaks its bound of rounding errors")
    if again is not None and not are_equal(_common(call.outputs, again), again):
        promise = "it promises to be deterministic" if call.pd.deterministic else ""
        lines.append(
            f"{name} returned other values when it ran again on the same inputs"
            f"{'; ' if promise else ''}{promise}"
        )
    return lines


def _closer(
    names: tuple[str, str], errors: list[Comparison], broken: tuple[bool, bool]
) -> list[str]:
    """Return lines that state which implementation is closer to the reference, and by how much."""
    first, second = errors
    near = 0 if _distance(first) <= _distance(second) else 1
    far = 1 - near
    small, large = errors[near].error, errors[far].error
    times = f", {large / small:.3g} times less" if small and math.isfinite(large) else ""
    first_line = f"{names[near]} is closer to the reference: norm-wise error {small:.2g}{times}"
    lines = [f"{first_line} than {large:.2g} of {names[far]}"]
    for name, error, is_broken in zip(names, errors, broken, strict=True):
        word = "breaks" if is_broken else "keeps"
        share = f", worst error {error.of_bound:.3g} of the bound" if error.of_bound else ""
        lines.append(f"{name} {word} its bound{share}")
    return lines


def _distance(error: Comparison) -> tuple[int, float]:
    return error.misplaced, error.error


def _is_float(values: Array) -> bool:
    return data_type(from_numpy_dtype(values.dtype)).is_float
