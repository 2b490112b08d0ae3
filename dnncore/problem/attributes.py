"""Attributes: `--attr-post-ops=relu:0.1+sum:0.5+add:f32:per_oc:axb+prelu:2 --attr-scratchpad=user`.

`--attr-scratchpad-limit=BYTES` removes who needs more scratchpad; without it there is no limit.

A post-op's operand has a type, a mask and a format. Bit d of the mask says that dim d is dst's
size, not 1; a mask may have a name, and without one the operand is a single value. `select` has two
operands, src, then the condition, which is of type s8 and by default of dst's size:
`select:f32.per_oc.axb:per_tensor.abx`.

The zero point and the type of a sum and a convolution (`dw:k3s1p1`) are features that dnncore does
not have. The scale of an eltwise step, its third number, concerns integers alone, as does `true` in
`--attr-fpmath=bf16:true`; both are read and have no effect.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, get_args

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.attributes import Attributes, FpMath, PostOp, ScratchpadMode
from dnncore.errors import DescriptorError
from dnncore.problem.settings import (
    Dims,
    Misread,
    Settings,
    Unsupported,
    misread,
    number_text,
    read_choice,
    read_integer,
    read_number,
)
from dnncore.problem.shapes import mask_of, masked
from dnncore.problem.tensors import format_text, read_desc, read_type
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DEFAULTS", "FLAGS", "read", "write"]

DEFAULTS: Settings = {
    "attr-post-ops": "",
    "attr-scratchpad": "library",
    "attr-scratchpad-limit": "",
    "attr-deterministic": "false",
    "attr-fpmath": "strict",
}
FLAGS = {"false": False, "true": True, "0": False, "1": True}
MASKS = {"common": 0, "per_oc": 2, "per_ocic": 3, "per_dim_0": 1, "per_dim_1": 2, "per_dim_01": 3,
         "per_dim_2": 4, "per_dim_3": 8}  # fmt: skip
CHAIN = "attr-post-ops"


def read(settings: Settings, dst: MemoryDesc) -> Attributes:
    """The attributes of an operation whose result is `dst`.

    Raises `Unsupported` for post-ops that dnncore does not have.
    """
    return _read(tuple(settings[name] for name in DEFAULTS), dst)


@lru_cache(maxsize=1024)  # most problems of a list share attributes and dims
def _read(texts: tuple[str, ...], dst: MemoryDesc) -> Attributes:
    pairs = zip(DEFAULTS.items(), texts, strict=True)
    settings = {name: text or default for (name, default), text in pairs}
    text = settings[CHAIN]
    steps = re.split(r"\+(?=[A-Za-z])", text) if text else []  # 1e+22 is one number
    return Attributes(
        tuple(_read_step(settings, step, dst) for step in steps),
        scratchpad=_read_word(settings, "attr-scratchpad", ScratchpadMode),
        deterministic=read_choice(settings, "attr-deterministic", FLAGS),
        fpmath=_read_fpmath(settings),
        scratchpad_limit=_read_limit(settings),
    )


def _read_fpmath(settings: Settings) -> Any:
    """MODE[:APPLY_TO_INT]; the flag is of integer types, with which no operation computes."""
    mode, _, flag = settings["attr-fpmath"].partition(":")
    if (flag or "false").lower() not in FLAGS:
        misread(settings, "attr-fpmath", "true or false behind the mode")
    return _read_word({"attr-fpmath": mode}, "attr-fpmath", FpMath)


def _read_limit(settings: Settings) -> int | None:
    limit = "attr-scratchpad-limit"
    return read_integer(settings, limit) if settings[limit] else None


def _read_word(settings: Settings, setting: str, words: object) -> Any:
    return read_choice(settings, setting, {word: word for word in get_args(words)})


def write(attr: Attributes) -> Settings:
    """The inverse of `read`."""
    limit = attr.scratchpad_limit
    return {
        CHAIN: "+".join(map(_step_text, attr.post_ops)),
        "attr-scratchpad": attr.scratchpad,
        "attr-deterministic": str(bool(attr.deterministic)).lower(),
        "attr-fpmath": attr.fpmath,
        "attr-scratchpad-limit": "" if limit is None else str(limit),
    }


# -- post-ops --------------------------------------------------------------------------------------

# kind of step -> how it is written, the most parameters that it takes
GRAMMAR = {
    "sum": ("sum[:SCALE[:ZERO_POINT[:TYPE]]]", 3),
    "eltwise": ("ELTWISE[:ALPHA[:BETA[:SCALE]]]", 3),
    "dw": ("dw:kKsSpP[:TYPE]", 2),
    "binary": ("BINARY[:TYPE[:MASK[:TAG[:STRIDES]]]]", 4),
    "select": ("select:TYPE[.MASK[.TAG]][:MASK[.TAG]]", 2),
    "prelu": ("prelu[:MASK[:TAG[:STRIDES]]]", 3),
}
KINDS = {
    **dict.fromkeys(ELTWISE, "eltwise"),
    **dict.fromkeys(BINARY, "binary"),
    **{kind: kind for kind in ("sum", "select", "prelu", "dw")},
}


def _read_step(settings: Settings, step: str, dst: MemoryDesc) -> PostOp:
    word, *parameters = step.split(":")
    name = word.lower().removeprefix("eltwise_").removeprefix("binary_")
    kind = KINDS.get(name, "")
    if not kind or len(parameters) > GRAMMAR[kind][1]:
        known = ", ".join(text for text, _ in GRAMMAR.values())
        misread(settings, CHAIN, f"one of {known} at {step!r}")
    try:
        return _post_op(settings, kind, name, parameters, dst)
    except Unsupported:
        raise
    except DescriptorError as error:
        raise Misread(CHAIN, f"at {step!r}: {error}") from None


def _post_op(
    settings: Settings, kind: str, name: str, parameters: list[str], dst: MemoryDesc
) -> PostOp:
    dims = dst.dims
    if kind == "sum":
        return _sum(settings, parameters, dst)
    if kind == "eltwise":
        numbers = [read_number(settings, CHAIN, text) for text in parameters]
        return PostOp.eltwise(name, *numbers[:2])
    if kind == "dw":
        if not re.fullmatch("k[0-9]+s[0-9]+p[0-9]+", ":".join(parameters[:1])):
            misread(settings, CHAIN, f"{GRAMMAR['dw'][0]} at {':'.join([name, *parameters])!r}")
        raise Unsupported(["depthwise post-op"])
    if kind == "select":
        src, condition = ([*parameters, "", ""])[:2]
        mask, *rest = condition.split(".")
        operands = (src.split("."), ["s8", mask or "per_tensor", *rest])
        return PostOp.binary(name, *(_read_operand(settings, words, dims) for words in operands))
    if kind == "prelu":
        return PostOp.prelu(_read_operand(settings, ["f32", *parameters], dims))
    return PostOp.binary(name, _read_operand(settings, parameters, dims))


def _sum(settings: Settings, parameters: list[str], dst: MemoryDesc) -> PostOp:
    """A sum; a zero point and a type that is not dst's are features that do not exist."""
    silent = ["1", "0", dst.data_type]
    scale, zero_point, data_type = parameters + silent[len(parameters) :]
    missing = []
    if read_number(settings, CHAIN, zero_point):
        missing.append("zero point of a sum")
    if data_type != dst.data_type:
        read_type(settings, CHAIN, data_type)
        missing.append(f"sum of data type {data_type}")
    if missing:
        raise Unsupported(missing)
    return PostOp.sum(read_number(settings, CHAIN, scale))


