"""Error bounds and oracles of normalizations.

An implementation computes mean and variance in f32. The error of the mean, d, is that of a sum
divided by the number of terms, and a rounding. The variance has the error of a sum of squares. In
addition, deviations from a mean that is wrong by d add d**2. If the means of parts are combined,
2 d times the standard deviation is added. So a difference of large sums of squares, whose error is
proportional to mean**2, exceeds the bound.

The error v of the variance changes 1 / sqrt(variance + epsilon) by the factor
sqrt((variance + epsilon) / (variance + epsilon - v)) at most. If v reaches variance + epsilon,
every result is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import DIVISION, LEAST_NORMAL, ROUNDOFF, Array, Noise, positive_sum
from dnncore.ops import (
    GroupNormalizationBackward,
    GroupNormalizationForward,
    LayerNormalizationBackward,
    LayerNormalizationForward,
)
from dnncore.ops.normalization import Normalization, NormalizationBackward, NormalizationForward
from dnncore.problem.drivers.accumulation import sum_along
from dnncore.problem.drivers.driver import Evaluate, Inputs

__all__ = ["backward_errors", "backward_oracle", "forward_errors", "forward_oracle"]

ROOT = 6 + DIVISION
"""Roundings of 1 / sqrt(variance + epsilon): OpenCL allows 3 ulp for sqrt."""

GROUPS = (GroupNormalizationForward, GroupNormalizationBackward)
LAYERS = (LayerNormalizationForward, LayerNormalizationBackward)


class _Axes:
    """Shapes in which src's elements of a set, or of a channel, lie along some axes."""

    def __init__(self, op: Normalization) -> None:
        dims = op.source.dims
        if isinstance(op, GROUPS):
            groups = op.statistics_dims[1]
            self.dims: tuple[int, ...] = (dims[0], groups, dims[1] // groups, *dims[2:])
            self.of_set = tuple(range(2, len(dims) + 1))
            self.of_channel = (0, *range(3, len(dims) + 1))
        elif isinstance(op, LAYERS):
            self.dims = dims
            self.of_set = (len(dims) - 1,)
            self.of_channel = tuple(range(len(dims) - 1))
        else:
            self.dims = dims
            self.of_set = self.of_channel = (0, *range(2, len(dims)))

    def of_statistic(self, values: Any) -> Any:
        return values.reshape([1 if a in self.of_set else n for a, n in enumerate(self.dims)])

    def of_vector(self, values: Any) -> Any:
        return values.reshape([1 if a in self.of_channel else n for a, n in enumerate(self.dims)])


def _wide(inputs: Inputs) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in inputs.items()}


# -- error bounds ----------------------------------------------------------------------------------


def _statistics_errors(
    op: Normalization, x: Array, axes: _Axes, evaluate: Evaluate
) -> tuple[Array, Noise, Array, Noise]:
    """Return mean and variance of sets, with their noise."""
    count = max(1, op.count)
    if op.has_mean:
        mean = x.sum(axes.of_set, keepdims=True) / count
        off = sum_along(x, axes.of_set, op.count, evaluate, keepdims=True) * (1 / count)
        off += Noise.within(2 * ROUNDOFF * np.abs(mean) + LEAST_NORMAL)
    else:
        mean = np.zeros_like(x.sum(axes.of_set, keepdims=True))
        off = Noise.within(mean)
    squares = np.square(x - mean).sum(axes.of_set, keepdims=True)
    variance = squares / count
    spread = positive_sum(op.count, squares) * (1 / count)
    spread += off * (2 * np.sqrt(variance))
    spread += Noise.within(4 * ROUNDOFF * variance + off.limit**2 + LEAST_NORMAL)
    return mean, off, variance, spread


