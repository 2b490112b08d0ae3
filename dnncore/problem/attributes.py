"""Attributes: `--attr-post-ops=relu:0.1+sum:0.5+add:f32:per_oc:axb+prelu:2 --attr-scratchpad=user`.

A post-op's operand is told by its type, a mask, whose bit d says that dim d is dst's size, not 1,
or the mask's name, and a format. `select` has two: `select:f32.per_oc.axb:per_tensor.abx` has src,
then the condition, of type s8.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from dnncore.attributes import Attributes, FpMath, PostOp, ScratchpadMode
from dnncore.memory_desc import MemoryDesc
from dnncore.ops.algorithms import BINARY_ALGORITHMS, ELTWISE_ALGORITHMS
from dnncore.problem.settings import (
    Dims,
    Settings,
    misread,
    number_text,
    read_choice,
    read_number,
)
from dnncore.problem.shapes import mask_of, masked
from dnncore.problem.tensors import format_text, read_desc

__all__ = ["DEFAULTS", "read", "write"]

DEFAULTS: Settings = {
    "attr-post-ops": "",
    "attr-scratchpad": "library",
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
    steps = re.split(r"\+(?=[a-z])", text) if text else []  # no + of an exponent, 1e+22
    return Attributes(
        tuple(_read_step(settings, step, dims) for step in steps),
        scratchpad=_read_word(settings, "attr-scratchpad", ScratchpadMode),
        deterministic=read_choice(settings, "attr-deterministic", FLAGS),
        fpmath=_read_word(settings, "attr-fpmath", FpMath),
    )


def _read_word(settings: Settings, setting: str, words: object) -> Any:
    return read_choice(settings, setting, {word: word for word in get_args(words)})


def write(attr: Attributes) -> Settings:
    """The inverse of `read`."""
    return {
        CHAIN: "+".join(map(_step_text, attr.post_ops)),
        "attr-scratchpad": attr.scratchpad,
        "attr-deterministic": str(bool(attr.deterministic)).lower(),
        "attr-fpmath": attr.fpmath,
    }


# -- post-ops --------------------------------------------------------------------------------------


def _read_step(settings: Settings, step: str, dims: Dims) -> PostOp:
    name, *parameters = step.split(":")
    name = name.removeprefix("eltwise_").removeprefix("binary_")
    if name == "sum" and len(parameters) <= 1:
        return PostOp.sum(*_numbers(settings, parameters))
    if name in ELTWISE_ALGORITHMS and len(parameters) <= 2:
        return PostOp.eltwise(name, *_numbers(settings, parameters))
    if name == "select" and 1 <= len(parameters) <= 2:
        src, condition = (*parameters, "")[:2]
        operands = (src.split("."), ["s8", *filter(None, condition.split("."))])
        return PostOp.binary(name, *(_read_operand(settings, words, dims) for words in operands))
    if name in BINARY_ALGORITHMS and name != "select" and len(parameters) <= 3:
        return PostOp.binary(name, _read_operand(settings, parameters, dims))
    if name == "prelu" and len(parameters) <= 2:
        return PostOp.prelu(_read_operand(settings, ["f32", *parameters], dims))
    return misread(settings, CHAIN, f"{EXPECTED} at {step!r}")


EXPECTED = (
    "sum[:SCALE], ELTWISE[:ALPHA[:BETA]], BINARY[:TYPE[:MASK[:FORMAT]]], prelu[:MASK[:FORMAT]]"
    " or select:TYPE[.MASK[.FORMAT]][:MASK[.FORMAT]]"
)


def _numbers(settings: Settings, parameters: list[str]) -> list[float]:
    return [read_number(settings, CHAIN, text) for text in parameters]


def _read_operand(settings: Settings, words: list[str], dims: Dims) -> MemoryDesc:
    """A tensor of a type, a mask and a format; f32, all dims, row-major where they are left out."""
    if len(words) > 3:
        misread(settings, CHAIN, f"a type, a mask and a format at {words}")
    data_type, mask, tag = (*words, *("f32", "per_tensor", "abx")[len(words) :])
    own = masked(settings, CHAIN, _read_mask(settings, mask, len(dims)), dims)
    return read_desc(settings, CHAIN, own, data_type, tag)


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
        return f"{step.algorithm}:{number_text(step.alpha)}:{number_text(step.beta)}"
    if step.src2 is not None:
        assert step.src is not None
        condition = _operand_text(step.src2, ".")
        return f"select:{step.src.data_type}.{_operand_text(step.src, '.')}:{condition}"
    ((_, desc),) = step.operands
    operand = _operand_text(desc, ":")
    return (
        f"prelu:{operand}"
        if step.kind == "prelu"
        else (f"{step.algorithm}:{desc.data_type}:{operand}")
    )


def _operand_text(desc: MemoryDesc, separator: str) -> str:
    return f"{mask_of(desc.dims)}{separator}{format_text(desc)}"
