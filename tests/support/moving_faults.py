"""Faults of concat, shuffle and resampling."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from dnncore_reference import quantization, resampling, shuffle
from wrong_formulas import added, formula, of_output, patched, unwritten

from dnncore import backend

CONCAT = (backend.Concat,)
SHUFFLE, SHUFFLE_BACK = (backend.ShuffleForward,), (backend.ShuffleBackward,)
NEAREST = "^(?!.*linear)"  # the default, which texts omit
RESIZE, RESIZE_BACK = (backend.ResamplingForward,), (backend.ResamplingBackward,)


def reversed_sources(_right, op, **srcs):
    return {"dst": np.concatenate([srcs[n] for n in reversed(op.source_names)], op.axis)}


def first_source_twice(_right, op, **srcs):
    """Each source of the first one's size is the first one."""
    first = srcs["src0"]
    same = [first if srcs[n].shape == first.shape else srcs[n] for n in op.source_names]
    return {"dst": np.concatenate(same, op.axis)}


def one_scale(right, op, attr, name, values, given):
    """Every source has the scale of src1, or none."""
    scales = {f"{own}_scales": given["src1_scales"] for own in op.source_names
              if "src1_scales" in given}  # fmt: skip
    return right(op, attr, "src1" if scales else name, values, {**given, **scales})


def other_rows(right, values, axis, columns):
    """The matrix has exchanged sizes."""
    return right(values, axis, values.shape[axis] // columns if values.size else columns)


def positions(place, clamp=True, floor=math.floor):
    """Terms of resampling with another place(o, inputs, outputs) in src."""

    def wrong(_right, algorithm, inputs, outputs):
        for o in range(outputs):
            x = place(o, inputs, outputs)
            if algorithm == "nearest":
                yield o, min(max(floor(x + Fraction(1, 2)), 0), inputs - 1), 1.0
                continue
            low = math.floor(x)
            for i, weight in ((low, 1 - (x - low)), (low + 1, x - low)):
                if weight and (clamp or 0 <= i < inputs):
                    yield o, min(max(i, 0), inputs - 1), float(weight)

    return patched(resampling, "_terms", wrong)


def centres(o, inputs, outputs):
    return (o + Fraction(1, 2)) * inputs / outputs - Fraction(1, 2)


def corners(o, inputs, outputs):
    return Fraction(o * (inputs - 1), max(1, outputs - 1))


def starts(o, inputs, outputs):
    return Fraction(o * inputs, outputs)


def exchanged_weights(right, algorithm, inputs, outputs):
    """Each of both neighbours has the weight of the other one."""
    terms = {}
    for o, i, weight in right(algorithm, inputs, outputs):
        terms.setdefault(o, []).append((i, weight))
    for o, pairs in terms.items():
        for (i, _), (_, weight) in zip(pairs, reversed(pairs), strict=True):
            yield o, i, weight


def last_term_alone(right, algorithm, inputs, outputs):
    """The gradient of an element is overwritten by its last term."""
    last = {i: (o, i, weight) for o, i, weight in right(algorithm, inputs, outputs)}
    yield from last.values()


FAULTS = {
    "concat_reversed": (CONCAT, "", formula(reversed_sources)),
    "concat_first_twice": (CONCAT, "", formula(first_source_twice)),
    "concat_shifted": (CONCAT, "", of_output("dst", lambda v, op, _t: np.roll(v, 1, op.axis))),
    "concat_last_row": (CONCAT, "", unwritten("dst", np.s_[-1:])),
    "concat_one_scale": (CONCAT, "scales", patched(quantization, "dequantized", one_scale)),
    "shuffle_exchanged_sizes": (
        SHUFFLE + SHUFFLE_BACK, "", patched(shuffle, "_transposed", other_rows),
    ),
    "shuffle_identity": (
        SHUFFLE + SHUFFLE_BACK, "", patched(shuffle, "_transposed", lambda _r, v, *_a: v),
    ),
    "shuffle_last_channel": (SHUFFLE, "", unwritten("dst", np.s_[:, -1:])),
    "resize_corners": (RESIZE + RESIZE_BACK, "linear", positions(corners)),
    "resize_starts": (RESIZE + RESIZE_BACK, "linear", positions(starts)),
    "resize_nearest_of_starts": (RESIZE, NEAREST, positions(starts)),
    "resize_ties_down": (
        RESIZE, NEAREST, positions(centres, floor=lambda x: math.ceil(x) - 1),
    ),
    "resize_without_edges": (RESIZE + RESIZE_BACK, "linear", positions(centres, clamp=False)),
    "resize_exchanged_weights": (
        RESIZE + RESIZE_BACK, "linear", patched(resampling, "_terms", exchanged_weights),
    ),
    "resize_last_row": (RESIZE, "", unwritten("dst", np.s_[..., -1:])),
    "resize_overwrites": (RESIZE_BACK, "", patched(resampling, "_terms", last_term_alone)),
    "resize_adds": (RESIZE_BACK, "", added("diff_src")),
}  # fmt: skip
