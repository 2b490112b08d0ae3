"""Attributes of a primitive: quantization, post-ops, scratchpad, determinism, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dnncore.errors import DataTypeError, DescriptorError
from dnncore.ops.depthwise import check_fusion, stored
from dnncore.ops.operation import Argument
from dnncore.ops.types import INTEGER_TYPES
from dnncore.post_op import PostOp, record_text
from dnncore.quantization import Dropout, Scales, ZeroPoints
from dnncore.rnn_quantization import NAMES as RNN_QPARAMS
from dnncore.rnn_quantization import RNNDataQparams, RNNWeightsQparams, check_qparams
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.ops.operation import Operation

__all__ = ["Attributes"]

FpMath = Literal["strict", "ieee", "bf16", "f16", "tf32", "any"]
ScratchpadMode = Literal["library", "user"]
Accumulation = Literal["strict", "relaxed", "any", "s32", "f32", "f16"]
WORDS = ("scales", "zero_points", "groups", "dropout", "stochastic_rounding", "operand_types",
         "sum_zero_point", "depthwise", "rnn_qparams")  # fmt: skip
"""The words of attributes that an implementation supports only if it lists them."""

OPERAND_TYPES = ("f32", "f16", "bf16", "s32", "s8", "u8")
"""The types of the operands of post-ops."""

_KINDS_OF_QPARAMS = dict(
    zip(RNN_QPARAMS, (RNNDataQparams, RNNWeightsQparams, RNNWeightsQparams), strict=True)
)
ROUNDED = ("f16", "bf16", "f8_e4m3", "f8_e5m2")
"""The types to which stochastic rounding rounds."""


def _checked_chain(post_ops: Any) -> tuple[PostOp, ...]:
    """Return the chain without sums of scale 0."""
    try:
        chain: tuple[Any, ...] = tuple(post_ops)
    except Exception:  # a third-party iterable may raise any exception
        chain = (None,)
    if not all(isinstance(post_op, PostOp) for post_op in chain):
        raise DescriptorError(
            f"attributes: post_ops must be a sequence of PostOp; got {post_ops!r};"
            " make them with PostOp.eltwise, PostOp.sum, PostOp.binary, PostOp.prelu and"
            " PostOp.depthwise"
        )
    return tuple(post_op for post_op in chain if post_op.kind != "sum" or post_op.scale != 0.0)


@dataclass(frozen=True, repr=False)
class Attributes:
    """Requirements on the computation of a primitive, in addition to its operation.

    post_ops: steps that are applied to the result in order.
    scratchpad: "library" or "user". With "library", the stream provides the scratchpad. With
        "user", the program passes an argument `scratchpad` with `pd.scratchpad_desc`. Launches that
        may overlap in time must not share a scratchpad.
    deterministic: allow only implementations whose result does not depend on timing.
    fpmath: the arithmetic allowed for f32 data. "strict" allows any arithmetic whose sums are as
        exact as in f32. "ieee" allows only f32 arithmetic for each product and each sum. "tf32",
        "bf16" and "f16" allow rounding to this type before products, "any" to any type. For bf16
        data, only "ieee" matters: it forbids instructions that take subnormal numbers as 0.
    scratchpad_limit: the most bytes of scratchpad that an implementation may need; None for no
        limit.
    scales: the scales of tensors, such as `{"src": Scales(), "weights": Scales(mask=1)}`.
    zero_points: the zero points of tensors of integers, such as `{"src": ZeroPoints()}`.
    accumulation: the least exact type in which an implementation may add up products. "strict" is
        f32, or s32 for integers; "f16" also permits f16; "relaxed" and "any" permit any type. An
        implementation may always use a more exact type.
    dropout: replaces results by 0 at random, before post-ops. Only eltwise forward, softmax forward
        and matmul support it.
    rounding: "environment" rounds the first output to nearest. "stochastic" rounds it up or down at
        random, with the probabilities that preserve the mean. Its seed is the argument
        `rounding_seed`, one s32. The output must be of type f16, bf16, f8_e4m3 or f8_e5m2.
    rnn_data_qparams, rnn_weights_qparams, rnn_weights_projection_qparams: scales and shift of
        recurrent cells of 8-bit integers. Without them, scales are 1 and the shift is 0.
    """

    post_ops: Sequence[PostOp] = ()
    scratchpad: ScratchpadMode = "library"
    deterministic: bool = False
    fpmath: FpMath = "strict"
    scratchpad_limit: int | None = None
    scales: Mapping[str, Scales] = field(default_factory=dict)
    zero_points: Mapping[str, ZeroPoints] = field(default_factory=dict)
    accumulation: Accumulation = "strict"
    dropout: Dropout | None = None
    rounding: Literal["environment", "stochastic"] = "environment"
    rnn_data_qparams: RNNDataQparams | None = None
    rnn_weights_qparams: RNNWeightsQparams | None = None
    rnn_weights_projection_qparams: RNNWeightsQparams | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "post_ops", _checked_chain(self.post_ops))
        _check_choice("scratchpad", self.scratchpad, get_args(ScratchpadMode))
        _check_choice("fpmath", self.fpmath, get_args(FpMath))
        _check_choice("deterministic", self.deterministic, (False, True))
        _check_choice("accumulation", self.accumulation, get_args(Accumulation))
        _check_choice("rounding", self.rounding, ("environment", "stochastic"))
        if self.dropout is not None and not isinstance(self.dropout, Dropout):
            raise DescriptorError(
                f"attributes: dropout must be a Dropout or None; got {self.dropout!r}"
            )
        for name in RNN_QPARAMS:
            own, wanted = getattr(self, name), _KINDS_OF_QPARAMS[name]
            if own is not None and not isinstance(own, wanted):
                raise DescriptorError(
                    f"attributes: {name} must be {wanted.__name__} or None; got {own!r}"
                )
        for row, kind in (("scales", Scales), ("zero_points", ZeroPoints)):
            checked = kind.checked(getattr(self, row))
            object.__setattr__(self, row, MappingProxyType(checked))
        object.__setattr__(self, "scratchpad_limit", _checked_limit(self.scratchpad_limit))
        object.__setattr__(self, "_hash", hash(self._values(lambda own: tuple(own.items()))))

    def __repr__(self) -> str:
        return record_text(self)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the hash, because hashes of texts differ from process to process."""
        return Attributes, self._values(dict)

    def _values(self, of_mapping: Callable[[Mapping[str, Any]], Any]) -> tuple[Any, ...]:
        """Return the values of all fields. `of_mapping` converts mappings."""
        values = (getattr(self, row.name) for row in fields(self) if row.compare)
        return tuple(of_mapping(own) if isinstance(own, Mapping) else own for own in values)

    def operands(self) -> list[tuple[str, MemoryDesc]]:
        """Return the arguments of post-ops, in order, as (argument name, descriptor)."""
        return [
            (f"post_op_{i}_{name}", desc)
            for i, post_op in enumerate(self.post_ops)
            for name, desc in post_op.operands
        ]

    def arguments(self, op: Operation) -> list[tuple[Argument, MemoryDesc]]:
        """Return the arguments of the attributes in binding order: operands of post-ops, scales,
        zero points, dropout, and the seed of rounding.

        op: an operation whose result has a layout. The mask of dropout has the same layout.
        """
        rows: list[tuple[str, Any, MemoryDesc]] = [
            (name, "in", desc) for name, desc in self.operands()
        ]
        for kind in ("scales", "zero_points"):
            rows += [
                (f"{name}_{kind}", "in", own.desc(getattr(op, name)))
                for name, own in getattr(self, kind).items()
            ]
        rows += self.dropout.arguments(op.result) if self.dropout else []
        if self.rounding == "stochastic":
            rows.append(("rounding_seed", "in", MemoryDesc((1,), "s32")))
        return [(Argument(name, direction), desc) for name, direction, desc in rows]

    @property
    def of_values(self) -> Attributes:
        """Return these attributes without those that do not affect correct results."""
        return Attributes(
            self.post_ops,
            fpmath=self.fpmath,
            scales=self.scales,
            zero_points=self.zero_points,
            dropout=self.dropout,
            rounding=self.rounding,
            **self.rnn_qparams,
        )

    @property
    def rnn_qparams(self) -> dict[str, Any]:
        """Return the numbers of recurrent cells of integers, by field."""
        return {name: getattr(self, name) for name in RNN_QPARAMS}

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of attributes that an implementation must list; see `Implementation`."""
        quantized = (*self.scales.values(), *self.zero_points.values())
        given = (
            self.scales,
            self.zero_points,
            any(own.groups for own in quantized),
            self.dropout,
            self.rounding == "stochastic",
            any(
                desc.data_type != "f32" for name, desc in self.operands() if not is_condition(name)
            ),
            any(step.zero_point for step in self.post_ops),
            any(step.kind == "depthwise" for step in self.post_ops),
            any(self.rnn_qparams.values()),
        )
        return tuple(word for word, own in zip(WORDS, given, strict=True) if own)

    def stored(self, op: Operation) -> MemoryDesc:
        """Return the descriptor of the first output as it is stored: `op.result`, unless a post-op
        changes its dims.
        """
        desc = op.result
        for step in self.post_ops:
            desc = stored(step, desc) if step.kind == "depthwise" else desc
        return desc

    @property
    def reads_dst(self) -> bool:
        """Whether the chain adds the old value of dst."""
        return any(post_op.kind == "sum" for post_op in self.post_ops)

    def check(self, op: Operation) -> None:
        """Raise `DescriptorError` if the attributes cannot apply to `op`."""
        for own in (self.scales, self.zero_points):
            for name, values in own.items():
                values.check(op, name)
        if self.dropout and not op.HAS_DROPOUT:
            raise DescriptorError(f"{op.KIND}: it has no dropout; leave the attribute out")
        check_qparams(op, self)
        self._check_post_ops(op)
        result = self.stored(op)
        if self.rounding == "stochastic" and result.data_type not in ROUNDED:
            raise DescriptorError(
                f"{op.KIND}: stochastic rounding needs {op.result_name} of type"
                f" {', '.join(ROUNDED)}; got {result.data_type}"
            )
        has_zero_point = any(step.zero_point for step in self.post_ops)
        if has_zero_point and result.data_type not in INTEGER_TYPES:
            raise DescriptorError(
                f"{op.KIND}: a sum with a zero point needs {op.result_name} of type"
                f" {', '.join(INTEGER_TYPES)}; got {result.data_type}; leave zero_point out"
            )

    def _check_post_ops(self, op: Operation) -> None:
        desc = op.result
        for place, step in enumerate(self.post_ops):
            for field_name, own in step.operands:
                name = f"post_op_{place}_{field_name}"
                if step.kind != "depthwise":
                    _check_element(op, name, own, desc.dims)
                if own.format_kind != "blocked":
                    raise DescriptorError(
                        f"{op.KIND}: {name} must have a concrete format; got {own.format_kind!r}"
                    )
            if step.kind == "depthwise":
                self._check_depthwise(op, place)
                desc = stored(step, desc)

    def _check_depthwise(self, op: Operation, place: int) -> None:
        check_fusion(op, self.post_ops, place)
        if self.scales or self.zero_points:
            raise DescriptorError(
                f"{op.KIND}: the post-op depthwise cannot be combined with scales and zero points;"
                " execute the depthwise convolution separately"
            )


def _check_element(op: Operation, name: str, desc: MemoryDesc, dims: tuple[int, ...]) -> None:
    """Check an operand of a step that changes each element separately."""
    if not desc.broadcasts_to(dims):
        raise DescriptorError(
            f"{op.KIND}: {name} must have dst's rank, and each of its dims must be 1 or"
            f" dst's; got {desc.dims} for dst {dims}; reshape the operand's descriptor"
        )
    types = ("s8",) if is_condition(name) else OPERAND_TYPES
    if desc.data_type not in types:
        raise DataTypeError(
            f"{op.KIND}: {name} must be of type {', '.join(types)}; got {desc.data_type}",
            f"post-op operand of data type {desc.data_type}",
        )


def is_condition(name: str) -> bool:
    """Whether this argument of a post-op is the condition of `select`."""
    return name.endswith("_src2")


def _checked_limit(limit: object) -> int | None:
    """Return the number of bytes as a Python int, or None."""
    if limit is None:
        return None
    if not isinstance(limit, int | np.integer) or isinstance(limit, bool) or limit < 0:
        raise DescriptorError(
            "attributes: scratchpad_limit must be a whole number of bytes, at least 0, or None for"
            f" no limit; got {limit!r}"
        )
    return int(limit)


def _check_choice(what: str, value: object, choices: tuple[object, ...]) -> None:
    if not isinstance(value, type(choices[0])) or value not in choices:
        raise DescriptorError(
            f"attributes: {what} must be one of {', '.join(map(str, choices))}; got {value!r}"
        )
