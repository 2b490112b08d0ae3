"""Quantization as text: `--attr-scales=src:common+wei:per_oc:f16 --attr-zero-points=wei:3:s8:32x1`.

A tensor (src, src0, src1, wei or dst), a mask, then the type of the values and, for the last two
dims, the sizes of groups. A mask is a number or one of benchdnn's words. benchdnn's value of a
single scale or zero point is read and has no effect: the values are arguments, which checks draw.

`--attr-dropout=PROBABILITY[:SEED[:TAG[:OFFSET]]]`: only three things have an effect: whether there
is a tag (`undef` for none), whether there is an offset, and the type `s32` in place of the seed.
`--attr-rounding-mode=dst:stochastic`, whose seed has no effect either. `dnncore check` and `dnncore
impls` mention values without effect.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

from dnncore.attributes import Accumulation, Attributes
from dnncore.errors import DescriptorError
from dnncore.ops import Binary, ConvolutionForward, DeconvolutionForward, MatMul, Operation
from dnncore.ops.sources import Sources
from dnncore.problem.settings import (
    Misread,
    Settings,
    Unsupported,
    misread,
    read_choice,
    read_number,
)
from dnncore.quantization import Dropout, Quantization, Scales, ZeroPoints
from dnncore.tensors.datatypes import DATA_TYPES

__all__ = ["DEFAULTS", "has_values", "read", "write"]

DEFAULTS: Settings = {
    "attr-scales": "",
    "attr-zero-points": "",
    "attr-acc-mode": "strict",
    "attr-dropout": "",
    "attr-rounding-mode": "",
}
Kind = TypeVar("Kind", bound=Quantization)
NAMES = {"wei": "weights"}
DYNAMIC = ("mx", "dynamic_fp")
SYNTAX = "ARG:MASK[:TYPE[:GROUPS]]"


def read(settings: Settings, op: Operation) -> dict[str, Any]:
    """The attributes by field. Raises `Misread` and `Unsupported`."""
    text = {name: settings[name] or default for name, default in DEFAULTS.items()}
    modes = {mode: mode for mode in get_args(Accumulation)}
    return {
        "scales": _read_all(text, "attr-scales", Scales, op),
        "zero_points": _read_all(text, "attr-zero-points", ZeroPoints, op),
        "accumulation": read_choice(text, "attr-acc-mode", modes),
        "dropout": _read_dropout(text),
        "rounding": _read_rounding(text, op),
    }


def _read_all(settings: Settings, option: str, kind: type[Kind], op: Operation) -> dict[str, Kind]:
    parts = settings[option].split("+") if settings[option] else []
    return dict(_read_one(settings, option, part, kind, op) for part in parts)


def _read_one(
    settings: Settings, option: str, part: str, kind: type[Kind], op: Operation
) -> tuple[str, Kind]:
    word, *rest = part.lower().split(":")
    if not rest or len(rest) > 4:
        misread(settings, option, f"{SYNTAX} at {part!r}")
    has_several = isinstance(op, Binary | Sources)
    name = NAMES.get(word, "src" if word == "src0" and not has_several else word)
    name = name.removeprefix("m") if isinstance(op, Sources) else name  # benchdnn's msrc0
    if not re.fullmatch("src[0-9]*|weights|dst|msrc[0-9]+", name):
        misread(settings, option, f"src, src1, wei or dst at {part!r}")
    mask = _mask(settings, option, rest[0], name, op)
    words = rest[1:]
    if words and _is_number(words[0]):  # the value of a single scale
        if mask:
            misread(settings, option, f"no value beside a mask at {part!r}")
        words = words[1:]
    own, groups, *more = [*words, "", ""]
    if any(more[:-2]) or (groups and not re.fullmatch("[0-9]{1,9}x[0-9]{1,9}", groups)):
        misread(settings, option, f"{SYNTAX} at {part!r}")
    if own and own not in DATA_TYPES:
        misread(settings, option, f"a data type at {part!r}")
    if own and own not in kind.TYPES:
        raise Unsupported([f"{kind.NAME.replace('_', ' ')} of data type {own}"])
    try:
        return name, kind(mask, tuple(map(int, groups.split("x"))) if groups else (), own)
    except DescriptorError as error:
        raise Misread(option, f"at {part!r}: {error}") from None


def _mask(settings: Settings, option: str, word: str, name: str, op: Operation) -> int:
    desc = getattr(op, name, None)
    ndims = desc.ndims if desc is not None else 0
    if re.fullmatch("[0-9]{1,4}", word):
        return int(word)
    if word in DYNAMIC:
        raise Unsupported(["scales that are computed"])
    named = {"common": 0, "host_scalar": 0, "per_dim_01": 3, "per_tensor": (1 << ndims) - 1}
    named |= {f"per_dim_{d}": 1 << d for d in range(4)}
    named |= {"per_oc": 2, "per_ocic": 3}
    windows = (ConvolutionForward, DeconvolutionForward)
    if name == "weights" and isinstance(op, windows) and ndims > op.src.ndims:
        named |= {"per_oc": 3, "per_ocic": 6}
    elif name == "weights" and not isinstance(op, MatMul):
        named["per_oc"] = 1
    elif isinstance(op, MatMul):
        ends = 3 << ndims >> 2
        named |= {"per_ocic": ends} | ({"per_oc": 1 << ndims >> 1} if name == "weights" else {})
    if word not in named:
        misread(settings, option, f"a mask, a number or one of {', '.join(named)}, at {word!r}")
    return named[word]


def has_values(option: str, text: str) -> bool:
    """Whether a text of benchdnn contains values of arguments, which have no effect."""
    parts = [part.split(":") for part in text.split("+")]
    if option in ("attr-scales", "attr-zero-points"):
        return any(len(words) > 2 and _is_number(words[2]) for words in parts)
    if option == "attr-rounding-mode":
        return any(len(words) > 2 for words in parts)
    probability, seed, *_ = [*parts[0], ""]
    return option == "attr-dropout" and (probability != "0.5" or seed not in ("", "0", "s32"))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?\*?", text) is not None


def _read_dropout(settings: Settings) -> Dropout | None:
    option = "attr-dropout"
    if not settings[option]:
        return None
    probability, seed, tag, offset, *_ = [*settings[option].split(":"), "", "", ""]
    if not 0.0 <= read_number(settings, option, probability) <= 1.0:
        misread(settings, option, "a probability from 0 to 1")
    return Dropout(
        seed_type="s32" if seed == "s32" else "s64",
        has_offset=offset not in ("", "0"),
        has_mask=tag != "undef",
    )


def _read_rounding(settings: Settings, op: Operation) -> str:
    option = "attr-rounding-mode"
    parts = [part.split(":") for part in settings[option].split("+") if part]
    for words in parts:
        if len(words) not in (2, 3) or words[1] not in ("environment", "stochastic"):
            misread(settings, option, "ARG:environment or ARG:stochastic")
        if words[1] == "stochastic" and words[0] != op.result_name:
            raise Unsupported([f"stochastic rounding of {words[0]}"])
    return "stochastic" if any(words[1] == "stochastic" for words in parts) else "environment"


def write(attr: Attributes) -> dict[str, str]:
    """The inverse of `read`, without the rounding, whose text names the output."""
    return {
        "attr-scales": _text(attr.scales),
        "attr-zero-points": _text(attr.zero_points),
        "attr-acc-mode": attr.accumulation,
        "attr-dropout": _dropout_text(attr.dropout),
    }


def _text(given: Any) -> str:
    words = {"weights": "wei"}
    return "+".join(f"{words.get(name, name)}:{_one_text(own)}" for name, own in given.items())


def _one_text(own: Quantization) -> str:
    groups = "x".join(map(str, own.groups))
    if groups:
        return f"{own.mask}:{own.data_type}:{groups}"
    return str(own.mask) + (f":{own.data_type}" if own.data_type != own.TYPES[0] else "")


def _dropout_text(dropout: Dropout | None) -> str:
    if dropout is None:
        return ""
    seed = "s32" if dropout.seed_type == "s32" else "0"
    tag = "any" if dropout.has_mask else "undef"
    text = f"0.5:{seed}:{tag}:{int(dropout.has_offset)}"
    return text.removesuffix(":0").removesuffix(":any").removesuffix(":0")
