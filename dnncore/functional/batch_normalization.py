"""Batch normalization: `BatchNormalizationForward`, and running statistics.

(S. Ioffe and C. Szegedy 2015, "Batch normalization".)
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.functional.activation import Activation, post_ops
from dnncore.functional.binary import add, mul
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.eltwise import pow as power
from dnncore.functional.kinds import common_kind
from dnncore.functional.normalization import vectors
from dnncore.functional.operands import Operand, Result, Values, brief, given, is_true
from dnncore.ops import BatchNormalizationForward

__all__ = ["TrainedBatch", "batch_norm", "batch_norm_training"]


class TrainedBatch(NamedTuple):
    """The results of `batch_norm_training`.

    dst: the normalized batch.
    mean, variance: the statistics of the batch, which `BatchNormalizationBackward` reads.
    inverse_variance: 1 / sqrt(variance + epsilon), which cuDNN and MIOpen save for the gradient.
    running_mean, running_variance: the new running statistics; None if there were none.
    """

    dst: Result
    mean: Result
    variance: Result
    inverse_variance: Result
    running_mean: Result | None
    running_variance: Result | None


def batch_norm(
    src: Values,
    mean: Values | None = None,
    variance: Values | None = None,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    activation: str | None = None,
    per_activation: bool = False,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * (src - mean) / sqrt(variance + epsilon) + shift, by channels of the batch.

    src: (N, C, [[[D,] H,] W]). dst has the same shape.
    mean, variance: (C,), or both None, which are the averages of src and (src - mean)**2 in each
        channel of the whole batch, without Bessel's correction.
    scale, shift: (C,), or None, which is 1 or 0.
    activation: None or "relu".
    per_activation: whether each element of an image has its own statistics, scale and shift, as in
        the mode PER_ACTIVATION of cuDNN and MIOpen. They then have the dims (C, [[[D,] H,] W]).

    `batch_norm_training` returns the statistics of the batch.

    >>> batch_norm([[1, 10], [3, 10]], epsilon=3).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    >>> batch_norm([[1], [3]], mean=[1], variance=[4], scale=[10], shift=[1], epsilon=0).tolist()
    [[1.0], [11.0]]
    """
    values = {"src": src, **given(mean=mean, variance=variance, scale=scale, shift=shift)}
    return call(_inference, "batch_norm", values, engine, epsilon, activation, per_activation)


def _inference(
    function: str,
    operands: dict[str, Operand],
    epsilon: float,
    activation: object,
    per_activation: bool,
) -> Plan:
    both = [name for name in ("mean", "variance") if name in operands]
    if len(both) == 1:
        raise DescriptorError(
            f"{function}: mean and variance must both be given or both be None; got only {both[0]}"
        )
    if activation is not None and not (isinstance(activation, str) and activation == "relu"):
        raise DescriptorError(
            f"{function}: activation must be None or 'relu'; got {brief(activation)}"
        )
    shape = operands["src"].shape
    operands = _as_channels(function, operands, per_activation)
    x = operands["src"].desc
    op = BatchNormalizationForward(
        "forward_inference",
        src=x,
        dst=x,
        epsilon=epsilon,
        use_global_stats=bool(both),
        fuse_relu=activation == "relu",
        **vectors(operands),
    )
    return Plan(op, shape)


