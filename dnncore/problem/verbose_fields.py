"""What verbose lines say of a primitive, field by field as oneDNN says it.

    convolution      forward_training
    src:f32:a:blocked:acdb::f0 wei:f32:a:blocked:cdba::f0 bia:undef::undef::: dst:f32:p:blocked:...
    attr-post-ops:sum:0.5+eltwise_relu      alg:convolution_direct      mb2_ic3oc8_ih5oh5kh3sh1...

The auxiliary field, after oneDNN's words, has those that oneDNN does not tell and that make the
difference between two problems, and only where they do: `offsets:0:505`, elements before each
tensor in turn; `scales` of sums; `alpha` and `k` of LRN; `prh`, `prw`, odd paddings at the end. So
has the list of memory descriptors: an output that lies unlike the input whose descriptor it shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from dnncore import ops
from dnncore.attributes import Attributes, PostOp
from dnncore.ops import Operation
from dnncore.ops.operation import FORWARD
from dnncore.problem import attributes
from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.drivers.lrn import NUMBERS
from dnncore.problem.shapes import dims_text, mask_of
from dnncore.problem.tensors import format_text
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["KINDS", "LETTERS", "OPERATIONS", "Fields", "Row", "kind_of", "prop_kinds_of", "rows_of",
           "write"]  # fmt: skip


@dataclass(frozen=True)
class Fields:
    """The fields of a line, in its order but for the implementation behind the kind."""

    kind: str
    prop_kind: str
    memory_descriptors: str
    attributes: str
    auxiliary: str
    problem_desc: str

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them in order."""
        return tuple(getattr(self, field.name) for field in fields(self))


# -- tables ----------------------------------------------------------------------------------------

# The tensors of a line, WORD or WORD:ARGUMENT. A word without argument is of an absent tensor.
# WORD? is left out where it is absent, WORD=OTHER where it is like the argument OTHER. Operations
# that are not here list all that they have, in order.
LAYER = {
    "Forward": "src wei:weights bia:bias dst",
    "BackwardData": "src:diff_src wei:weights bia: dst:diff_dst",
    "BackwardWeights": "src wei:diff_weights bia:diff_bias dst:diff_dst",
}
TENSORS: dict[str, str] = {
    **{f"Convolution{direction}": rows for direction, rows in LAYER.items()},
    **{f"InnerProduct{direction}": rows for direction, rows in LAYER.items()},
    "EltwiseForward": "data:src diff: dst=src",
    "EltwiseBackward": "data:kept diff:diff_dst diff_src=diff_dst",
    "LRNForward": "data:src diff: dst=src",
    "LRNBackward": "data:src diff:diff_dst diff_src=diff_dst",
    "MatMul": "src wei:weights bia?:bias dst",
    "PoolingForward": "src dst ws:workspace",
    "PoolingBackward": "src:diff_src dst:diff_dst ws:workspace",
    "SoftmaxForward": "src dst diff_dst:",
    "SoftmaxBackward": "src:diff_src dst diff_dst",
}

# What an operation's auxiliary field says, by fields of the operation.
AUXILIARY = {
    "convolution": "alg:convolution_{algorithm}",
    "binary": "alg:binary_{algorithm}",
    "eltwise": "alg:eltwise_{algorithm} alpha:{alpha} beta:{beta}",
    "lrn": "alg:lrn_{algorithm}",
    "pooling": "alg:pooling_{algorithm}",
    "reduction": "alg:reduction_{algorithm} p:{p} eps:{eps}",
    "softmax": "alg:softmax_{algorithm} axis:{axis}",
}

# Where oneDNN's problem differs from the problem text's shape: what is spelt otherwise, and letters
# that it lacks.
SPELLING = {"inner_product": ("_", ""), "lrn": ("_", ""), "pooling": ("_ic", "ic")}
LETTERS = {"convolution": "pr[dhw]", "pooling": "pr[dhw]", "lrn": "alpha|k"}


def kind_of(operation: type[Operation]) -> str:
    """oneDNN's name of a primitive: `inner_product`, of gradients as well."""
    return operation.KIND.removesuffix(" backward").replace(" ", "_")


OPERATIONS = [operation for driver in DRIVERS.values() for operation in driver.operations]
KINDS = {kind_of(operation) for operation in OPERATIONS}


def prop_kinds_of(operation: type[Operation]) -> tuple[str, ...]:
    """What a line may call the direction of an operation of this type."""
    name = operation.__name__
    if name.endswith("Forward"):
        return FORWARD
    if name.endswith("BackwardWeights"):
        return ("backward_weights",)
    return ("backward_data",) if "Backward" in name else ("undef",)


