"""Options of benchdnn that are no field of an operation or of its attributes.

Those that steer benchdnn's own runs are read and ignored. Those that ask for a feature that dnncore
does not have make problems `Unsupported`, unless their value asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dnncore.problem.settings import Settings, misread

__all__ = ["COMMON", "HARNESS", "MATMUL", "REORDER", "feature_name", "missing_features"]

HARNESS = frozenset({
    # how benchdnn measures, compares and prints
    "attr-same-pd-check", "buffer-prefix", "canonical", "check-ref-impl", "cold-cache", "fast-ref",
    "fix-times-per-prb", "max-ms-per-prb", "mem-check", "mode", "mode-modifier", "perf-template",
    "repeats-per-prb", "summary", "verbose",
    # where benchdnn runs; dnncore's commands have --engines
    "engine", "cpu-isa-hints", "ctx-exe", "ctx-init", "execution-mode", "memory-kind",
    "num-streams", "stream-kind",
    # which format tags benchdnn accepts; dnncore accepts all that have a meaning
    "allow-enum-tags-only",
})  # fmt: skip
"""Options that are ignored: they say nothing about what is computed."""


@dataclass(frozen=True)
class _Feature:
    """An option of a feature that dnncore does not have.

    default: its value where the text is silent. values, neutral: regular expressions, of all
    values and of those that ask for nothing.
    """

    name: str
    values: str
    neutral: str = ""
    default: str = ""


_ARGUMENT = r"[a-z_]+[0-9]*"
_WORDS = r"(?::[\w.+-]*)*"
_QUANTIZED = rf"{_ARGUMENT}:\w+{_WORDS}(?:\+{_ARGUMENT}:\w+{_WORDS})*"
_ENCODING = r"[a-z]*(?:\+[0-9.]+)?"

_FEATURES = {
    "attr-scales": _Feature("scales", _QUANTIZED),
    "attr-zero-points": _Feature("zero points", _QUANTIZED),
    "attr-precomputed-reductions": _Feature("precomputed reductions", _QUANTIZED),
    "attr-dropout": _Feature("dropout", rf"[0-9.e+-]+{_WORDS}"),
    "attr-acc-mode": _Feature(
        "accumulation mode", "relaxed|any|f32|f16|s32", "(?:strict)?", "strict"
    ),
    "attr-rounding-mode": _Feature(
        "rounding mode", rf"{_ARGUMENT}:stochastic(?::[0-9]+)?(?:\+.*)?",
        rf"(?:{_ARGUMENT}:environment\+?)*",
    ),
    "encoding": _Feature("sparse encoding", rf"{_ENCODING}(?::{_ENCODING}){{2}}", ":*"),
    "grouped": _Feature("grouped encoding", r"[0-9]+:[0-9]+:[0-9]+(?:\+[0-9]+)*(?::[0-9]+)?"),
    "runtime_dims_masks": _Feature("runtime dims", r"[0-9]+(?::[0-9]+)?", "0*(?::0*)?"),
    "runtime-dim-mask": _Feature("runtime dims", "[0-9]+", "0*"),
    "oflag": _Feature(
        "compensation of weights", r"(?:s8s8|zp)_comp:[0-9]+(?:\+(?:s8s8|zp)_comp:[0-9]+)*"
    ),
    "cross-engine": _Feature(
        "reorder across engines", "(?i:cpu2gpu|gpu2cpu)", "(?i:none)?", "none"
    ),
}  # fmt: skip


def _defaults(*options: str) -> Settings:
    return {option: _FEATURES[option].default for option in options}


COMMON = _defaults(*(option for option in _FEATURES if option.startswith("attr-")))
"""Those of all drivers, with their defaults."""

MATMUL = _defaults("encoding", "grouped", "runtime_dims_masks")
REORDER = _defaults("oflag", "cross-engine", "runtime-dim-mask")


def feature_name(option: str) -> str:
    """What the option of a feature asks for; another option's name stands for itself."""
    return _FEATURES[option].name if option in _FEATURES else option


def missing_features(settings: Settings) -> Iterator[str]:
    """What the settings ask for and dnncore does not have; raises `Misread`."""
    for option, feature in _FEATURES.items():
        text = settings.get(option, feature.default)
        if text == feature.default or re.fullmatch(feature.neutral, text):
            continue
        if not re.fullmatch(feature.values, text):
            misread(settings, option, f"a value of benchdnn's for {feature.name}")
        yield feature.name
