"""Error bounds of attention.

The scores are sums of D products. An error e of a score multiplies its weight by exp(e). So a
weight w lies between w exp(-e) and w exp(e), where e includes the error of lse and the roundings of
the exponential. Forward also adds up the weights, so they are at most 1. This holds for errors of
any size.

Implementations may round weights and diff_score to the type of the tensors before the next product.
Such an error is at most the roundoff of the type times the weight, or half of its least number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import finfo

from dnncore.algorithms.rounding import (
    LEAST_NORMAL,
    ROUNDOFF,
    Array,
    Noise,
    positive_sum,
    summed,
)
from dnncore.ops import AttentionBackward, AttentionForward
from dnncore.ops.attention import Attention
from dnncore.ops.types import HALF_TYPES
from dnncore.problem.drivers.driver import Evaluate, Inputs
from dnncore.tensors.datatypes import data_type

__all__ = ["backward_errors", "forward_errors", "workspace_errors"]

FUNCTIONS = 16
"""Roundings of an exponential or a logarithm."""

FAR = 100.0
"""Arguments below -FAR have exponentials below the least number of f32."""

NEAR = 16
"""A result with a limit above the largest number of its type, divided by this, is not compared."""

FEW = 4
"""Roundings of a sum that is multiplied by a factor and divided by another sum."""

PER_BLOCK = 2
"""Additions per key: implementations also scale the sum of each block of keys."""


@dataclass(frozen=True)
class _Factors:
    """The inputs in float64, with keys and values for each head of the queries."""

    op: Any
    inputs: Inputs
    evaluate: Evaluate

    def __getitem__(self, name: str) -> Array:
        values = self.inputs[name].astype(np.float64)
        if name not in ("keys", "values"):
            return values
        _, h, g, *_ = self.op.sizes
        return np.repeat(values, h // max(1, g), axis=1)

    def product(self, a: Array, b: Array, terms: float) -> Noise:
        """Return the noise of the sums of products a @ b, times a factor."""
        size = np.abs(a) @ np.abs(b)
        few = Noise.within(FEW * ROUNDOFF * np.abs(a @ b))
        if not self.evaluate.random_order:
            return summed(terms, size, size) + few
        half = self.evaluate.data_type in HALF_TYPES
        norm = np.sqrt(np.square(a) @ np.square(b))
        return summed(terms, a @ b, norm, cut_off=half) + few

    def stored(self, values: Array) -> Noise:
        """Return the error of factors that are rounded to the type of the tensors."""
        if self.evaluate.data_type not in HALF_TYPES:
            return Noise.within(np.zeros(values.shape))
        limits = finfo(data_type(self.evaluate.data_type).dtype)  # type: ignore[no-untyped-call]
        least = float(limits.smallest_subnormal) / 2
        return Noise.within(float(limits.eps) / 2 * np.abs(values) + least)


def _transposed(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


def _carried(noise: Noise, factor: Array) -> Noise:
    """Return the noise of noise @ factor. Errors of different elements are independent."""
    rms = np.sqrt(np.square(noise.rms) @ np.square(factor))
    return Noise(noise.limit @ np.abs(factor), rms)


def _seen(op: Attention) -> Array:
    _, _, _, q, k, _, _ = op.sizes
    shape = np.ones((q, k), np.bool_)
    return shape if op.diagonal is None else np.tril(shape, op.diagonal)


def _scores(op: Attention, given: _Factors) -> tuple[Array, Noise]:
    """Return the scores and their noise, with the roundings of the exponential's argument."""
    *_, d, _ = op.sizes
    scale = 1.0 if op.scale is None else op.scale
    queries, keys = given["queries"], _transposed(given["keys"])
    product = scale * (queries @ keys)
    noise = given.product(queries, keys, d) * abs(scale)
    mask = given["mask"] if op.mask is not None else np.zeros((1, 1, 1, 1))
    scores = np.where(_seen(op), product + mask, -np.inf)
    rounded = 2 * ROUNDOFF * (np.abs(product) + np.abs(np.where(np.isinf(mask), 0.0, mask)))
    return scores, noise + Noise.within(rounded)


def _weights(
    scores: Array, lse: Array, noise: Noise, largest: float = np.inf
) -> tuple[Array, Noise]:
    """Return the weights and their noise.

    noise: of scores - lse. largest: a weight with any error; weights of a given lse may exceed 1.
    """
    used = ~np.isneginf(scores) & ~np.isneginf(lse)
    exponent = np.where(used, scores - lse, -np.inf)
    reach = np.where(used, np.minimum(np.abs(exponent), FAR), 0.0)
    noise = noise + Noise.within(FUNCTIONS * ROUNDOFF * (1.0 + reach))
    weights = np.exp(exponent)

    def change(error: Array) -> Array:
        upper = np.minimum(np.exp(exponent + error), np.maximum(weights, largest))
        grown = np.maximum(upper - weights, -weights * np.expm1(-error)) + LEAST_NORMAL
        return np.where(used, grown, 0.0)

    return weights, Noise(change(noise.limit), change(noise.rms))


