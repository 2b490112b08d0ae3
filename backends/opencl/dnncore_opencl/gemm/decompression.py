"""Factors of products that are converted before they are multiplied, and scales along K.

Elements of f8 and of 4 bits, and factors with several zero points, are converted into the
scratchpad. With a floating src, weights of integers and f8 become f32, with their zero points and
scales. Factors of products of integers become s32 or, without zero points, s8 or u8.

If scales of a product of integers vary along K, each range of K with one scale is a product of its
own. The scaled sums are added in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dnncore import backend as core
from dnncore.backend import Attributes, MemoryDesc, Operation, PostOp, Refused
from dnncore_opencl.codegen.vectors import F8, INTEGERS, PACKED
from dnncore_opencl.copies.staging import Conversion
from dnncore_opencl.elementwise.epilogue import Scaling
from dnncore_opencl.gemm.family import Family, Plan
from dnncore_opencl.gemm.product import Gemm, Matrix, factor_dims
from dnncore_opencl.gemm.split_k import FLOAT, part_size, partial, reduction

FORWARD = (core.MatMul, core.ConvolutionForward, core.InnerProductForward)
FACTORS = ("src", "weights")
LOADED = {"s4": "s8", "u4": "u8"}  # as what elements without zero points are multiplied


def _unscaled(gemm: Gemm) -> Gemm:
    """The product without the scales of its factors."""
    count = len(gemm.scaling.factors)
    scaling = replace(gemm.scaling, factors=())
    return replace(gemm, operands=gemm.operands[count:], scaling=scaling)


@dataclass(frozen=True)
class Decompression:
    """What is converted, by the name of the factor, and the ranges of K with scales of their own.

    steps: for each scale of a factor, by the place of its memory: its values along K, their stride.
    """

    conversions: Mapping[str, Conversion]
    ranges: int
    steps: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, op: Operation, attr: Attributes) -> Decompression:
        """Choose for an operation."""
        if not isinstance(op, FORWARD):
            return cls({}, 1, {})
        arguments = [*op.tensors(), *attr.arguments(op)]
        placed = {a.name: (place, desc) for place, (a, desc) in enumerate(arguments)}
        is_integer = {op.src.data_type, op.weights.data_type} <= {*INTEGERS, *PACKED}
        found, steps = {}, {}
        for name in FACTORS:
            conversion = _conversion(op, attr, name, placed, is_integer=is_integer)
            if conversion:
                found[name] = conversion
            place, scales = placed.get(f"{name}_scales", (0, None))
            if scales is None or not is_integer or isinstance(op, core.ConvolutionForward):
                continue
            along, _ = factor_dims(op, name)
            steps[place] = (scales.dims[along], scales.strides[along])
        ranges = math.lcm(*(max(1, count) for count, _ in steps.values()))  # K may be 0
        return cls(found, ranges, steps)

    @property
    def refusal(self) -> Refused | None:
        """Why a family cannot multiply factors as they are; None if it can."""
        if self.ranges > 1:
            reason = f"scales must be equal along the sums; got {self.ranges} ranges"
            return Refused("attribute", reason)
        for name, one in self.conversions.items():
            reason = f"{name} must be of a type that is multiplied, with one zero point at most"
            return Refused("attribute" if one.attr.zero_points else "type", reason)
        return None

    def converted(self, gemm: Gemm) -> Gemm:
        """Return the product of converted factors."""
        sources = {place for one in self.conversions.values() for place in one.sources}
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
        )

    def plan(self, family: Family, gemm: Gemm, start: int) -> Plan:
        """Plan a product, or those of the ranges and the steps behind their sum.

        start: the bytes at the beginning of the scratchpad that are taken.
        """
        if any(count == 0 for count, _ in self.steps.values()):  # no terms, and no scales of them
            gemm = _unscaled(gemm)
        if self.ranges == 1:
            return family.plan(gemm, start)
        first, nbytes = start // FLOAT, part_size(gemm) * FLOAT
        plans = [family.plan(part, start + nbytes) for part in self._parts(gemm, first)]
        rest = replace(
            _unscaled(gemm),
            a=replace(gemm.a, data_type="f32"),
            b=replace(gemm.b, data_type="f32"),
            rounds_each=True,
        )
        launches = [launch for plan in plans for launch in plan.launches]
        launches.append(reduction(rest, 1, first, 0))
        return Plan(tuple(launches), nbytes + max(plan.scratchpad for plan in plans))

    def _parts(self, gemm: Gemm, first: int) -> Iterator[Gemm]:
        """The products of the ranges, each of which is added to a sum in the scratchpad."""
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


def _conversion(
    op: Any,
    attr: Attributes,
    name: str,
    placed: Mapping[str, tuple[int, MemoryDesc]],
    *,
    is_integer: bool,
) -> Conversion | None:
    """How a factor is converted, if it is."""
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
