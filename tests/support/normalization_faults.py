"""Faults of batch, layer and group normalization."""

from __future__ import annotations

from unittest import mock

import numpy as np
from dnncore_reference.normalization import Sets
from wrong_formulas import (
    added,
    formula,
    of_inputs,
    of_op,
    of_output,
    ones,
    patched,
    rolled,
    unwritten,
    zeros,
)

from dnncore import backend

FORWARD = tuple(getattr(backend, f"{n}NormalizationForward") for n in ("Batch", "Layer", "Group"))
BACKWARD = tuple(getattr(backend, f"{n}NormalizationBackward") for n in ("Batch", "Layer", "Group"))
BATCH = (FORWARD[:1], BACKWARD[:1])


def biased(values, op, _inputs):
    """The sum of squares is divided by n - 1."""
    return values * op.count / max(1, op.count - 1)


def sample_variance(right, sets, values):
    """Averages of squares are divided by n - 1."""
    average = right(sets, values)
    is_variance = (values >= 0).all()
    return average * sets.count / max(1, sets.count - 1) if is_variance else average


def no_average_but_of_squares(right, sets, values):
    """The mean is 0."""
    average = right(sets, values)
    return average if (values >= 0).all() else 0 * average


def single_pass(right, op, **inputs):
    """The variance is the average of squares less the square of the average, in f32."""
    x = Sets(op).whole(inputs["src"]).astype(np.float32)

    def wrong(self, values):
        total = values.astype(np.float32).sum(self.axes, keepdims=True) / np.float32(self.count)
        if not (values >= 0).all() or op.use_global_stats or not op.has_mean:
            return total
        squares = (x * x).sum(self.axes, keepdims=True) / np.float32(self.count)
        mean = x.sum(self.axes, keepdims=True) / np.float32(self.count)
        return np.maximum(squares - mean * mean, 0)

    with mock.patch.object(Sets, "average", wrong):
        return right(op, **inputs)


def without(place):
    """The gradient lacks one of its averages: that of g * x, or that of g."""

    def wrong(right, op, **inputs):
        calls = []

        def average(self, values):
            calls.append(0)
            return values.sum(self.axes, keepdims=True) / self.count * (len(calls) != place)

        with mock.patch.object(Sets, "average", average):
            return right(op, **inputs)

    return formula(wrong)


def added_after_relu(right, op, **inputs):
    outputs = dict(right(op, **inputs))
    if inputs.get("src1") is not None:
        plain = {name: values for name, values in inputs.items() if name != "src1"}
        outputs["dst"] = right(op, **plain)["dst"] + inputs["src1"]
    return outputs


def exchanged_slopes(right, op, **inputs):
    outputs = dict(right(op, **inputs))
    outputs["diff_scale"], outputs["diff_shift"] = outputs["diff_shift"], outputs["diff_scale"]
    return outputs


def not_last(_right, sets, values):
    """A channel's last element is not added."""
    shape = [sets.dims[a] for a in sets.channel]
    axes = tuple(a for a in range(values.ndim) if a not in sets.channel)
    flat = np.moveaxis(values, axes, range(len(axes))).reshape(-1, *shape)
    return flat[:-1].sum(0).reshape(-1)


FAULTS = {
    "norm_without_epsilon": (FORWARD, "eps|bnorm", of_op(epsilon=0.0)),
    "norm_twice_epsilon": (FORWARD, "", of_op(epsilon=lambda op: 2 * op.epsilon)),
    "norm_sample_variance": (FORWARD, "", patched(Sets, "average", sample_variance)),
    "norm_without_mean": (FORWARD, "", patched(Sets, "average", no_average_but_of_squares)),
    "norm_single_pass": (FORWARD, "", formula(single_pass)),
    "norm_scale_of_neighbour": (FORWARD, "flags=C", of_inputs("scale", rolled(0))),
    "norm_without_scale": (FORWARD, "flags=C", of_inputs("scale", ones)),
    "norm_without_shift": (FORWARD, "flags=.*H", of_inputs("shift", zeros)),
    "norm_own_statistics": (FORWARD, "flags=.*G", of_op(use_global_stats=False)),
    "norm_mean_of_neighbour": (FORWARD, "flags=.*G", of_inputs("mean", rolled(-1))),
    "norm_mean_unwritten": (FORWARD, "", unwritten("mean")),
    "norm_variance_unwritten": (FORWARD, "", unwritten("variance")),
    "norm_last_variance_unwritten": (FORWARD, "", unwritten("variance", np.s_[..., -1:])),
    "norm_biased_variance": (FORWARD, "", of_output("variance", biased)),
    "norm_deviation": (FORWARD, "", of_output("variance", lambda v, _op, _t: np.sqrt(v))),
    "norm_last_channel": (FORWARD, "", unwritten("dst", np.s_[:, -1:])),
    "norm_last_image": (FORWARD, "", unwritten("dst", np.s_[-1:])),
    "norm_added_after_relu": (BATCH[0], "flags=.*A", formula(added_after_relu)),
    "norm_inverse_mask": (BATCH[0], "flags=.*R", of_output("workspace", lambda w, _op, _t: 1 - w)),
    "norm_mask_unwritten": (BATCH[0], "flags=.*R", unwritten("workspace")),
    "norm_back_without_epsilon": (BACKWARD, "", of_op(epsilon=0.0)),
    "norm_back_without_slope_of_variance": (BACKWARD, "", without(1)),
    "norm_back_without_slope_of_mean": (BACKWARD, "", without(2)),
    "norm_back_without_scale": (BACKWARD, "flags=C", of_inputs("scale", ones)),
    "norm_back_other_statistics": (
        BACKWARD, "", of_op(use_global_stats=lambda op: not op.use_global_stats),
    ),
    "norm_back_sets_of_n_less_1": (
        BACKWARD, "",
        patched(Sets, "average", lambda right, s, v: right(s, v) * s.count / max(1, s.count - 1)),
    ),
    "norm_back_ignores_mask": (BATCH[1], "flags=.*R", of_inputs("workspace", ones)),
    "norm_back_mask_of_neighbour": (BATCH[1], "flags=.*R", of_inputs("workspace", rolled(-1))),
    "norm_back_exchanged_slopes": (BACKWARD, "flags=CH", formula(exchanged_slopes)),
    "norm_back_last_element": (BACKWARD, "flags=CH", patched(Sets, "over_channel", not_last)),
    "norm_back_adds_to_scale": (BACKWARD, "flags=CH", added("diff_scale")),
    "norm_back_adds_to_shift": (BACKWARD, "flags=CH", added("diff_shift")),
    "norm_back_adds_to_src": (BACKWARD, "", added("diff_src")),
    "norm_back_src1_unwritten": (BATCH[1], "flags=.*A", unwritten("diff_src1")),
    "norm_back_src1_without_mask": (
        BATCH[1], "flags=.*A", of_output("diff_src1", lambda _v, _op, t: t["diff_dst"]),
    ),
    "norm_back_last_channel": (BACKWARD, "", unwritten("diff_src", np.s_[:, -1:])),
}  # fmt: skip