def batch_norm_training(
    src: Values,
    running_mean: Values | None = None,
    running_variance: Values | None = None,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    average_factor: float = 0.1,
    epsilon: float = 1e-5,
    activation: Activation = None,
    per_activation: bool = False,
    engine: EngineLike = None,
) -> TrainedBatch:
    """Normalize a batch by its own statistics, and return them and new running statistics.

    dst, mean and variance are those of `batch_norm` without given statistics. With n elements per
    channel and f = average_factor,

        running_mean     = (1 - f) * running_mean + f * mean
        running_variance = (1 - f) * running_variance + f * variance * n / (n - 1)

    This is the update of cuDNN, MIOpen and torch, whose momentum is f. f = 1 / (1 + batches before)
    makes them averages of all batches. For n = 1, n / (n - 1) is 1, and for n = 0 nothing changes.
    The given arrays are not written.

    src: (N, C, [[[D,] H,] W]). dst has the same shape.
    running_mean, running_variance: (C,), or both None; the new ones are then None, too.
    scale, shift: (C,), or None, which is 1 or 0.
    average_factor: from 0 to 1.
    activation: the name of an eltwise function, or a `PostOp.eltwise`, applied to dst.
    per_activation: as in `batch_norm`.

    Returns a `TrainedBatch`, whose fields are dst, mean, variance, inverse_variance, running_mean
    and running_variance.

    >>> y = batch_norm_training([[1], [3]], [0], [4], average_factor=0.5, epsilon=3)
    >>> y.dst.tolist(), y.mean.tolist(), y.variance.tolist(), y.inverse_variance.tolist()
    ([[-0.5], [0.5]], [2.0], [1.0], [0.5])
    >>> y.running_mean.tolist(), y.running_variance.tolist()
    ([1.0], [3.0])
    """
    function = "batch_norm_training"
    is_number = isinstance(average_factor, Real) and not isinstance(average_factor, bool)
    if not is_number or not 0 <= average_factor <= 1:
        raise DescriptorError(
            f"{function}: average_factor must be a number from 0 to 1; got {brief(average_factor)}"
        )
    if (running_mean is None) != (running_variance is None):
        alone = "running_mean" if running_variance is None else "running_variance"
        raise DescriptorError(
            f"{function}: running_mean and running_variance must both be given or both be None;"
            f" got only {alone}"
        )
    _check_running(function, src, running_mean=running_mean, running_variance=running_variance)
    values = {"src": src, **given(scale=scale, shift=shift)}
    dst, mean, variance = call(
        _training, function, values, engine, epsilon, activation, per_activation
    )
    inverse = power(add(variance, epsilon, engine=engine), -0.5, engine=engine)
    if running_mean is None:
        return TrainedBatch(dst, mean, variance, inverse, None, None)
    n = math.prod(dst.shape) // max(1, math.prod(mean.shape))
    factor = float(average_factor) if n else 0.0
    unbiased = n / (n - 1) if n > 1 else 1.0
    new = []
    rows: tuple[tuple[str, Any, Any, float], ...] = (
        ("running_mean", running_mean, mean, factor),
        ("running_variance", running_variance, variance, factor * unbiased),
    )
    for name, old, own, part in rows:
        if np.shape(old) != mean.shape:
            raise DescriptorError(
                f"{function}: {name} must be of the shape {tuple(mean.shape)} of mean;"
                f" got {np.shape(old)}"
            )
        kept = mul(old, 1 - factor, engine=engine)
        new.append(add(kept, mul(own, part, engine=engine), engine=engine))
    return TrainedBatch(dst, mean, variance, inverse, *new)


def _check_running(function: str, src: Values, **running: Values | None) -> None:
    """Refuse running statistics of another kind than src, and of float64."""
    common_kind(function, {"src": src, **running})
    for name, values in running.items():
        if str(getattr(values, "dtype", "")).endswith("float64"):
            raise DescriptorError(f"{function}: {name} must not be float64; convert it to float32")


def _training(
    function: str,
    operands: dict[str, Operand],
    epsilon: float,
    activation: Activation,
    per_activation: bool,
) -> Plan:
    shape = operands["src"].shape
    operands = _as_channels(function, operands, per_activation)
    x = operands["src"].desc
    op = BatchNormalizationForward(
        "forward_training", src=x, dst=x, epsilon=epsilon, **vectors(operands)
    )
    of_channels = shape[1:] if per_activation else shape[1:2]
    return Plan(
        op,
        shape,
        post_ops(function, activation),
        more={"mean": of_channels, "variance": of_channels},
    )


def _as_channels(
    function: str, operands: dict[str, Operand], per_activation: Any
) -> dict[str, Operand]:
    """Return the operands with one channel per element of an image if `per_activation`."""
    if not is_true(function, "per_activation", per_activation):
        return operands
    x = operands["src"]
    if x.ndim < 2:
        raise DescriptorError(f"{function}: src must have at least 2 dims; got {x.shape}")
    for name, one in operands.items():
        if name != "src" and one.shape != x.shape[1:]:
            raise DescriptorError(
                f"{function}: {name} must be of the shape {x.shape[1:]}, a number per element of an"
                f" image; got {one.shape}"
            )
    size = Operand(x.shape[1:], x.dtype).size
    flat = {name: one.reshape(size) for name, one in operands.items() if name != "src"}
    return {"src": x.reshape(x.shape[0], size), **flat}
