"""Checks of values: results are correct for every kind of input, and repeatable."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dnncore.attributes import Attributes
from dnncore.comparison.compare import Expected, expected_outputs
from dnncore.comparison.error_bounds import error_factor
from dnncore.comparison.fills import FillName, operand_names
from dnncore.ops import EltwiseBackward, PoolingBackward, Reorder
from dnncore.testing.checks.case import USUAL_FILLS, Arrays, Round, Trial, equal, unequal
from dnncore.testing.checks.concurrency import BRIEF, disturbed
from dnncore.testing.checks.precision import false_claim, lost_precision
from dnncore.testing.checks.results import CheckFailed

__all__ = ["cancellation", "integers", "large", "random", "repeatable", "repeatable_under_load",
           "slabs", "special", "special_operands", "ties", "tiny", "wide"]  # fmt: skip

Array = np.ndarray[Any, Any]
REPEATS = 8  # number of executions if they are brief
DISTURBERS = 3  # threads that compute during every second execution


def _right(fill: FillName, trial: Trial) -> None:
    """Results for a kind of input are within the error bound, and exact if nothing is rounded.

    If results for usual inputs are wrong, the checks of other inputs report nothing.
    """
    wrong = _wrong(trial, fill)
    if wrong and (fill in USUAL_FILLS or not any(_wrong(trial, usual) for usual in USUAL_FILLS)):
        raise CheckFailed(wrong)


def _wrong(trial: Trial, fill: FillName) -> str:
    """Describe the wrong outputs; "" if none is wrong."""
    given = trial.case.round(fill)
    expected = trial.expected(given) or {}
    outputs = {**trial.outputs(fill)}
    for name, right in expected.items():
        if fill in ("special", "slabs", "special_operands"):
            free = _is_free(trial, given, right.values, outputs[name])
            outputs[name] = np.where(free, right.values, outputs[name])
    return trial.wrong(given, outputs) or _lost_sign(given, expected, outputs)


def _lost_sign(given: Round, expected: Mapping[str, Expected], outputs: Arrays) -> str:
    """Describe where a reorder has lost the sign of a zero; "" if nowhere."""
    if not isinstance(given.op, Reorder) or given.attr.post_ops or "dst" not in expected:
        return ""
    right, got = (values.astype(np.float64) for values in (expected["dst"].values, outputs["dst"]))
    lost = np.argwhere((right == 0) & (got == 0) & (np.signbit(right) != np.signbit(got)))
    return f"dst: a zero at {lost[0].tolist()} has the wrong sign" if lost.size else ""


def _is_free(trial: Trial, given: Round, right: Array, got: Array) -> Array | bool:
    """Return a mask of the elements where NaN and infinities permit another result.

    An algorithm with an error factor above 1 transforms its inputs. One NaN or infinity may spread
    to all results of a transformed tile, and infinity may become NaN. A gradient that is infinity
    times 0 in the formula may have a finite limit. torch, the reference's oracle, has other rules
    for gradients of eltwise and pooling.
    """
    if error_factor(trial.pd.op) > 1:
        return ~np.isfinite(got)
    if not isinstance(given.op, EltwiseBackward | PoolingBackward):
        return False
    saved = given.inputs.get("src", given.inputs.get("dst"))
    if saved is None:
        return False
    if trial.pd.is_reference:
        return bool(~np.isfinite(saved).all())
    if saved.shape != right.shape:
        return False
    if given.attr.post_ops:  # a comparison turns NaN into a number
        plain = expected_outputs(given.op, Attributes(), given.inputs)
        right = plain[given.op.result_name].values
    return np.isinf(saved) & np.isnan(right)


def random(trial: Trial) -> None:
    """Errors for random numbers are within the bounds of elements and of tensors.

    The claimed error factor is one that the algorithm permits.
    """
    if claim := false_claim(trial):
        raise CheckFailed(claim)
    _right("random", trial)
    lost = lost_precision(trial)
    if lost:
        raise CheckFailed("; ".join(f"{name}: lost precision: {lost[name]}" for name in lost))


def special_operands(trial: Trial) -> None:
    """NaN and infinities in bias, post-op operands and old results appear in the right places."""
    if operand_names(trial.case.op, trial.case.attr):
        _right("special_operands", trial)


integers = partial(_right, "integers")
ties = partial(_right, "ties")
cancellation = partial(_right, "cancellation")
wide = partial(_right, "wide")
large = partial(_right, "large")
tiny = partial(_right, "tiny")
special = partial(_right, "special")
slabs = partial(_right, "slabs")


def repeatable(trial: Trial) -> None:
    """Another execution has bit-equal results if the implementation claims determinism.

    Sums of numbers of many magnitudes depend on the order of their terms.
    """
    for fill in ("random", "wide"):
        _repeat(trial, fill, [0])


def repeatable_under_load(trial: Trial) -> None:
    """Further executions have bit-equal results while other threads keep the processors busy.

    The other threads compute during every second execution, so that the threads of an
    implementation end in another order.
    """
    brief = trial.case.op.bytes < BRIEF
    _repeat(trial, "wide", [DISTURBERS, 0] * (REPEATS // 2) if brief else [DISTURBERS])


def _repeat(trial: Trial, fill: FillName, others: list[int]) -> None:
    """Execute once for each number in `others`, while that many threads compute."""
    if not trial.pd.deterministic:
        return
    first = trial.outputs(fill)
    arguments = trial.arguments(trial.case.round(fill).inputs)
    for turn, count in enumerate(others):
        arguments.restore()
        with disturbed(count):
            trial.primitive.execute(trial.case.engine.stream(), **arguments.memories).wait()
        again = trial.finish(arguments)
        if not equal(first, again):
            raise CheckFailed(
                f"claims to be deterministic, but run {turn + 2} differs, {fill}:"
                f" {unequal(first, again)}"
            )
