"""The base of implementations that consist of matrix products: accept, plan, build."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dnncore import backend as core
from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    KnobValue,
    MemoryDesc,
    OpT,
    Refused,
)
from dnncore_opencl.codegen.layout import elements
from dnncore_opencl.codegen.vectors import refuse_doubles
from dnncore_opencl.copies.staging import ROW_MAJOR, Staging, plain
from dnncore_opencl.elementwise.algorithms import refuse_post_ops
from dnncore_opencl.gemm.decompression import Decompression
from dnncore_opencl.gemm.family import Family, Plan
from dnncore_opencl.gemm.product import Gemm, split
from dnncore_opencl.gemm.split_k import FLOAT
from dnncore_opencl.gemm.tuned import tuned
from dnncore_opencl.reduction.implementations import bias_sums
from dnncore_opencl.runtime.launch import padded

MAX_ELEMENTS = 2**31 - 2**16  # kernels use 32-bit indices; the margin is for whole tiles

LINE = 16  # bytes that some families copy at once


class GemmImplementation(Implementation[OpT]):
    """One family's implementation of one operation. Subclasses define its matrix products."""

    def __init__(self, family: type[Family]) -> None:
        self.family = family
        self.name = f"opencl:{family.name}"
        self.data_types = family.data_types
        self.attributes = family.attributes

    @abstractmethod
    def gemms(self, op: OpT, attr: Attributes) -> Iterator[Gemm]:
        """Yield the products that together compute the operation."""

    def formats(self, op: OpT) -> dict[str, str]:
        """Return the formats that replace `any`, by tensor name."""
        return {a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()}

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout whose elements 32-bit integers can count."""
        op = op.resolve_any(**self.formats(op))
        refused = self.family.refusal(engine) or refuse_doubles(engine, op)
        refused = refused or common_refusal(op, attr)
        return refused or self._accepted(op, attr, engine, {})

    def _accepted(
        self, op: OpT, attr: Attributes, engine: Any, values: Mapping[str, KnobValue]
    ) -> Accepted | Refused:
        """values: of knobs; 0 lets the family's rule and the tuning table choose."""
        own = self.family.of(engine)
        family = own.with_knobs(values) if any(values.values()) else own
        if isinstance(family, Refused):
            return family
        given = Decompression.of(op, attr, decodes=family.decodes)
        if "groups" not in family.attributes and given.refusal:
            return given.refusal
        staging = Staging.of(op, attr, conversions=given.conversions)
        gemms, refused = self._gemms(staging, family)
        if refused and refused.kind == "format":
            staging = Staging.of(op, attr, partial(self.aligned, op))
            gemms, refused = self._gemms(staging, family)
        if refused:
            return refused
        parts = [given.converted(part) for gemm in gemms for part in split(gemm)]
        families = [tuned(own, part, engine) if family is own else family for part in parts]
        planned = zip(families, parts, strict=True)
        plans = [given.plan(each, part, staging.nbytes) for each, part in planned]
        answer = accepted(op, engine, staging, plans, family.efficiency[engine.device_type])
        return replace(
            answer,
            notes=(*answer.notes, *family.notes(op.result.data_type, attr.fpmath)),
            knobs=own.knobs,
            tune=partial(self._accepted, op, attr, engine) if own.knobs else None,
        )

    def aligned(self, op: OpT, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Return a copy's layout that the family can read, if it cannot read the tensor's own."""
        return plain(desc)

    def _gemms(self, staging: Staging[OpT], family: Family) -> tuple[list[Gemm], Refused | None]:
        """Return the products of a staged operation, and the family's refusal of them, or None."""
        gemms: list[Gemm] = []
        refused = size_refusal(staging.op, staging.attr)
        for gemm in () if refused else self.gemms(staging.op, staging.attr):
            refused = family.refusal_of(gemm) if gemm.size else None
            if refused:
                break
            if gemm.size:
                gemms.append(gemm)
        return gemms, refused


def in_lines(desc: MemoryDesc, order: Sequence[int], line_dims: int = 1) -> MemoryDesc:
    """Return a layout of dims in this order, slowest first, with lines that begin at 16 bytes.

    line_dims: the number of innermost dims that form a line. Gaps between lines are never read.
    """
    strides, step = [0] * desc.ndims, 1
    for place, dim in enumerate(reversed(order), 1):
        strides[dim] = step
        step *= desc.dims[dim]
        if place == line_dims:
            step = padded(step, LINE // desc.itemsize)
    return MemoryDesc(desc.dims, desc.data_type, strides=strides)


def accepted(
    op: OpT, engine: Any, staging: Staging[OpT], plans: Sequence[Plan], efficiency: float
) -> Accepted:
    """Accept an operation planned on staged tensors; add the launches of a bias gradient."""
    sums = bias_sums(engine, staging.op, staging.nbytes)
    needs = [plan.scratchpad for plan in plans] + [sums.scratchpad_bytes if sums else 0]

    def build() -> core.Executable:
        launches = [launch for plan in plans for launch in plan.launches]
        return staging.program(engine, [*launches, *(sums.launches() if sums else ())])

    return Accepted(
        op,
        build=build,
        efficiency=efficiency,
        scratchpad_bytes=staging.nbytes + max(needs),
        notes=staging.notes,
    )


def _named(op: core.Operation, attr: Attributes) -> list[tuple[str, MemoryDesc]]:
    return [(a.name, desc) for a, desc in op.tensors()] + attr.operands()


def common_refusal(op: core.Operation, attr: Attributes) -> Refused | None:
    """Refuse tensors without strides, and unknown post-ops."""
    for name, desc in _named(op, attr):
        if desc.format_kind != "blocked":
            return Refused("format", f"{name} must have strides; got {desc.tag}")
    return refuse_post_ops(attr)


def size_refusal(op: core.Operation, attr: Attributes) -> Refused | None:
    """Refuse tensors with more elements than 32-bit integers can count."""
    for name, desc in _named(op, attr):
        count = elements(desc)
        if count > MAX_ELEMENTS:
            reason = f"{name} must span {MAX_ELEMENTS} elements at most; got {count}"
            return Refused("shape", reason)
    return None


def scratchpad_refusal(nbytes: int) -> Refused | None:
    """Refuse scratchpads with more floats than 32-bit integers can count."""
    if nbytes // FLOAT > MAX_ELEMENTS:
        reason = f"scratchpad must span {MAX_ELEMENTS} floats at most; got {nbytes} bytes"
        return Refused("shape", reason)
    return None
