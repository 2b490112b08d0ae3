"""Attributes: `--attr-post-ops=relu:0.1+sum:0.5+add:f32:per_oc:axb+prelu:2 --attr-scratchpad=user`.

`--attr-scratchpad-limit=BYTES` removes who needs more scratchpad; without it there is no limit.

A post-op's operand is told by its type, a mask, whose bit d says that dim d is dst's size, not 1,
or the mask's name, and a format. `select` has two: `select:f32.per_oc.axb:per_tensor.abx` has src,
then the condition, of type s8.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from dnncore.attributes import Attributes, FpMath, PostOp, ScratchpadMode
from dnncore.errors import DescriptorError
from dnncore.memory_desc import MemoryDesc
from dnncore.ops.algorithms import BINARY_ALGORITHMS, ELTWISE_ALGORITHMS
from dnncore.problem.settings import (
    Dims,
    Misread,
    Settings,
    misread,
    number_text,
    read_choice,
    read_integer,
    read_number,
)
from dnncore.problem.shapes import mask_of, masked
from dnncore.problem.tensors import format_text, read_desc

__all__ = ["DEFAULTS", "read", "write"]

DEFAULTS: Settings = {
    "attr-post-ops": "",
    "attr-scratchpad": "library",
    "attr-scratchpad-limit": "",
    "attr-deterministic": "false",
    "attr-fpmath": "strict",
}
FLAGS = {"false": False, "true": True, "0": False, "1": True}
MASKS = {"common": 0, "per_oc": 2, "per_dim_0": 1, "per_dim_1": 2, "per_dim_01": 3,
         "per_dim_2": 4, "per_dim_3": 8}  # fmt: skip
CHAIN = "attr-post-ops"


def read(settings: Settings, dims: Dims) -> Attributes:
    """The attributes of an operation whose result has these dims."""
    text = settings[CHAIN]
    steps = re.split(r"\+(?=[a-z])", text) if text else []  # 1e+22 is one number
    return Attributes(
        tuple(_read_step(settings, step, dims) for step in steps),
        scratchpad=_read_word(settings, "attr-scratchpad", ScratchpadMode),
        deterministic=read_choice(settings, "attr-deterministic", FLAGS),
        fpmath=_read_word(settings, "attr-fpmath", FpMath),
        scratchpad_limit=_read_limit(settings),
    )


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
    "sum": ("sum[:SCALE]", 1),
    "eltwise": ("ELTWISE[:ALPHA[:BETA]]", 2),
    "binary": ("BINARY[:TYPE[:MASK[:TAG[:STRIDES]]]]", 4),
    "select": ("select:TYPE[.MASK[.TAG]][:MASK[.TAG]]", 2),
    "prelu": ("prelu[:MASK[:TAG[:STRIDES]]]", 3),
}
KINDS = {
    **dict.fromkeys(ELTWISE_ALGORITHMS, "eltwise"),
    **dict.fromkeys(BINARY_ALGORITHMS, "binary"),
    **{kind: kind for kind in ("sum", "select", "prelu")},
}


def _read_step(settings: Settings, step: str, dims: Dims) -> PostOp:
    name, *parameters = step.removeprefix("eltwise_").removeprefix("binary_").split(":")
    kind = KINDS.get(name, "")
    if not kind or len(parameters) > GRAMMAR[kind][1]:
        known = ", ".join(text for text, _ in GRAMMAR.values())
        misread(settings, CHAIN, f"one of {known} at {step!r}")
    try:
        return _post_op(settings, kind, name, parameters, dims)
    except DescriptorError as error:
        raise Misread(CHAIN, f"at {step!r}: {error}") from None


def _post_op(settings: Settings, kind: str, name: str, parameters: list[str], dims: Dims) -> PostOp:
    if kind in ("sum", "eltwise"):
        numbers = [read_number(settings, CHAIN, text) for text in parameters]
        return PostOp.sum(*numbers) if kind == "sum" else PostOp.eltwise(name, *numbers)
    if kind == "select":
        src, condition = ([*parameters, "", ""])[:2]
        operands = (src.split("."), ["s8", *condition.split(".")])
        return PostOp.binary(name, *(_read_operand(settings, words, dims) for words in operands))
    if kind == "prelu":
        return PostOp.prelu(_read_operand(settings, ["f32", *parameters], dims))
    return PostOp.binary(name, _read_operand(settings, parameters, dims))


def _read_operand(settings: Settings, words: list[str], dims: Dims) -> MemoryDesc:
    """A tensor of TYPE, MASK, TAG, STRIDES; f32, all dims and row-major where they are silent."""
    data_type, mask, tag, strides, *more = [*words, *[""] * (4 - len(words))]
    if more:
        misread(settings, CHAIN, f"a type, a mask, a format and strides at {words}")
    own = masked(settings, CHAIN, _read_mask(settings, mask or "per_tensor", len(dims)), dims)
    layout = "@".join(filter(None, (tag or "abx", strides)))
    return read_desc(settings, CHAIN, own, data_type or "f32", layout)


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