def _lse(scores: Array) -> Array:
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isneginf(most), 0.0, most)
    total = np.exp(scores - shift).sum(-1, keepdims=True)
    lse: Array = np.where(np.isneginf(most), -np.inf, shift + np.log(total))
    return lse


def forward_errors(op: AttentionForward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise of dst and lse."""
    given = _Factors(op, inputs, evaluate)
    terms = PER_BLOCK * op.sizes[4] + 1
    scores, noise = _scores(op, given)
    lse = _lse(scores)
    weights, error = _weights(scores, lse, noise, 1.0)
    values = given["values"]
    size = np.abs(weights @ values)
    total = positive_sum(terms, np.ones(lse.shape))  # relative to the sum of exponentials
    own = given.product(weights, values, terms) + total * size
    normed = Noise(
        error.limit.sum(-1, keepdims=True), np.hypot.reduce(error.rms, -1, keepdims=True)
    )
    own = own + _carried(error + given.stored(weights), values) + normed * size
    if op.prop_kind == "forward_inference":
        return {"dst": own}
    known = np.where(np.isfinite(lse), np.abs(lse), 0.0)
    worst = np.where(weights > 0, noise.limit, 0.0).max(-1, keepdims=True, initial=0.0)
    expected = np.hypot.reduce(weights * noise.rms, -1, keepdims=True)
    logarithm = Noise.within(FUNCTIONS * ROUNDOFF * (1.0 + known))
    logarithm = logarithm.unknown_where(np.isposinf(lse) | np.isnan(lse))  # inf - inf
    return {"dst": own, "workspace": Noise(worst, expected) + total + logarithm}


def backward_errors(op: AttentionBackward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise of the three gradients. lse and dst are exact."""
    given = _Factors(op, inputs, evaluate)
    scores, noise = _scores(op, given)
    parts = _gradient_parts(op, given, scores, noise)
    found = _gradients(op, given, *parts)
    if all(np.isfinite(one).all() for one in (inputs["diff_dst"], scores[~np.isneginf(scores)])):
        largest = float(finfo(data_type(evaluate.data_type).dtype).max)  # type: ignore[no-untyped-call]
        return {name: _unless_near(one, largest) for name, one in found.items()}
    if op.diagonal is None:
        return found
    # 0 * NaN: weights of 0 may be multiplied, or left out with a block of keys
    return {name: one.unknown_where(np.ones_like(one.limit)) for name, one in found.items()}


def _unless_near(noise: Noise, largest: float) -> Noise:
    """Return the noise, unknown where the result may exceed its type or not."""
    return noise.unknown_where(~(noise.limit < largest / NEAR))


def _gradient_parts(
    op: AttentionBackward, given: _Factors, scores: Array, noise: Noise
) -> tuple[Array, Noise, Array, Noise]:
    """Return the weights and diff_score, each with its noise."""
    terms = op.sizes[-1]
    diff, values = given["diff_dst"], _transposed(given["values"])
    weights, error = _weights(scores, given["workspace"], noise)
    products = diff * given["dst"]
    slopes = diff @ values - products.sum(-1, keepdims=True)
    own = given.product(diff, values, terms) + given.product(products, np.ones((terms, 1)), terms)
    scored = error * np.abs(slopes) + own * (weights + error.limit)
    return weights, error, weights * slopes, scored


def _gradients(
    op: AttentionBackward, given: _Factors, weights: Array, error: Noise, diff: Array, scored: Noise
) -> dict[str, Noise]:
    """Return the noise of the gradients, which multiply weights and diff_score."""
    n, h, g, q, k, _, _ = op.sizes
    rows = h // max(1, g) * q
    error, scored = error + given.stored(weights), scored + given.stored(diff)
    scale = abs(1.0 if op.scale is None else op.scale)

    def shared(product: Array, noise: Noise, factor: Array) -> Noise:
        """Return the noise of a sum over the queries of all heads that share keys."""
        a, limit, rms = (
            _transposed(part.reshape(n, g, rows, k)) for part in (product, noise.limit, noise.rms)
        )
        b = factor.reshape(n, g, rows, factor.shape[-1])
        return given.product(a, b, PER_BLOCK * rows + 1) + _carried(Noise(limit, rms), b)

    keys = given["keys"]
    queries = given.product(diff, keys, PER_BLOCK * k + 1) + _carried(scored, keys)
    return {
        "diff_queries": queries * scale,
        "diff_keys": shared(diff, scored, given["queries"]) * scale,
        "diff_values": shared(weights, error, given["diff_dst"]),
    }


def workspace_errors(
    op: AttentionBackward, inputs: Inputs, error: Array, evaluate: Evaluate
) -> dict[str, Array]:
    """Return the errors of the gradients that an error of lse causes."""
    given = _Factors(op, inputs, evaluate)
    scores, _ = _scores(op, given)
    shift = np.where(np.isfinite(error), error, np.inf) + np.zeros(scores.shape)
    added = Noise(shift, shift)
    plain = Noise.within(np.zeros(scores.shape))
    more = _gradients(op, given, *_gradient_parts(op, given, scores, added))
    less = _gradients(op, given, *_gradient_parts(op, given, scores, plain))
    return {name: more[name].limit - less[name].limit for name in more}
