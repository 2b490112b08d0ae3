"""Inner product: each output is a weighted sum of all features f. A feature is (channel, place).

dst[n, o] = bias[o] + sum over f of src[n, f] * weights[o, f]
diff_src[n, f] = sum over o of diff_dst[n, o] * weights[o, f]
diff_weights[o, f] = sum over n of diff_dst[n, o] * src[n, f]
diff_bias[o] = sum over n of diff_dst[n, o]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
)
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(
    _op: InnerProductForward, src: Array, weights: Array, bias: Array | float = 0.0
) -> dict[str, Array]:
    """Sum over the features of src and weights."""
    features = list(range(1, src.ndim))
    return {"dst": np.tensordot(src, weights, (features, features)) + bias}


def backward_data(
    _op: InnerProductBackwardData, diff_dst: Array, weights: Array
) -> dict[str, Array]:
    """Sum over the output channels."""
    return {"diff_src": np.tensordot(diff_dst, weights, 1)}


def backward_weights(
    _op: InnerProductBackwardWeights, src: Array, diff_dst: Array
) -> dict[str, Array]:
    """Sum over the batch."""
    return {
        "diff_weights": np.tensordot(diff_dst.T, src, 1),
        "diff_bias": diff_dst.sum(axis=0),
    }


FORWARD = (Definition("inner_product", forward),)
BACKWARD_DATA = (Definition("inner_product", backward_data),)
BACKWARD_WEIGHTS = (Definition("inner_product", backward_weights),)
