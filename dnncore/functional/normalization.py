"""Layer, RMS, group and instance normalization.

All functions return scale * (src - mean) / sqrt(variance + epsilon) + shift. A scale of None is 1,
and a shift of None is 0. mean and variance are those of src. variance is the average of
(src - mean)**2, without Bessel's correction.

Layer normalization: J. L. Ba et al. 2016; RMS: B. Zhang and R. Sennrich 2019; groups: Y. Wu and K.
He 2018; instances: D. Ulyanov et al. 2016.
"""

from __future__ import annotations

from typing import Any

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, given
from dnncore.ops import GroupNormalizationForward, LayerNormalizationForward
from dnncore.ops.operation import PropKind

__all__ = ["group_norm", "instance_norm", "layer_norm", "rms_norm", "vectors"]

INFERENCE: PropKind = "forward_inference"


def vectors(operands: dict[str, Operand]) -> dict[str, Any]:
    """Return the descriptors of all inputs but src."""
    return {name: one.desc for name, one in operands.items() if name != "src"}


def _layer(_function: str, operands: dict[str, Operand], epsilon: float, rms: bool) -> Plan:
    x = operands["src"].desc
    op = LayerNormalizationForward(
        INFERENCE, src=x, dst=x, epsilon=epsilon, rms=rms, **vectors(operands)
    )
    return Plan(op)


def layer_norm(
    src: Values,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * (src - mean) / sqrt(variance + epsilon) + shift, along the last dim.

    mean is the average of src along the last dim, and variance that of (src - mean)**2, without
    Bessel's correction. They are not returned; `LayerNormalizationForward` with "forward_training"
    writes them.

    src: of two to five dims, the last of C elements. dst has the same shape.
    scale, shift: (C,), or None, which is 1 or 0.

    >>> layer_norm([[1, 3], [10, 10]], scale=[2, 4], epsilon=3).tolist()
    [[-1.0, 2.0], [0.0, 0.0]]
    """
    values = {"src": src, **given(scale=scale, shift=shift)}
    return call(_layer, "layer_norm", values, engine, epsilon, False)


def rms_norm(
    src: Values,
    scale: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * src / sqrt(average of src**2 + epsilon), with averages along the last dim.

    src: of two to five dims, the last of C elements. dst has the same shape.
    scale: (C,), or None, which is 1.

    >>> rms_norm([[3, 0, 0, 0]], epsilon=0).tolist()
    [[2.0, 0.0, 0.0, 0.0]]
    """
    return call(_layer, "rms_norm", {"src": src, **given(scale=scale)}, engine, epsilon, True)


def _group(_function: str, operands: dict[str, Operand], groups: int, epsilon: float) -> Plan:
    x = operands["src"].desc
    op = GroupNormalizationForward(
        INFERENCE, src=x, dst=x, groups=groups, epsilon=epsilon, **vectors(operands)
    )
    return Plan(op)


def _instance(function: str, operands: dict[str, Operand], epsilon: float) -> Plan:
    x = operands["src"]
    return _group(function, operands, max(1, x.shape[1]) if x.ndim > 1 else 1, epsilon)


def group_norm(
    src: Values,
    groups: int,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * (src - mean) / sqrt(variance + epsilon) + shift, by groups of channels.

    mean is the average of a group of C / groups neighbouring channels of one image, and variance
    that of (src - mean)**2, without Bessel's correction. They are not returned;
    `GroupNormalizationForward` with "forward_training" writes them.

    src: (N, C, [[D,] H,] W). dst has the same shape.
    groups: the number of groups. It divides C.
    scale, shift: (C,), one number per channel, or None, which is 1 or 0.

    >>> group_norm([[[1], [3], [5], [5]]], 2, epsilon=3).tolist()
    [[[-0.5], [0.5], [0.0], [0.0]]]
    """
    values = {"src": src, **given(scale=scale, shift=shift)}
    return call(_group, "group_norm", values, engine, groups, epsilon)


def instance_norm(
    src: Values,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * (src - mean) / sqrt(variance + epsilon) + shift, by channels of each image.

    This is `group_norm` with one group per channel: mean and variance are those of a channel of one
    image. They are not returned; `GroupNormalizationForward` with "forward_training" writes them.
    (`batch_norm_training` has the statistics of channels of the whole batch, and returns them.)

    src: (N, C, [[D,] H,] W). dst has the same shape.
    scale, shift: (C,), one number per channel, or None, which is 1 or 0.

    >>> instance_norm([[[1, 3], [5, 5]]], epsilon=3).tolist()
    [[[-0.5, 0.5], [0.0, 0.0]]]
    """
    values = {"src": src, **given(scale=scale, shift=shift)}
    return call(_instance, "instance_norm", values, engine, epsilon)
