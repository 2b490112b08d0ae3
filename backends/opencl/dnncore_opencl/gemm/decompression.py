"""Conversion of src and weights before they are multiplied, and scales that vary along K.

A factor is src or weights. A factor of f8, of 4-bit elements, or with several zero points is
converted into the scratchpad. If src is floating-point, weights of integers and f8 become f32, with
their zero points and scales applied. If src has few rows, families that support it decode weights
as they read them instead. In products of integers, factors become s32 or, without zero points, s8
or u8.

If scales of a product of integers vary along K, each range of K with constant scales is a separate
product. The scaled sums are added in order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dnncore import backend as core
from dnncore.backend import Attributes, MemoryDesc, Operation, PostOp, Refused
from dnncore_opencl.codegen.vectors import BYTES, F8, INTEGERS, PACKED
from dnncore_opencl.copies.staging import Conversion
from dnncore_opencl.elementwise.epilogue import Scaling
from dnncore_opencl.gemm.family import Family, Plan
from dnncore_opencl.gemm.product import Decoding, Gemm, Matrix, factor_dims
from dnncore_opencl.gemm.split_k import FLOAT, part_size, partial, reduction
from dnncore_opencl.runtime.launch import Launch

FORWARD = (core.MatMul, core.ConvolutionForward, core.InnerProductForward)
FACTORS = ("src", "weights")
DECODED = (*F8, *PACKED, *BYTES)
DECODED_ROWS = 64  # rows of src; weights are decoded again for every 256 rows
LOADED = {"s4": "s8", "u4": "u8"}  # converted types of factors without zero points


def _unscaled(gemm: Gemm) -> Gemm:
    """Return the product without the scales of its factors."""
    count = len(gemm.scaling.factors)
    scaling = replace(gemm.scaling, factors=())
    return replace(gemm, operands=gemm.operands[count:], scaling=scaling)


@dataclass(frozen=True)
class Decompression:
    """The conversions, by the name of the factor, and the number of ranges of K with own scales.

    steps: for each scale of a factor, by the place of its memory: its size and stride along K.
    decoded: the places of the memories of scales and zero points of weights that are decoded; None
    if weights are not decoded. has_terms: whether all scales have elements.
    """

    conversions: Mapping[str, Conversion]
    ranges: int
    steps: Mapping[int, tuple[int, int]]
    decoded: Collection[int] | None = None
    has_terms: bool = True

    @classmethod
    def of(cls, op: Operation, attr: Attributes, *, decodes: bool = False) -> Decompression:
        """Plan the conversions of an operation. decodes: whether the family can decode weights."""
        if not isinstance(op, FORWARD):
            return cls({}, 1, {})
        arguments = [*op.tensors(), *attr.arguments(op)]
        placed = {a.name: (place, desc) for place, (a, desc) in enumerate(arguments)}
        is_integer = {op.src.data_type, op.weights.data_type} <= {*INTEGERS, *PACKED}
        found, steps, decoded = {}, {}, None
        for name in FACTORS:
            conversion = _conversion(op, attr, name, placed, is_integer=is_integer)
            if conversion and decodes and name == "weights" and _has_few_rows(op, is_integer):
                decoded = conversion.sources
            elif conversion:
                found[name] = conversion
            place, scales = placed.get(f"{name}_scales", (0, None))
            if scales is None or not is_integer or isinstance(op, core.ConvolutionForward):
                continue
            along, _ = factor_dims(op, name)
            steps[place] = (scales.dims[along], scales.strides[along])
        ranges = math.lcm(*(max(1, count) for count, _ in steps.values()))  # not 0 if K is 0
        terms = (placed[name][1] for name in (f"{own}_scales" for own in FACTORS) if name in placed)
        return cls(found, ranges, steps, decoded, has_terms=all(own.nelems for own in terms))

    @property
    def refusal(self) -> Refused | None:
        """Why a family cannot multiply the factors without a conversion; None if it can."""
        if self.ranges > 1:
            reason = f"scales must be equal along the sums; got {self.ranges} ranges"
            return Refused("attribute", reason)
        for name, one in self.conversions.items():
            reason = f"{name} must be of a type that is multiplied, with one zero point at most"
            return Refused("attribute" if one.attr.zero_points else "type", reason)
        return None

    def converted(self, gemm: Gemm) -> Gemm:
        """Return the product whose factors are converted."""
        sources = {place for one in self.conversions.values() for place in one.sources}
        sources |= set(self.decoded or ())
        kinds = {FACTORS.index(name): one.data_type for name, one in self.conversions.items()}

        def side(matrix: Matrix) -> Matrix:
            return replace(matrix, data_type=kinds.get(matrix.index, matrix.data_type))

        count = len(gemm.scaling.factors)
        kept = [own for own in gemm.operands[:count] if own.index not in sources]
        zeros = (None if own and own.index in sources else own for own in gemm.zero_points)
        first, second = zeros
        return replace(
            gemm,
            a=side(gemm.a),
            b=side(gemm.b),
            operands=(*kept, *gemm.operands[count:]),
            scaling=replace(gemm.scaling, factors=tuple(own.data_type for own in kept)),
            zero_points=(first, second),
            decoding=None if self.decoded is None else self._decoding(gemm),
        )

    def _decoding(self, gemm: Gemm) -> Decoding:
        """Return the scales and zero points of b."""
        assert self.decoded is not None
        factors = gemm.operands[: len(gemm.scaling.factors)]
        scales = next((own for own in factors if own.index in self.decoded), None)
        return Decoding(scales, gemm.zero_points[1])

    def plan(self, family: Family, gemm: Gemm, start: int) -> Plan:
        """Plan the product, or one product per range and the epilogue of their sum.

        start: bytes at the beginning of the scratchpad that are already used.
        """
        if not self.has_terms:
            gemm = _unscaled(gemm)
        if self.ranges == 1:
            return family.plan(gemm, start)
        first, nbytes = start // FLOAT, part_size(gemm) * FLOAT

        def plans() -> Iterator[Plan]:
            return (family.plan(part, start + nbytes) for part in self._parts(gemm, first))

        def launches() -> tuple[Launch, ...]:
            rest = replace(
                _unscaled(gemm),
                a=replace(gemm.a, data_type="f32"),
                b=replace(gemm.b, data_type="f32"),
                rounds_each=True,
            )
            products = (launch for plan in plans() for launch in plan.launches)
            return (*products, reduction(rest, 1, first, 0))

        return Plan(launches, nbytes + next(plans()).scratchpad)

    def _parts(self, gemm: Gemm, first: int) -> Iterator[Gemm]:
        """Yield the product of each range. It is added to the sum in the scratchpad."""
        size = gemm.k[0] // self.ranges
        count = len(gemm.scaling.factors)
        for part in range(self.ranges):

            def moved(matrix: Matrix, steps: int, stride: int) -> Matrix:
                return replace(matrix, offset=matrix.offset + steps * stride)

            factors = []
            for own in gemm.operands[:count]:
                values, stride = self.steps.get(own.index, (1, 0))
                factors.append(moved(own, part * values // self.ranges, stride))
            yield replace(
                partial(gemm, first),
                k=(size, *gemm.k[1:]),
                a=moved(gemm.a, part * size, gemm.a.strides.k[0]),
                b=moved(gemm.b, part * size, gemm.b.strides.k[0]),
                operands=tuple(factors),
                post_ops=(PostOp.sum(),) if part else (),
                scaling=Scaling(gemm.scaling.factors),
                keeps_floats=True,
            )


def _has_few_rows(op: Operation, is_integer: bool) -> bool:
    """Whether a family that decodes weights does so, instead of a conversion."""
    if is_integer or not isinstance(op, core.MatMul | core.InnerProductForward):
        return False
    rows = op.src.dims[-2] if isinstance(op, core.MatMul) else op.src.dims[0]
    return rows <= DECODED_ROWS and op.weights.is_plain and op.weights.data_type in DECODED


def _conversion(
    op: Any,
    attr: Attributes,
    name: str,
    placed: Mapping[str, tuple[int, MemoryDesc]],
    *,
    is_integer: bool,
) -> Conversion | None:
    """Return how a factor is converted; None if it is not."""
    own = getattr(op, name).data_type
    zeros, scales = name in attr.zero_points, name in attr.scales
    if is_integer:
        _, desc = placed.get(f"{name}_zero_points", (0, None))
        is_varied = desc is not None and (desc.nelems != 1 or desc.data_type in PACKED)
        is_needed = own in PACKED or is_varied
        kind, given = ("s32", ["zero_points"]) if zeros else (LOADED.get(own, own), [])
    else:
        is_needed = own in (*F8, *PACKED, *INTEGERS)
        if scales and not isinstance(op, core.ConvolutionForward):
            along, _ = factor_dims(op, name)
            is_needed |= placed[f"{name}_scales"][1].dims[along] > 1
            is_needed |= any(size > 1 for size in attr.scales[name].groups)
        kind = "f64" if own == "f64" else "f32"
        given = [word for word, has in (("scales", scales), ("zero_points", zeros)) if has]
    if not is_needed:
        return None
    values: dict[str, Any] = {word: {"src": getattr(attr, word)[name]} for word in given}
    sources = tuple(placed[f"{name}_{word}"][0] for word in given)
    return Conversion(kind, Attributes(**values), sources)
