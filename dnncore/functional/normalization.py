"""Batch, layer, RMS, group and instance normalization.

All functions return scale * (src - mean) / sqrt(variance + epsilon) + shift. A scale of None is 1,
and a shift of None is 0. mean and variance are those of src, unless they are given. variance is the
average of (src - mean)**2, without Bessel's correction.
"""

from __future__ import annotations

from typing import Any

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values
from dnncore.ops import (
    BatchNormalizationForward,
    GroupNormalizationForward,
    LayerNormalizationForward,
)
from dnncore.ops.operation import PropKind
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

INFERENCE: PropKind = "forward_inference"


def _present(**values: Values | None) -> dict[str, Any]:
    """Return the inputs that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _vectors(operands: dict[str, Operand]) -> dict[str, Any]:
    """Return the descriptors of all inputs but src."""
    return {name: one.desc for name, one in operands.items() if name != "src"}


def _batch(
    function: str, operands: dict[str, Operand], epsilon: float, activation: str | None
) -> Plan:
    x: MemoryDesc = operands["src"].desc
    given = [name for name in ("mean", "variance") if name in operands]
    if len(given) == 1:
        raise DescriptorError(
            f"{function}: mean and variance must both be given or both be None; got only {given[0]}"
        )
    if activation not in (None, "relu"):
        raise DescriptorError(f"{function}: activation must be None or 'relu'; got {activation!r}")
    op = BatchNormalizationForward(
        INFERENCE,
        src=x,
        dst=x,
        epsilon=epsilon,
        use_global_stats=bool(given),
        fuse_relu=activation == "relu",
        **_vectors(operands),
    )
    return Plan(op)


def batch_norm(
    src: Values,
    mean: Values | None = None,
    variance: Values | None = None,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    activation: str | None = None,
    engine: EngineLike = None,
) -> Result:
    """Normalize each channel of a batch.

    src and dst are (N, C, [[[D,] H,] W]); all other inputs are (C). Without mean and variance,
    those of the batch are used. activation is None or "relu". Statistics per element of
    (C, H, W), as in cuDNN's mode PER_ACTIVATION, are those of src.reshape(N, C * H * W).

    >>> batch_norm([[1, 10], [3, 10]], epsilon=3).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    >>> batch_norm([[1], [3]], mean=[1], variance=[4], scale=[10], shift=[1], epsilon=0).tolist()
    [[1.0], [11.0]]
    """
    values = _present(src=src, mean=mean, variance=variance, scale=scale, shift=shift)
    return call(_batch, "batch_norm", values, engine, epsilon, activation)


def _layer(_function: str, operands: dict[str, Operand], epsilon: float, rms: bool) -> Plan:
    x = operands["src"].desc
    op = LayerNormalizationForward(
        INFERENCE, src=x, dst=x, epsilon=epsilon, rms=rms, **_vectors(operands)
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
    """Normalize along the last dim. src and dst have two to five dims; scale and shift have one.

    >>> layer_norm([[1, 3], [10, 10]], scale=[2, 4], epsilon=3).tolist()
    [[-1.0, 2.0], [0.0, 0.0]]
    """
    return call(_layer, "layer_norm", _present(src=src, scale=scale, shift=shift), engine,
                epsilon, False)  # fmt: skip


def rms_norm(
    src: Values,
    scale: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """dst = scale * src / sqrt(average of src**2 + epsilon), with averages along the last dim.

    >>> rms_norm([[3, 0, 0, 0]], epsilon=0).tolist()
    [[2.0, 0.0, 0.0, 0.0]]
    """
    return call(_layer, "rms_norm", _present(src=src, scale=scale), engine, epsilon, True)


def _group(
    _function: str, operands: dict[str, Operand], groups: int | None, epsilon: float
) -> Plan:
    x = operands["src"].desc
    count = (max(1, x.dims[1]) if x.ndims > 1 else 1) if groups is None else groups
    op = GroupNormalizationForward(
        INFERENCE, src=x, dst=x, groups=count, epsilon=epsilon, **_vectors(operands)
    )
    return Plan(op)


def group_norm(
    src: Values,
    groups: int,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """Normalize each group of channels of each image.

    src and dst are (N, C, [[D,] H,] W); scale and shift are (C). groups divides C.

    >>> group_norm([[[1], [3], [5], [5]]], 2, epsilon=3).tolist()
    [[[-0.5], [0.5], [0.0], [0.0]]]
    """
    values = _present(src=src, scale=scale, shift=shift)
    return call(_group, "group_norm", values, engine, groups, epsilon)


def instance_norm(
    src: Values,
    scale: Values | None = None,
    shift: Values | None = None,
    *,
    epsilon: float = 1e-5,
    engine: EngineLike = None,
) -> Result:
    """Normalize each channel of each image: `group_norm` with a group per channel.

    >>> instance_norm([[[1, 3], [5, 5]]], epsilon=3).tolist()
    [[[-0.5, 0.5], [0.0, 0.0]]]
    """
    values = _present(src=src, scale=scale, shift=shift)
    return call(_group, "instance_norm", values, engine, None, epsilon)
