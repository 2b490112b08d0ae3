"""The parts of problem text and verbose lines that all normalizations share.

Flags: G statistics are inputs, C scale, H shift, M no mean, R fused relu, A fused sum and relu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnncore.algorithms.rounding import Array
from dnncore.ops import Operation
from dnncore.ops.normalization import Normalization, NormalizationBackward
from dnncore.problem.directions import Direction, Directions
from dnncore.problem.settings import Dims, Settings, misread, number_text, read_choice
from dnncore.problem.tensors import ONE_TAG, read_tensors, write_tensors
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DEFAULTS", "EPSILON", "EPSILONS", "FLAGS", "NORM_DIRECTIONS", "directions", "flags_of",
           "read_normalization", "settings_of", "smooth", "words"]  # fmt: skip

EPSILON = 1 / 16  # benchdnn's default
DEFAULTS = {
    "dir": "FWD_D", "dt": "f32", **ONE_TAG, "stat_tag": "abx", "ss_tag": "abx", "flags": "",
    "mb": "0", "inplace": "false",
}  # fmt: skip
FLAGS = ("", "CH", "G", "GCH", "C", "H", "GC")
"""Flags of random problems that all operations have."""
NORM_DIRECTIONS = ("FWD_D", "FWD_I", "BWD_D", "BWD_DW")
EPSILONS = (number_text(EPSILON), "1", "1e-05", "0.1", "4")


def directions(forward: type[Operation], backward: type[Operation]) -> Directions:
    """Return the directions. BWD_DW computes all gradients, and BWD_D only that of src."""
    weights = ("diff_scale", "diff_shift")
    return {
        "FWD_D": Direction(forward, "forward_training"),
        "FWD_I": Direction(forward, "forward_inference"),
        "BWD_D": Direction(backward, absent=weights),
        "BWD_DW": Direction(backward),
    }


def _absent(flags: str, direction: Direction) -> set[str]:
    """Return the tensors that an operation with these flags does not have."""
    absent = {"workspace", *direction.absent}
    lacking = {
        "C": ("scale", "diff_scale"), "H": ("shift", "diff_shift"), "A": ("src1", "diff_src1"),
    }  # fmt: skip
    for letter, names in lacking.items():
        absent |= set(names) if letter not in flags else set()
    if direction.prop_kind == "forward_inference" and "G" not in flags:
        absent |= {"mean", "variance"}
    return absent | ({"mean"} if "M" in flags else set())


def read_normalization(
    settings: Settings,
    choices: Directions,
    allowed: str,
    src: Dims,
    statistics: Dims,
    channels: int,
    **fields: Any,
) -> Operation:
    """Return the operation of the options.

    allowed: the letters of flags that the operation has.
    src, statistics, channels: the dims of src and of mean, and the number of elements of scale.
    fields: further fields of the operation.
    """
    settings = {**settings, "dir": settings["dir"].upper()}
    if settings["stat_tag"] in ("any", "undef"):  # benchdnn's words for the usual format
        settings["stat_tag"] = "abx"
    source, by, result = settings["tag"].partition(":")
    if by:  # of src and dst, as benchdnn has it
        own = {"stag": settings["stag"] or source, "dtag": settings["dtag"] or result}
        settings |= {"tag": source, **own}
    direction: Direction = read_choice(settings, "dir", choices)
    flags = settings["flags"].upper()
    if set(flags) - set(allowed):
        misread(settings, "flags", f"letters among {allowed}")
    absent = _absent(flags, direction)
    names = [row.name for row in direction.kind.ARGUMENTS if row.name not in absent]
    small: dict[str, Dims] = {"mean": statistics, "variance": statistics}
    small |= dict.fromkeys(("scale", "shift", "diff_scale", "diff_shift"), (channels,))
    tensors = read_tensors(settings, {name: small.get(name, src) for name in names})
    if direction.prop_kind:
        fields["prop_kind"] = direction.prop_kind
    if "R" in allowed:
        fields["fuse_relu"] = "R" in flags or "A" in flags
    if "M" in allowed:
        fields["rms"] = "M" in flags
    kind: Any = direction.kind
    operation: Operation = kind(**tensors, use_global_stats="G" in flags, **fields)
    return operation


def settings_of(op: Normalization, choices: Directions, defaults: Settings) -> Settings:
    """Return the settings of direction, tensors and flags."""
    return {
        "dir": _direction(op, choices),
        **write_tensors(op, defaults),
        "flags": flags_of(op),
    }


def _direction(op: Normalization, choices: Directions) -> str:
    if isinstance(op, NormalizationBackward):
        return "BWD_D" if op.diff_scale is None and op.diff_shift is None else "BWD_DW"
    prop_kind = vars(op)["prop_kind"]
    return next(word for word, row in choices.items() if row.prop_kind == prop_kind)


def flags_of(op: Normalization) -> str:
    """Return the letters of an operation's flags."""
    fields = vars(op)

    def has(*names: str) -> bool:
        return any(isinstance(fields.get(name), MemoryDesc) for name in names)

    letters = {
        "G": op.use_global_stats,
        "C": has("scale"),
        "H": has("shift", "diff_shift"),
        "M": not op.has_mean,
        "R": fields.get("fuse_relu", False) and not has("src1", "diff_src1"),
        "A": has("src1", "diff_src1"),
    }
    return "".join(letter for letter, present in letters.items() if present)


def words(op: Normalization) -> Iterator[str]:
    """Yield the auxiliary words of a verbose line that oneDNN's lines lack."""
    yield f"flags:{flags_of(op)}"


def smooth(op: Any, src: Array) -> Array | None:
    """Return src, where the slope may be measured; None behind a relu, which has a kink."""
    return None if getattr(op, "fuse_relu", False) else src
