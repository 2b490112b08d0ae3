"""Attributes: `--attr-post-ops=relu:0.1+sum:0.5+add:f32:per_oc:axb+prelu:2 --attr-scratchpad=user`.

A post-op's operand is told by a mask, whose bit d says that dim d is dst's size, not 1, or by the
mask's name, and a format. `select` has two: `select:f32.per_oc.axb:per_tensor`.
"""

from __future__ import annotations

from typing import get_args

from dnncore.attributes import Attributes, FpMath, PostOp
from dnncore.memory_desc import MemoryDesc
from dnncore.ops.algorithms import (
    BINARY_ALGORITHMS,
    ELTWISE_ALGORITHMS,
)
from dnncore.problem.settings import (
    Settings,
    format_text,
    misread,
    number_text,
    read_choice,
    read_desc,
)

__all__ = ["DEFAULTS", "read", "write"]

DEFAULTS: Settings = {
    "attr-post-ops": "",
    "attr-scratchpad": "library",
    "attr-deterministic": "false",
    "attr-fpmath": "strict",
}
FLAGS = {"false": False, "true": True, "0": False, "1": True}


def read(settings: Settings, dims: tuple[int, ...]) -> Attributes:
    """The attributes of an operation whose result has these dims."""
    text = settings["attr-post-ops"]
    chain = [_read_step(settings, step, dims) for step in text.split("+")] if text else []
    return Attributes(
        tuple(chain),
        scratchpad=read_choice(settings, "attr-scratchpad", {"library": "library", "user": "user"}),
        deterministic=read_choice(settings, "attr-deterministic", FLAGS),
        fpmath=read_choice(settings, "attr-fpmath", {word: word for word in get_args(FpMath)}),
    )


def _read_step(settings: Settings, step: str, dims: tuple[int, ...]) -> PostOp:
    word, *parameters = step.split(":")
    try:
        if word == "sum":
            return PostOp.sum(*map(float, parameters))
        if word in ELTWISE_ALGORITHMS:
            return PostOp.eltwise(word, *map(float, parameters))
    except (TypeError, ValueError):
        misread(settings, "attr-post-ops", f"{word} with numbers between colons")
    if word in BINARY_ALGORITHMS:
        return PostOp.binary(word, *_read_operands(settings, parameters, dims))
    if word != "prelu":
        misread(settings, "attr-post-ops", "sum, prelu, or an eltwise or binary algorithm")
    (weights,) = _read_operands(settings, ["f32", *parameters], dims)
    return PostOp.prelu(weights)


def _read_operands(
    settings: Settings, parameters: list[str], dims: tuple[int, ...]
) -> list[MemoryDesc]:
    data_type, mask, tag = (*parameters, *("f32", "per_tensor", "abx")[len(parameters) :])
    kept = _mask(settings, mask, len(dims))
    own = tuple(n if kept >> d & 1 else 1 for d, n in enumerate(dims))
    return [read_desc(settings, "attr-post-ops", own, data_type, tag)]


def _mask(settings: Settings, text: str, ndims: int) -> int:
    named = {"common": 0, "per_tensor": (1 << ndims) - 1, "per_oc": 2, "per_dim_0": 1,
             "per_dim_1": 2, "per_dim_01": 3, "per_dim_2": 4, "per_dim_3": 8}  # fmt: skip
    if text.isdecimal():
        return int(text)
    if text not in named:
        misread(settings, "attr-post-ops", f"a mask, a number or one of {', '.join(named)}")
    return named[text]


def write(attr: Attributes) -> Settings:
    """The inverse of `read`."""
    return {
        "attr-post-ops": "+".join(map(_step_text, attr.post_ops)),
        "attr-scratchpad": attr.scratchpad,
        "attr-deterministic": str(attr.deterministic).lower(),
        "attr-fpmath": attr.fpmath,
    }


def _step_text(step: PostOp) -> str:
    if step.kind == "sum":
        return "sum" if step.scale == 1 else f"sum:{number_text(step.scale)}"
    if step.kind == "eltwise":
        numbers = [number_text(step.alpha), number_text(step.beta)]
        while numbers and numbers[-1] == "0":
            numbers.pop()
        return ":".join([step.algorithm, *numbers])
    ((_, desc), *_rest) = step.operands
    mask = sum(1 << d for d, n in enumerate(desc.dims) if n != 1)
    return f"{step.algorithm or step.kind}:{desc.data_type}:{mask}:{format_text(desc)}"