@dataclass(frozen=True)
class Row:
    """One tensor of a line. twin: the argument that it must differ from to be listed."""

    word: str
    argument: str
    twin: str = ""
    is_optional: bool = False


def rows_of(op: Operation) -> Iterator[Row]:
    """All tensors that a line of such an operation may list."""
    listed = TENSORS.get(type(op).__name__)
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
    op: Any, attr: Attributes, workspace: MemoryDesc | None = None, asked: Any = None
) -> Fields:
    """The fields of an operation.

    asked: the same before its `any` formats were resolved, which are marked.
    """
    kind = kind_of(type(op))
    tensors = list(_present(op, workspace))
    problem, letters = _problem(kind, _shape(op))
    told = AUXILIARY.get(kind, "").format(**{name: _shown(v) for name, v in vars(op).items()})
    return Fields(
        kind,
        getattr(op, "prop_kind", prop_kinds_of(type(op))[0]),
        " ".join(_desc_text(op, row, desc, asked or op) for row, desc in tensors),
        " ".join(_attributes(attr)),
        " ".join(filter(None, [told, *letters, *_untold(op, [desc for _, desc in tensors])])),
        problem,
    )


def _shape(op: Operation) -> str:
    """The shape in the problem text; all dims of an operation that the text does not know yet."""
    tensors = op.tensors()
    if type(op) not in OPERATIONS:
        return dims_text(*(desc.dims for _, desc in tensors))
    secret = {row.name: desc for row, desc in tensors if desc.format_kind == "opaque"}
    public = op.with_descs(**{name: desc.with_format("any") for name, desc in secret.items()})
    return driver_of(type(op)).write(public)["shape"]


def six_digits(value: float) -> str:
    """A number with six digits, as oneDNN writes it, or as many as it needs."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _shown(value: Any) -> str:
    return six_digits(value) if isinstance(value, float) else str(value)


def _present(op: Any, workspace: MemoryDesc | None) -> Iterator[tuple[Row, MemoryDesc | None]]:
    """The rows of a line and their descriptors; those of absent tensors, too."""
    for row in rows_of(op):
        desc = getattr(op, row.argument, None) if row.argument != "workspace" else workspace
        left_out = desc == getattr(op, row.twin) if row.twin else desc is None
        if not (row.is_optional and left_out):
            yield row, desc


def _desc_text(op: Any, row: Row, desc: MemoryDesc | None, asked: Any) -> str:
    """WORD:TYPE:MARKS:KIND:TAG:STRIDES:FLAGS; a format `any` is marked a, padding p, offset0 0."""
    if desc is None:
        return f"{row.word}:undef::undef:::"
    before = getattr(asked, row.argument, None)
    marks = "a" if before is not None and before.is_any else ""
    marks += "p" * desc.has_padding + "0" * bool(desc.offset0)
    strides = "x".join(map(str, desc.strides)) if desc.tag is None else ""
    flags = "f0"
    if isinstance(op, ops.MatMul) and row.word == "bia":
        flags = f"f0_mask{mask_of(desc.dims)}"
    tag = desc.order_tag.replace(":", "/")  # opaque formats have colons
    return f"{row.word}:{desc.data_type}:{marks}:{desc.format_kind}:{tag}:{strides}:{flags}"


def _problem(kind: str, shape: str) -> tuple[str, list[str]]:
    """A shape as oneDNN spells it, and its letters that oneDNN lacks, as words."""
    pattern = rf"(?<![a-z])({LETTERS.get(kind, '$')})(-?[0-9][0-9.e-]*)"
    words = [
        f"{name}:{number}"
        for name, number in re.findall(pattern, shape)
        if float(number) != NUMBERS.get(name)
    ]
    ours, theirs = SPELLING.get(kind, ("", ""))
    return re.sub(pattern, "", shape).replace(ours, theirs), words


def _untold(op: Any, descs: list[MemoryDesc | None]) -> Iterator[str]:
    """What oneDNN leaves out."""
    if isinstance(op, ops.Sum) and set(op.scales) != {1.0}:
        yield "scales:" + ":".join(map(six_digits, op.scales))
    offsets = [desc.offset0 if desc is not None else 0 for desc in descs]
    if any(offsets):
        yield "offsets:" + ":".join(map(str, offsets))


def _attributes(attr: Attributes) -> Iterator[str]:
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
        return "sum" if step.scale == 1 else f"sum:{six_digits(step.scale)}"
    if step.kind == "eltwise":
        numbers = [step.alpha, step.beta] if step.beta else [step.alpha] if step.alpha else []
        return ":".join([f"eltwise_{step.algorithm}", *map(six_digits, numbers)])
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