def forward_errors(
    op: NormalizationForward, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Noise]:
    """Return the noise of the result, the statistics and the mask."""
    values = _wide(inputs)
    axes = _Axes(op)
    x = values["src"].reshape(axes.dims)
    if op.use_global_stats:
        variance = axes.of_statistic(values["variance"])
        mean = axes.of_statistic(values["mean"]) if op.has_mean else np.zeros_like(variance)
        off = Noise.within(np.zeros_like(mean))
        spread = Noise.within(np.where(variance > 0, LEAST_NORMAL, 0.0))
    else:
        mean, off, variance, spread = _statistics_errors(op, x, axes, evaluate)
    reach = variance + op.epsilon
    least = reach - spread.limit
    factor = 1 / np.sqrt(reach)
    scale = axes.of_vector(values["scale"]) if "scale" in values else np.array(1.0)
    shift = axes.of_vector(values["shift"]) if "shift" in values else np.array(0.0)
    normalized = scale * (x - mean) * factor
    size = np.abs(normalized)
    result = normalized + shift
    noise = off * np.abs(scale * factor)
    noise += Noise(size * (np.sqrt(reach / least) - 1), size * spread.rms / (2 * reach))
    lost = least <= 0 if not op.use_global_stats else np.zeros_like(least, bool)
    lost = lost | (np.isinf(scale) & (np.abs(x - mean) <= off.limit))  # inf * 0, or inf
    own = (ROOT + 4) * size + np.abs(shift) + np.abs(result)
    noise += Noise.within(ROUNDOFF * own + LEAST_NORMAL)
    result, noise = _flat(result, op), Noise(_flat(noise.limit, op), _flat(noise.rms, op))
    if "src1" in values:
        result = result + values["src1"]
        noise += Noise.within(ROUNDOFF * np.abs(result))
    noise = noise.unknown_where(_flat(np.broadcast_to(lost, axes.dims), op))
    errors = {"dst": noise}
    if not op.use_global_stats and op.variance is not None:
        dims = op.variance.dims
        unknown = np.isinf(mean)
        for name, one in (("mean", off.unknown_where(unknown)), ("variance", spread)):
            errors[name] = Noise(one.limit.reshape(dims), one.rms.reshape(dims))
        errors = errors if op.has_mean else {n: e for n, e in errors.items() if n != "mean"}
    if op.workspace_desc() is not None:
        is_known = np.abs(result) > noise.limit
        errors["workspace"] = Noise.within(np.where(is_known, 0.0, 1.0))
    return errors


def _flat(values: Array, op: Normalization) -> Array:
    return values.reshape(op.source.dims)


def backward_errors(
    op: NormalizationBackward, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Noise]:
    """Return the noise of all gradients."""
    values = _wide(inputs)
    axes = _Axes(op)
    diff = values["diff_dst"].reshape(axes.dims)
    if "workspace" in values:
        diff = np.where(values["workspace"].reshape(axes.dims) == 0, 0.0, diff)
    variance = axes.of_statistic(values["variance"])
    mean = axes.of_statistic(values["mean"]) if op.has_mean else np.zeros_like(variance)
    scale = axes.of_vector(values["scale"]) if "scale" in values else np.array(1.0)
    factor = 1 / np.sqrt(variance + op.epsilon)
    src = values["src"].reshape(axes.dims)
    x = (src - mean) * factor
    g = scale * diff
    own = 4 * np.abs(g)
    noise = Noise.within(np.zeros(axes.dims))
    if not op.use_global_stats:
        count = max(1, op.count)
        parts = [(g * x, x)] + ([(g, np.ones_like(x))] if op.has_mean else [])
        for terms, of in parts:
            average = terms.sum(axes.of_set, keepdims=True) / count
            total = sum_along(terms, axes.of_set, op.count, evaluate, keepdims=True)
            sizes = np.abs(terms).sum(axes.of_set, keepdims=True) / count
            total = total * (1 / count) + Noise.within((ROOT + 6) * ROUNDOFF * sizes)
            noise += total * np.abs(of)
            own = own + (ROOT + 4) * np.abs(average * of)
    noise = (noise + Noise.within(ROUNDOFF * own + LEAST_NORMAL)) * factor
    noise += Noise.within((ROOT + 2) * ROUNDOFF * np.abs(g) * factor)
    special = _has_infinity(axes, src, g, x, diff, np.broadcast_to(scale * factor, axes.dims))
    noise = noise.unknown_where(np.broadcast_to(special, axes.dims))
    errors = {"diff_src": Noise(_flat(noise.limit, op), _flat(noise.rms, op))}
    terms_per_channel = diff.size / max(1, op.channels)
    for name, terms in (("diff_scale", diff * x), ("diff_shift", diff)):
        if vars(op).get(name) is not None:
            total = sum_along(terms, axes.of_channel, terms_per_channel, evaluate, keepdims=True)
            sizes = np.abs(terms).sum(axes.of_channel, keepdims=True)
            lost = (ROOT + 4) * ROUNDOFF * sizes if name == "diff_scale" else 0.0 * sizes
            total += Noise.within(lost + LEAST_NORMAL)
            errors[name] = Noise(total.limit.reshape(-1), total.rms.reshape(-1))
    return errors


