"""Faults of deconvolution, PReLU, and of a convolution with the post-op depthwise."""

from __future__ import annotations

import numpy as np
from dnncore_reference import post_ops
from wrong_formulas import (
    added,
    formula,
    of_inputs,
    of_output,
    ones,
    patched,
    rolled,
    unwritten,
    zeros,
)

from dnncore import backend

DECONVOLUTION = backend.DeconvolutionForward
DECONVOLUTIONS = (
    DECONVOLUTION, backend.DeconvolutionBackwardData, backend.DeconvolutionBackwardWeights
)  # fmt: skip
OF_DATA, OF_WEIGHTS = DECONVOLUTIONS[1:]
FUSED = (backend.ConvolutionForward,)
PRELU, PRELU_BACK = (backend.PReLUForward,), (backend.PReLUBackward,)


def mirrored(values):
    """The taps of weights in reverse order."""
    return values[(..., *[np.s_[::-1]] * (values.ndim - 2 - (values.ndim > 4)))]


def without_last(values):
    """The last image is 0."""
    return np.concatenate([values[:-1], 0 * values[-1:]])


def by_maximum(_right, _op, src, weights):
    """Wrong for weights above 1."""
    return {"dst": np.maximum(src, weights * src)}


def slope_of_one_at_0(_right, op, src, weights, diff_dst):
    products = np.where(src > 0, 0.0, src * diff_dst)
    return {
        "diff_src": np.where(src >= 0, diff_dst, weights * diff_dst),
        "diff_weights": products.sum(op.shared_dims, keepdims=True),
    }


def all_products(value, op, t):
    products = t["src"] * t["diff_dst"]
    return products.sum(op.shared_dims, keepdims=True)


def mean(value, op, _t):
    return value * op.weights.nelems / max(1, op.src.nelems)


def mirrored_depthwise(right, step, x, weights, bias=None):
    return right(step, x, mirrored(weights), bias)


def without_bias(right, step, x, weights, _bias=None):
    return right(step, x, weights)


def bare_edges(right, step, x, *operands):
    """The first row of the result lacks the padding, as if x had another row of its own."""
    padded = x.copy()
    padded[..., -1] = 0
    return right(step, padded, *operands)


def next_channel(right, step, x, weights, bias=None):
    return right(step, x, np.roll(weights, 1, 0), bias)


def ended(right, chain, x, *others, **named):
    """The steps after the depthwise one are left out."""
    kinds = [step.kind for step in chain]
    kept = chain[: kinds.index("depthwise") + 1] if "depthwise" in kinds else chain
    return right(kept, x, *others, **named)


FAULTS = {
    "deconv_mirrored": (DECONVOLUTIONS[:2], "", of_inputs("weights", mirrored)),
    "deconv_without_bias": ((DECONVOLUTION,), "", of_inputs("bias", zeros)),
    "deconv_bias_of_neighbour": ((DECONVOLUTION,), "", of_inputs("bias", rolled(0))),
    "deconv_channels_of_neighbour": (DECONVOLUTIONS[:2], "", of_inputs("weights", rolled(-3))),
    "deconv_last_row": ((DECONVOLUTION,), "", unwritten("dst", np.s_[..., -1:])),
    "deconv_back_last_row": ((OF_DATA,), "", unwritten("diff_src", np.s_[..., -1:])),
    "deconv_adds_to_src": ((OF_DATA,), "", added("diff_src")),
    "deconv_mirrored_slopes": (
        (OF_WEIGHTS,), "", of_output("diff_weights", lambda v, _op, _t: mirrored(v)),
    ),
    "deconv_adds_to_weights": ((OF_WEIGHTS,), "", added("diff_weights")),
    "deconv_adds_to_bias": ((OF_WEIGHTS,), "BWD_WB", added("diff_bias")),
    "deconv_last_image": ((OF_WEIGHTS,), "mb2", of_inputs("src", without_last)),
    "depthwise_mirrored": (FUSED, "dw:", patched(post_ops, "_depthwise", mirrored_depthwise)),
    "depthwise_without_bias": (FUSED, "dw:", patched(post_ops, "_depthwise", without_bias)),
    "depthwise_edge": (FUSED, "dw:", patched(post_ops, "_depthwise", bare_edges)),
    "depthwise_next_channel": (FUSED, "dw:", patched(post_ops, "_depthwise", next_channel)),
    "depthwise_ends_chain": (FUSED, "dw:", patched(post_ops, "apply", ended)),
    "prelu_by_maximum": (PRELU, "", formula(by_maximum)),
    "prelu_of_neighbour": (PRELU + PRELU_BACK, "17", of_inputs("weights", rolled(1))),
    "prelu_absolute": (PRELU, "", of_inputs("weights", np.abs)),
    "prelu_plain_relu": (PRELU, "", of_inputs("weights", zeros)),
    "prelu_last_channel": (PRELU, "", unwritten("dst", np.s_[:, -1:])),
    "prelu_back_at_0": (PRELU_BACK, "", formula(slope_of_one_at_0)),
    "prelu_back_without_weights": (PRELU_BACK, "", of_inputs("weights", ones)),
    "prelu_back_all_products": (PRELU_BACK, "", of_output("diff_weights", all_products)),
    "prelu_back_mean": (PRELU_BACK, "", of_output("diff_weights", mean)),
    "prelu_back_adds": (PRELU_BACK, "", added("diff_weights")),
    "prelu_back_last_weight": (PRELU_BACK, "17", unwritten("diff_weights", np.s_[:, -1:])),
}  # fmt: skip
