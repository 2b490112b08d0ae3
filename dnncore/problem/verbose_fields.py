"""The fields of a verbose line about a primitive, as in oneDNN.

    convolution      forward_training
    src:f32:a:blocked:acdb::f0 wei:f32:a:blocked:cdba::f0 bia:undef::undef::: dst:f32:p:blocked:...
    attr-post-ops:sum:0.5+eltwise_relu      alg:convolution_direct      mb2_ic3oc8_ih5oh5kh3sh1...

oneDNN's lines do not contain all properties of a problem. If a missing property is not at its
default, the auxiliary field contains it after oneDNN's words: `offsets:0:505`, elements before each
tensor in turn; `scales` of sums; `alpha` and `k` of LRN; `prh` and `prw`, odd paddings at the end.
The list of memory descriptors contains the output if its layout differs from that of the input
whose descriptor oneDNN prints for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from dnncore import ops
from dnncore.attributes import Attributes
from dnncore.ops import Operation
from dnncore.ops.normalization import NormalizationBackward
from dnncore.ops.operation import FORWARD
from dnncore.post_op import PostOp
from dnncore.problem import attributes, quantization, rnn_quantization
from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.drivers.driver import VerboseLine
from dnncore.problem.drivers.lrn import NUMBERS
from dnncore.problem.drivers.normalization import EPSILON
from dnncore.problem.settings import six_digits
from dnncore.problem.shapes import dims_text, mask_of
from dnncore.problem.tensors import format_text
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["KINDS", "OPERATIONS", "Fields", "Row", "kind_of", "prop_kinds_of", "rows_of",
           "write"]  # fmt: skip


DEFAULT_NUMBERS = {**NUMBERS, "eps": EPSILON}


@dataclass(frozen=True)
class Fields:
    """The fields of a line in their order, without the implementation, which follows the kind."""

    kind: str
    prop_kind: str
    memory_descriptors: str
    attributes: str
    auxiliary: str
    problem_desc: str

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of all fields in order."""
        return tuple(getattr(self, field.name) for field in fields(self))


# -- operations -----------------------------------------------------------------------------------


def kind_of(operation: type[Operation]) -> str:
    """Return oneDNN's name of a primitive: `inner_product`, also for gradients."""
    return operation.KIND.removesuffix(" backward").replace(" ", "_")


OPERATIONS = [operation for driver in DRIVERS.values() for operation in driver.operations]
KINDS = {kind_of(driver.operations[0]): driver for driver in DRIVERS.values()}


def prop_kinds_of(operation: type[Operation]) -> tuple[str, ...]:
    """Return the possible prop kinds in a line about an operation of this type."""
    name = operation.__name__
    if name.endswith("Forward"):
        return FORWARD
    if name.endswith("BackwardWeights"):
        return ("backward_weights",)
    if "Backward" not in name:
        return ("undef",)
    return ("backward_data", "backward") if _has_gradients(operation) else ("backward_data",)


def _has_gradients(operation: type[Operation]) -> bool:
    """Whether a gradient has outputs of several inputs, such as src and scale."""
    rows = operation.ARGUMENTS
    return sum(row.direction == "out" for row in rows) > 1


def _prop_kind(op: Operation) -> str:
    """Return the prop kind in a line: `backward` if several gradients are computed."""
    if isinstance(op, NormalizationBackward):
        return "backward_data" if op.diff_scale is op.diff_shift is None else "backward"
    if isinstance(op, ops.PReLUBackward | ops.RNNBackward):
        return "backward"
    return str(getattr(op, "prop_kind", prop_kinds_of(type(op))[0]))


@dataclass(frozen=True)
class Row:
    """One tensor of a line. It is listed only if it differs from the argument `twin`."""

    word: str
    argument: str
    twin: str = ""
    is_optional: bool = False


def _line(op: Operation) -> VerboseLine:
    """Return the line of the driver; a plain one for an operation without a driver."""
    driver = KINDS.get(kind_of(type(op)))
    return driver.verbose if driver else VerboseLine()


def rows_of(op: Operation) -> Iterator[Row]:
    """Return all tensors that a line about the operation may list."""
    listed = _line(op).tensors.get(type(op))
    if listed is None:
        for row, _ in op.tensors():
            yield Row(row.name.rstrip("0123456789"), row.name)
        return
    for text in listed.split():
        name, _, argument = text.partition(":")
        word, _, twin = name.partition("=")
        bare = word.removesuffix("?")
        optional = bare != word or bool(twin)
        yield Row(bare, argument if ":" in text else bare, twin, optional)


# -- writing ---------------------------------------------------------------------------------------


def write(
    op: Operation, attr: Attributes, workspace: MemoryDesc | None = None, asked: Any = None
) -> Fields:
    """Return the fields of a line about an operation.

    asked: the operation before its `any` formats were resolved. The line marks these formats.
    """
    tensors = list(_present(op, workspace))
    line = _line(op)
    problem, letters = _problem(line, _shape(op))
    auxiliary = line.auxiliary.format(**{name: _shown(v) for name, v in vars(op).items()})
    offsets = _offsets([desc for _, desc in tensors])
    return Fields(
        kind_of(type(op)),
        _prop_kind(op),
        " ".join(_desc_text(op, row, desc, asked or op) for row, desc in tensors),
        " ".join(_attributes(attr, op.result_name)),
        " ".join(filter(None, [auxiliary, *letters, *line.words(op), *offsets])),
        problem,
    )


