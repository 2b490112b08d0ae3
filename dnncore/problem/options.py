"""Options of benchdnn without a field in an operation or its attributes.

Options that control benchdnn's own runs are read and ignored. Options for features that dnncore
does not have make problems `Unsupported`, unless their value has no effect. The masks of runtime
dims, `--runtime_dims_masks` and `--runtime-dim-mask`, have none, because a problem has all dims.
`DynamicPrimitive` executes operations whose dims are known late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dnncore.problem.settings import Settings, misread

__all__ = ["COMMON", "HARNESS", "MATMUL", "MISSING_DRIVERS", "REORDER", "RNN", "SDPA",
           "feature_name", "missing_features"]  # fmt: skip

MISSING_DRIVERS = {
    "brgemm": "brgemm", "graph": "graph",
    "self": "self", "zeropad": "zero_pad",
}  # fmt: skip
"""Drivers that only benchdnn has -> their primitives in verbose lines."""

HARNESS = frozenset({
    # benchdnn's measuring, comparing and printing
    "attr-same-pd-check", "buffer-prefix", "canonical", "check-ref-impl", "cold-cache", "fast-ref",
    "fix-times-per-prb", "max-ms-per-prb", "mem-check", "mode", "mode-modifier", "perf-template",
    "repeats-per-prb", "summary", "verbose",
    # benchdnn's engines; dnncore's commands have --engines
    "engine", "cpu-isa-hints", "ctx-exe", "ctx-init", "execution-mode", "memory-kind",
    "num-streams", "stream-kind",
    # benchdnn's valid format tags; dnncore accepts all tags with a meaning
    "allow-enum-tags-only",
})  # fmt: skip
"""Ignored options, which do not change the computation."""


@dataclass(frozen=True)
class _Feature:
    """A feature that dnncore does not have.

    values: a regular expression for all valid values of its option.
    neutral: a regular expression for values without effect.
    default: the default value.
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
    "attr-precomputed-reductions": _Feature("precomputed reductions", _QUANTIZED),
    "encoding": _Feature("sparse encoding", rf"{_ENCODING}(?::{_ENCODING}){{2}}", ":*"),
    "grouped": _Feature("grouped encoding", r"[0-9]+:[0-9]+:[0-9]+(?:\+[0-9]+)*(?::[0-9]+)?"),
    "runtime_dims_masks": _Feature("runtime dims", *[r"[0-9]*(?::[0-9]*)?"] * 2),
    "runtime-dim-mask": _Feature("runtime dims", *["[0-9]*"] * 2),
    "oflag": _Feature(
        "compensation of weights", r"(?:s8s8|zp)_comp:[0-9]+(?:\+(?:s8s8|zp)_comp:[0-9]+)*"
    ),
    "scale_type": _Feature("scale as a tensor", "none|mul|div", "none", "none"),
    "kv_head_number": _Feature("kv_head_number", "[0-9]+", "0", "0"),
    "scaling": _Feature("cells of integers", *[r"(?:common|per_oc)?(?::[0-9.]+)?"] * 2),
    "scaling-proj": _Feature("cells of integers", *[r"(?:common|per_oc)?(?::[0-9.]+)?"] * 2),
    "skip-nonlinear": _Feature(
        "cells without nonlinear functions", "(?i:true|false)", "(?i:false)", "false"
    ),
    "trivial-strides": _Feature(
        "trivial strides", "(?i:true|false)", "(?i:true|false)", "false"
    ),
    "cross-engine": _Feature(
        "reorder across engines", "(?i:cpu2gpu|gpu2cpu)", "(?i:none)?", "none"
    ),
}  # fmt: skip


def _defaults(*options: str) -> Settings:
    return {option: _FEATURES[option].default for option in options}


COMMON = _defaults(*(option for option in _FEATURES if option.startswith("attr-")))
"""Options that all drivers have, with their defaults."""

MATMUL = _defaults("encoding", "grouped", "runtime_dims_masks")
SDPA = _defaults("scale_type", "kv_head_number")
RNN = {"cfg": "", "tag": "", "l": "0", "t": "0", "flags": "",
       **_defaults("scaling", "scaling-proj", "skip-nonlinear", "trivial-strides")}  # fmt: skip
REORDER = _defaults("oflag", "cross-engine", "runtime-dim-mask")


def feature_name(option: str) -> str:
    """Return the feature of an option; for other options, the option itself."""
    return _FEATURES[option].name if option in _FEATURES else option


def missing_features(settings: Settings) -> Iterator[str]:
    """Return the features in the settings that dnncore lacks. Raises `Misread`."""
    for option, feature in _FEATURES.items():
        text = settings.get(option, feature.default)
        if text == feature.default or re.fullmatch(feature.neutral, text):
            continue
        if not re.fullmatch(feature.values, text):
            misread(settings, option, f"a value of benchdnn's for {feature.name}")
        yield feature.name