def _read_operand(settings: Settings, words: list[str], dims: Dims) -> MemoryDesc:
    """A tensor of TYPE, MASK, TAG, STRIDES; f32, one value and row-major where they are silent."""
    data_type, mask, tag, strides, *more = [*words, *[""] * (4 - len(words))]
    if more:
        misread(settings, CHAIN, f"a type, a mask, a format and strides at {words}")
    if tag == "grouped":
        raise Unsupported(["grouped encoding"])
    own = masked(settings, CHAIN, _read_mask(settings, mask or "common", len(dims)), dims)
    layout = "@".join(filter(None, ("abx" if tag in ("", "any") else tag, strides)))
    return read_desc(settings, CHAIN, own, read_type(settings, CHAIN, data_type or "f32"), layout)


def _read_mask(settings: Settings, text: str, ndims: int) -> int:
    named = {"per_tensor": (1 << ndims) - 1, **MASKS}
    if text in named:
        return named[text]
    if not re.fullmatch("[0-9]{1,4}", text):
        misread(settings, CHAIN, f"a mask, a number or one of {', '.join(named)}, at {text!r}")
    return int(text)


def _step_text(step: PostOp) -> str:
    if step.kind == "sum":
        return "sum" if step.scale == 1 else f"sum:{number_text(step.scale)}"
    if step.kind == "eltwise":
        numbers = f":{number_text(step.alpha)}:{number_text(step.beta)}"
        return step.algorithm + numbers.removesuffix(":0").removesuffix(":0")
    (first, *others) = (desc for _, desc in step.operands)
    if step.kind == "prelu":
        return f"prelu:{_operand_text(first, ':')}"
    if others:
        src, condition = (_operand_text(desc, ".") for desc in (first, *others))
        return f"select:{first.data_type}.{src}:{condition}"
    return f"{step.algorithm}:{first.data_type}:{_operand_text(first, ':')}"


def _operand_text(desc: MemoryDesc, separator: str) -> str:
    return f"{mask_of(desc.dims)}{separator}{format_text(desc)}".removesuffix(f"{separator}abx")