def _has_infinity(axes: _Axes, *arrays: Array) -> Array:
    """Whether an element of a set is infinite. Then the order of operations matters."""
    found = np.any([np.isinf(array) for array in arrays], axis=0)
    has: Array = found.any(axes.of_set, keepdims=True)
    return has


# -- oracles ---------------------------------------------------------------------------------------


def _normalized(
    op: Normalization, axes: _Axes, t: Mapping[str, Any], mean: Any, variance: Any
) -> Any:
    x = t["src"].reshape(axes.dims)
    if op.has_mean:
        x = x - axes.of_statistic(mean)
    x = x / (axes.of_statistic(variance) + op.epsilon).sqrt()
    if "scale" in t:
        x = x * axes.of_vector(t["scale"])
    if "shift" in t:
        x = x + axes.of_vector(t["shift"])
    return x.reshape(op.source.dims)


def forward_oracle(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result and statistics, by torch's mean and variance."""
    axes = _Axes(op)
    outputs: dict[str, Any] = {}
    mean, variance = t.get("mean"), t.get("variance")
    if not op.use_global_stats:
        x = t["src"].reshape(axes.dims)
        empty = torch.zeros(op.statistics_dims, dtype=torch.float64)
        variance, mean = (empty, empty) if not op.count else torch.var_mean(
            x, axes.of_set, correction=0
        )  # fmt: skip
        if not op.has_mean and op.count:
            variance = (x * x).mean(axes.of_set)
        outputs = {"mean": mean, "variance": variance}
        outputs = {n: v.reshape(op.statistics_dims) for n, v in outputs.items()}
    dst = _normalized(op, axes, t, mean, variance)
    if getattr(op, "fuse_relu", False):
        dst = dst + t["src1"] if "src1" in t else dst
        outputs["workspace"] = (~(dst <= 0)).double()
        dst = torch.relu(dst)
    return {**outputs, "dst": dst}


def backward_oracle(torch: Any, op: Any, t: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients by torch's differentiation and the chain rule.

    mean = sum(src) / n and variance = sum((src - mean)**2) / n have the slopes 1 / n and
    2 * (src - mean) / n. The slope of the variance with respect to the mean is 0.
    """
    axes = _Axes(op)
    diff = t["diff_dst"]
    if "workspace" in t:
        diff = torch.where(t["workspace"] == 0, torch.zeros_like(diff), diff)
    made = {"scale": torch.ones(op.channels), "shift": torch.zeros(op.channels)}
    made |= {name: t[name] for name in ("src", "mean", "variance", "scale") if name in t}
    made = {name: tensor.double().clone().requires_grad_() for name, tensor in made.items()}
    dst = _normalized(op, axes, made, made.get("mean"), made["variance"])
    slopes = dict(zip(made, torch.autograd.grad(dst, list(made.values()), diff), strict=True))
    with torch.no_grad():
        along = slopes["src"].reshape(axes.dims)
        if not op.use_global_stats:
            off = t["src"].reshape(axes.dims)
            off = off - axes.of_statistic(t["mean"]) if op.has_mean else off
            along = along + axes.of_statistic(slopes["variance"]) * 2 * off / max(1, op.count)
            if op.has_mean:
                along = along + axes.of_statistic(slopes["mean"]) / max(1, op.count)
    return {
        "diff_src": along.reshape(op.source.dims),
        "diff_scale": slopes["scale"],
        "diff_shift": slopes["shift"],
        "diff_src1": diff,
    }
