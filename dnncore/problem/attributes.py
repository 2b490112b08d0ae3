"""Attributes: `--attr-post-ops=relu:0.1+sum:0.5+add:f32:per_oc:axb+prelu:2 --attr-scratchpad=user`.

`--attr-scratchpad-limit=BYTES` removes implementations that need more scratchpad. The default is no
limit.

The operand of a post-op has a type, a mask and a format. If bit d of the mask is set, dim d has the
size of dst's dim d, else 1. A mask may be a name. Without a mask the operand is a single value.
`select` has two operands: src, then the condition. The condition has type s8 and by default the
size of dst: `select:f32.per_oc.axb:per_tensor.abx`.

`dw:k3s1p1:f32` is a depthwise convolution after a 1x1 convolution: the sizes of kernel, stride and
padding, and the type of dst. Further words are the format of its weights and the type of its bias,
or `undef` for none. Its weights have the type of the convolution's dst. The options of dst describe
the result between both; operands of later steps have the dims after the step.

dnncore does not have a sum that reads dst as another type. The third number of an eltwise step is a
scale for integers, and `true` in `--attr-fpmath=bf16:true` also applies to integers. Both are read
and have no effect.

`dnncore.problem.quantization` reads scales, zero points, dropout and rounding;
`dnncore.problem.rnn_quantization` the numbers of recurrent cells of integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.attributes import Attributes, FpMath, ScratchpadMode
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.ops.depthwise import stored
from dnncore.post_op import PostOp
from dnncore.problem import quantization, rnn_quantization
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
from dnncore.tensors.datatypes import data_type as row_of
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DEFAULTS", "FLAGS", "read", "write"]

DEFAULTS: Settings = {
    "attr-post-ops": "",
    "attr-scratchpad": "library",
    "attr-scratchpad-limit": "",
    "attr-deterministic": "false",
    "attr-fpmath": "strict",
    **quantization.DEFAULTS,
    **rnn_quantization.DEFAULTS,
}
FLAGS = {"false": False, "true": True, "0": False, "1": True}
MASKS = {"common": 0, "per_oc": 2, "per_ocic": 3, "per_dim_0": 1, "per_dim_1": 2, "per_dim_01": 3,
         "per_dim_2": 4, "per_dim_3": 8}  # fmt: skip
CHAIN = "attr-post-ops"


def read(settings: Settings, op: Operation) -> Attributes:
    """Return the attributes of an operation.

    Raises `Unsupported` for post-ops and quantization that dnncore lacks.
    """
    attr = _read(tuple(settings[name] for name in DEFAULTS), op.result)
    for part in (quantization, rnn_quantization):
        if any(settings[name] not in ("", default) for name, default in part.DEFAULTS.items()):
            attr = replace(attr, **part.read(settings, op))
    return attr


@lru_cache(maxsize=1024)  # most problems of a list share attributes and dims
def _read(texts: tuple[str, ...], dst: MemoryDesc) -> Attributes:
    pairs = zip(DEFAULTS.items(), texts, strict=True)
    settings = {name: text or default for (name, default), text in pairs}
    text = settings[CHAIN]
    steps = re.split(r"\+(?=[A-Za-z])", text) if text else []  # 1e+22 is one number
    chain = []
    for step in steps:
        chain.append(_read_step(settings, step, dst))
        dst = stored(chain[-1], dst) if chain[-1].kind == "depthwise" else dst
    return Attributes(
        tuple(chain),
        scratchpad=_read_word(settings, "attr-scratchpad", ScratchpadMode),
        deterministic=read_choice(settings, "attr-deterministic", FLAGS),
        fpmath=_read_fpmath(settings),
        scratchpad_limit=_read_limit(settings),
    )


def _read_fpmath(settings: Settings) -> Any:
    """Read MODE[:APPLY_TO_INT]. The flag has no effect: integer weights are always decompressed."""
    mode, _, flag = settings["attr-fpmath"].partition(":")
    if (flag or "false").lower() not in FLAGS:
        misread(settings, "attr-fpmath", "true or false after the mode")
    return _read_word({"attr-fpmath": mode}, "attr-fpmath", FpMath)


def _read_limit(settings: Settings) -> int | None:
    limit = "attr-scratchpad-limit"
    return read_integer(settings, limit) if settings[limit] else None


def _read_word(settings: Settings, setting: str, words: object) -> Any:
    return read_choice(settings, setting, {word: word for word in get_args(words)})


def write(attr: Attributes, result_name: str = "dst") -> Settings:
    """Return the text of attributes: the inverse of `read`.

    result_name: the name of the operation's first output.
    """
    limit = attr.scratchpad_limit
    return {
        CHAIN: "+".join(map(_step_text, attr.post_ops)),
        "attr-scratchpad": attr.scratchpad,
        "attr-deterministic": str(bool(attr.deterministic)).lower(),
        "attr-fpmath": attr.fpmath,
        "attr-scratchpad-limit": "" if limit is None else str(limit),
        "attr-rounding-mode": f"{result_name}:stochastic" if attr.rounding == "stochastic" else "",
        **quantization.write(attr),
        **rnn_quantization.write(attr),
    }


# -- post-ops --------------------------------------------------------------------------------------

# kind of step -> (its syntax, the largest number of parameters)
GRAMMAR = {
    "sum": ("sum[:SCALE[:ZERO_POINT[:TYPE]]]", 3),
    "eltwise": ("ELTWISE[:ALPHA[:BETA[:SCALE]]]", 3),
    "dw": ("dw:kKsSpP[:TYPE[:TAG[:BIAS_TYPE]]]", 4),
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
        return _depthwise(settings, parameters, dst)
    if kind == "select":
        src, condition = ([*parameters, "", ""])[:2]
        mask, *rest = condition.split(".")
        operands = (src.split("."), ["s8", mask or "per_tensor", *rest])
        return PostOp.binary(name, *(_read_operand(settings, words, dims) for words in operands))
    if kind == "prelu":
        return PostOp.prelu(_read_operand(settings, ["f32", *parameters], dims))
    return PostOp.binary(name, _read_operand(settings, parameters, dims))


def _depthwise(settings: Settings, parameters: list[str], dst: MemoryDesc) -> PostOp:
    sizes, data_type, tag, bias, *_ = [*parameters, *[""] * 4]
    match = re.fullmatch("k([0-9]{1,9})s([0-9]{1,9})p([0-9]{1,9})", sizes)
    if not match or dst.ndims < 3:
        misread(settings, CHAIN, f"{GRAMMAR['dw'][0]} at {':'.join(['dw', *parameters])!r}")
    kernel, stride, padding = map(int, match.groups())
    channels = dst.dims[1]
    dims = (channels, 1, 1, *[kernel] * (dst.ndims - 2))
    kind = read_type(settings, CHAIN, bias or "f32") if bias != "undef" else None
    own = read_type(settings, CHAIN, data_type or "f32")
    if not row_of(own).is_float or not row_of(dst.data_type).is_float:
        raise Unsupported(["depthwise post-op of integers"])
    return PostOp.depthwise(
        read_desc(settings, CHAIN, dims, dst.data_type, tag or "abx"),
        None if kind is None else MemoryDesc((channels,), kind),
        dst_type=own,
        stride=stride,
        padding=padding,
    )


def depthwise_text(step: PostOp) -> str:
    """Return the text of a depthwise convolution without the default values at the end."""
    assert step.weights is not None
    words = [
        f"dw:k{step.weights.dims[3]}s{step.stride}p{step.padding}",
        step.dst_type,
        format_text(step.weights),
        "undef" if step.bias is None else step.bias.data_type,
    ]
    silent = ["", "f32", "abx", "f32"]
    while words[-1] == silent[len(words) - 1]:
        words.pop()
    return ":".join(words)


def _sum(settings: Settings, parameters: list[str], dst: MemoryDesc) -> PostOp:
    """Return a sum. Raises `Unsupported` for another type than dst's."""
    silent = ["1", "0", dst.data_type]
    scale, zero_point, data_type = parameters + silent[len(parameters) :]
    if data_type != dst.data_type:
        read_type(settings, CHAIN, data_type)
        raise Unsupported([f"sum of data type {data_type}"])
    if not re.fullmatch("[+-]?[0-9]{1,10}", zero_point):
        misread(settings, CHAIN, f"a whole number as the zero point of a sum at {zero_point!r}")
    return PostOp.sum(read_number(settings, CHAIN, scale), int(zero_point))