def _shape(op: Operation) -> str:
    """Return the shape in the problem text; for an operation without a driver, all dims."""
    tensors = op.tensors()
    if type(op) not in OPERATIONS:
        return dims_text(*(desc.dims for _, desc in tensors))
    opaque = {row.name: desc for row, desc in tensors if desc.format_kind == "opaque"}
    plain = op.with_descs(**{name: desc.with_format("any") for name, desc in opaque.items()})
    return driver_of(type(op)).write(plain)["shape"]


def _shown(value: Any) -> str:
    return six_digits(value) if isinstance(value, float) else str(value)


def _present(
    op: Operation, workspace: MemoryDesc | None
) -> Iterator[tuple[Row, MemoryDesc | None]]:
    """Return the rows of a line and their descriptors, which are None for absent tensors."""
    for row in rows_of(op):
        desc = getattr(op, row.argument, None) if row.argument != "workspace" else workspace
        left_out = desc == getattr(op, row.twin) if row.twin else desc is None
        if not (row.is_optional and left_out):
            yield row, desc


def _desc_text(op: Operation, row: Row, desc: MemoryDesc | None, asked: Any) -> str:
    """Return WORD:TYPE:MARKS:KIND:TAG:STRIDES:FLAGS.

    Marks: a for `any`, p for padding, 0 for offset0.
    """
    if desc is None:
        return f"{row.word}:undef::undef:::"
    before = getattr(asked, row.argument, None)
    marks = "a" if before is not None and before.is_any else ""
    marks += "p" * desc.has_padding + "0" * bool(desc.offset0)
    strides = "x".join(map(str, desc.strides)) if desc.tag is None else ""
    flags = "f0"
    if isinstance(op, ops.MatMul) and row.word == "bia":
        flags = f"f0_mask{mask_of(desc.dims)}"
    tag = desc.order_tag.replace(":", "/")  # opaque formats contain colons
    return f"{row.word}:{desc.data_type}:{marks}:{desc.format_kind}:{tag}:{strides}:{flags}"


def _problem(line: VerboseLine, shape: str) -> tuple[str, list[str]]:
    """Return the shape in oneDNN's spelling, and words for the letters that oneDNN lacks."""
    pattern = rf"(?<![a-z])({line.letters})(-?[0-9][0-9.e-]*)"
    words = [
        f"{name}:{number}"
        for name, number in re.findall(pattern, shape)
        if float(number) != DEFAULT_NUMBERS.get(name)
    ]
    return re.sub(pattern, "", shape).replace(*line.spelling), words


def _offsets(descs: list[MemoryDesc | None]) -> Iterator[str]:
    """Return offset0 of each tensor, if any is not 0; oneDNN does not print it."""
    offsets = [desc.offset0 if desc is not None else 0 for desc in descs]
    if any(offsets):
        yield "offsets:" + ":".join(map(str, offsets))


def _attributes(attr: Attributes, result_name: str) -> Iterator[str]:
    written = attributes.write(attr, result_name)
    for option, default in {**quantization.DEFAULTS, **rnn_quantization.DEFAULTS}.items():
        if written[option] != default:
            yield f"{option}:{written[option]}"
    if attr.scratchpad != "library":
        yield f"attr-scratchpad:{attr.scratchpad}"
    if attr.scratchpad_limit is not None:
        yield f"attr-scratchpad-limit:{attr.scratchpad_limit}"
    if attr.fpmath != "strict":
        yield f"attr-fpmath:{attr.fpmath}"
    if attr.deterministic:
        yield "attr-deterministic:1"
    if attr.post_ops:
        yield "attr-post-ops:" + "+".join(map(_step, attr.post_ops))


def _step(step: PostOp) -> str:
    if step.kind == "sum":
        return attributes.sum_text(step, six_digits)
    if step.kind == "eltwise":
        numbers = [step.alpha, step.beta] if step.beta else [step.alpha] if step.alpha else []
        return ":".join([f"eltwise_{step.algorithm}", *map(six_digits, numbers)])
    if step.kind == "depthwise":
        return attributes.depthwise_text(step)
    if step.algorithm == "select":
        return "binary_" + attributes.write(Attributes((step,)))["attr-post-ops"]
    ((_, desc),) = step.operands
    plain = MemoryDesc(desc.dims, desc.data_type) == desc
    tag = format_text(desc) if desc.tag is None or desc.offset0 else desc.tag
    if step.kind == "prelu":
        return f"prelu:{mask_of(desc.dims)}" + ("" if plain else f":{tag}")
    silent = plain and sum(n != 1 for n in desc.dims) <= 1
    operand = f"{desc.data_type}:{mask_of(desc.dims)}" + ("" if silent else f":{tag}")
    return f"binary_{step.algorithm}:{operand}"
