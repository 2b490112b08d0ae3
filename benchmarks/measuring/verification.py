"""Finds wrong results and impossible times of contestants.

A contestant may return the results of other inputs, compute another problem or a part of the
problem, or skip calls. So every contestant is compared with float64 first, and the fastest one of
each side again: just before its last sample, its inputs change, and NaN overwrites its outputs. If
the outputs contain results before that sample, the contestant computes outside the measured time. A
single call must take about as long as each of many, and no device exceeds the limits below.

Two kinds of faults are not found: a contestant that computes the last call, but skips less than
40 % of the calls that it counts, or calls of less than 0.3 ms; and a contestant that computes a
small problem while its inputs change, and only copies the results later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.contestants.contestant import Contestant, is_arithmetic
from benchmarks.contestants.libraries import NOT_A_NUMBER
from benchmarks.measuring.accuracy import Exact
from benchmarks.measuring.sampling import Times
from dnncore.problem import Problem

__all__ = ["Judge", "Named", "allowed_error", "impossible"]

# A peer may round an integer result otherwise, by one unit.
EPSILONS = {
    "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7,
    "s32": 2.0**-23, "s8": 2.0**-6, "u8": 2.0**-7,
}  # fmt: skip
EPSILON = EPSILONS["f32"]
ELEMENTARY = 1e-5  # permitted error of approximated functions, relative to the largest result

# A call alone may take this many times as long as each of many, and these seconds longer, without
# and with a queue. Fewer calls or samples do not show the difference.
ALONE, ALONE_DIRECT, ALONE_QUEUED = 1.6, 5e-5, 5e-4
MANY, SEVERAL = 4, 5
# Many calls in a row may find up to CACHED_BYTES in caches that a single call reads from memory, at
# MEMORY_RATE bytes per second or faster. Measured: 8e10.
CACHED_BYTES, MEMORY_RATE = 1 << 26, 5e10
# No core and no device computes or moves more per second. Winograd's algorithm may appear to exceed
# the limit of operations, because it needs fewer operations than are counted.
CORE_LIMITS = {"flops": 0.4e12, "bytes": 1.2e12}
FASTER = {"bf16": 8, "f16": 8, "s8": 16, "u8": 16}  # products of these types, with matrix units
DEVICE_LIMITS = {"flops": 4e15, "bytes": 1e14}
WINOGRAD = (6 * 3 / 8) ** 2  # factor by which tiles of 6 x 6 results reduce multiplications

Named = tuple[str, Contestant]  # the name of a side, and one of its contestants


class Judge:
    """Compares contestants of a problem with float64.

    errors: the largest norm-wise error of each contestant, by its id.
    wrong: descriptions of wrong contestants, by id.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.errors: dict[int, float] = {}
        self.wrong: dict[int, str] = {}
        self._doubted: set[int] = set()

    def first(self, named: Sequence[Named]) -> None:
        """Run contestants once, with the inputs of the first draw, and compare their outputs."""
        exact = Exact(self.problem)
        for side, contestant in named:
            contestant.repeat(1)
            self._compare(exact, side, contestant)

    def again(self, named: Sequence[Named], draw: int) -> None:
        """Compare the outputs of the last run, whose inputs had the values of a draw."""
        exact = Exact(self.problem, draw)
        for side, contestant in named:
            self._compare(exact, side, contestant)

    def refill(self, named: Named, draw: int) -> None:
        """Give a contestant the inputs of a draw. Outputs that are not NaN then make it wrong."""
        named[1].refill(draw)
        if not all(map(_is_spoilt, named[1].outputs().values())):
            self._reject(named, "has results before it computes")

    def right(self, named: Sequence[Named]) -> list[Named]:
        """The contestants that were never wrong."""
        return [pair for pair in named if id(pair[1]) not in self.wrong]

    def doubt(self, named: Named, reason: str) -> None:
        """Mark a contestant as wrong at the second doubt. A single one may be a disturbance."""
        if id(named[1]) in self._doubted:
            self._reject(named, reason)
        self._doubted.add(id(named[1]))

    def reasons(self, named: Sequence[Named]) -> str:
        """The descriptions of the wrong contestants among these."""
        found = (self.wrong.get(id(contestant)) for _, contestant in named)
        return "; ".join(filter(None, found))

    def _compare(self, exact: Exact, side: str, contestant: Contestant) -> None:
        found = exact.errors(contestant.outputs())
        known = self.errors.get(id(contestant), 0.0)
        self.errors[id(contestant)] = max(known, found.norm)
        op, factor = self.problem.op, contestant.error_factor
        if not found.largest <= factor * allowed_error(op):
            self._reject((side, contestant), f"differs from float64 by {found.largest:.1e}")
        elif is_arithmetic(self.problem) and not found.norm <= factor * allowed_norm(op):
            self._reject((side, contestant), f"differs from float64 by {found.norm:.1e} in norm")

    def _reject(self, named: Named, reason: str) -> None:
        self.wrong[id(named[1])] = f"{text_of(named)} {reason}"