def _read_operand(settings: Settings, words: list[str], dims: Dims) -> MemoryDesc:
    """Return the tensor of TYPE, MASK, TAG, STRIDES.

    Defaults: f32, a single value, row-major.
    """
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
        return sum_text(step, number_text)
    if step.kind == "eltwise":
        numbers = f":{number_text(step.alpha)}:{number_text(step.beta)}"
        return step.algorithm + numbers.removesuffix(":0").removesuffix(":0")
    if step.kind == "depthwise":
        return depthwise_text(step)
    (first, *others) = (desc for _, desc in step.operands)
    if step.kind == "prelu":
        return f"prelu:{_operand_text(first, ':')}"
    if others:
        src, condition = (_operand_text(desc, ".") for desc in (first, *others))
        return f"select:{first.data_type}.{src}:{condition}"
    return f"{step.algorithm}:{first.data_type}:{_operand_text(first, ':')}"


def sum_text(step: PostOp, number: Callable[[float], str]) -> str:
    """Return the text of a sum without the default values. number: converts the scale to text."""
    zero_point = f":{step.zero_point}" if step.zero_point else ""
    scale = f":{number(step.scale)}" if zero_point or step.scale != 1 else ""
    return f"sum{scale}{zero_point}"


def _operand_text(desc: MemoryDesc, separator: str) -> str:
    return f"{mask_of(desc.dims)}{separator}{format_text(desc)}".removesuffix(f"{separator}abx")