def _is_spoilt(values: Any) -> bool:
    """Whether all floating-point numbers are NaN, or all bytes of integers those of `spoil`."""
    if values.dtype.kind in "iu":
        return bool((np.ascontiguousarray(values).view(np.uint8) == NOT_A_NUMBER).all())
    return bool(np.isnan(values).all())


def text_of(named: Named) -> str:
    """The name of a side and of its contestant."""
    return f"{named[0]}: {named[1].name}"


def allowed_error(op: Any) -> float:
    """The permitted difference from float64, relative to the largest result.

    A sum of K products of normal values has a size of about sqrt(K). Its rounding errors cancel in
    part and are about eps * K / 6. The largest of many results is about four times as large.
    """
    return ELEMENTARY + EPSILON * math.sqrt(_terms(op)) + EPSILONS[op.result.data_type]


def allowed_norm(op: Any) -> float:
    """The permitted norm of a product's difference from float64, relative to the product's norm.

    If K products of normal values are added one after the other, the error is about
    eps sqrt(K / 6) / 4. Factors with 16 bits instead of 24 cause errors of 9e-6.
    """
    rounding = EPSILONS[op.result.data_type] if op.result.data_type != "f32" else 0.0
    return EPSILON * (4 + math.sqrt(_terms(op) / 6)) + rounding


def _terms(op: Any) -> float:
    """The average number of terms in the sums of an operation."""
    return float(1 + op.flops / (2 * max(1, op.result.nelems)))


def impossible(problem: Problem, times: Times, cores: int, *, queued: bool = False) -> str:
    """The reason why these times are impossible; "" if they are possible.

    cores: the number of cores that compute; 0 for another device.
    queued: whether calls enter a queue.
    """
    alone, many = min(times.single), min(times.many)
    op = problem.op
    slack = ALONE_QUEUED if queued else ALONE_DIRECT
    slack += op.bytes / MEMORY_RATE if op.bytes <= CACHED_BYTES else 0.0
    is_shown = times.count >= MANY and len(times.many) >= SEVERAL
    if is_shown and alone > ALONE * many + slack:
        return f"takes {alone:.1e} s for one call, but {many:.1e} s for each of many"
    limits = {n: cores * most for n, most in CORE_LIMITS.items()} if cores else DEVICE_LIMITS
    algorithm = getattr(op, "algorithm", "")
    factor = WINOGRAD if algorithm in ("winograd", "auto") else 1.0
    if cores and is_arithmetic(problem):
        factor *= min(FASTER.get(desc.data_type, 1) for desc in _factors(op))
    for name, count, most in (
        ("operations", op.flops * _share_inside(op), factor * limits["flops"]),
        ("bytes", op.bytes, limits["bytes"]),
    ):
        if count > most * many:
            return f"needs {many:.1e} s for {count:.1e} {name}, more than {most:.1e} per second"
    return ""


def _factors(op: Any) -> list[Any]:
    """The descriptors of the two tensors that a product reads."""
    own = {row.name: desc for row, desc in op.tensors() if row.direction == "in"}
    return [desc for name, desc in own.items() if name != "bias"]


def _share_inside(op: Any) -> float:
    """The share of a convolution's taps that are outside the padding; 1 for other operations.

    An implementation may skip taps in the padding, but `flops` counts them.
    """
    if not hasattr(op, "grouped_weights"):
        return 1.0
    share = 1.0
    for size, places, taps, stride, dilation, left in zip(
        op.src_role.dims[2:], op.dst_role.dims[2:], op.grouped_weights[3:], op.strides,
        op.dilations, op.padding_l, strict=True,
    ):  # fmt: skip
        first = np.arange(places)[:, np.newaxis] * stride - left
        at = first + np.arange(taps) * (dilation + 1)
        share *= float(np.mean((at >= 0) & (at < size))) if at.size else 1.0
    return share
