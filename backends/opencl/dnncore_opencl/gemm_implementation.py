"""What the implementations that are made of matrix products share: accept, plan, build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dnncore.backend import (
    Accepted,
    Attributes,
    Executable,
    Implementation,
    MemoryDesc,
    Operation,
    Refused,
)
from dnncore_opencl.families import Family, plan
from dnncore_opencl.gemm import split
from dnncore_opencl.program import LaunchProgram
from dnncore_opencl.staging import ROW_MAJOR, Staging

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine
    from dnncore_opencl.gemm import Gemm
    from dnncore_opencl.reduction import Stages

MAX_ELEMENTS = 2**31 - 2**16  # kernels count elements in 32-bit integers; the rest is for tiles


class GemmImplementation(Implementation):
    """One family's implementation of one operation; subclasses say what products it is made of."""

    def __init__(self, family: type[Family]) -> None:
        self.family = family
        self.name = f"opencl:{family.name}"

    def gemms(self, op: Any, attr: Attributes) -> Sequence[Gemm]:
        """Return the products that together compute the operation."""
        raise NotImplementedError

    def sums(self, op: Any, engine: OpenCLEngine, scratchpad_start: int) -> Stages | None:
        """Return what is to be summed up beside the products."""
        return None

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that 32-bit integers can count through."""
        op = _resolved(op)
        refused = self.family.refusal(engine) or _opaque_refusal(op, attr)
        if refused:
            return refused
        staging = Staging.of(op, attr)
        family = self.family.of(engine)
        gemms = [gemm for gemm in self.gemms(staging.op, staging.attr) if gemm.size]
        refusals = (_size_refusal(staging.op, staging.attr), *map(family.refusal_of, gemms))
        refused = next(filter(None, refusals), None)
        if refused:
            return refused
        plans = [plan(family, part, staging.nbytes) for gemm in gemms for part in split(gemm)]
        sums = self.sums(staging.op, engine, staging.nbytes)
        needs = [p.scratchpad for p in plans] + [sums.scratchpad_bytes if sums else 0]

        def build() -> Executable:
            launches = [launch for p in plans for launch in p.launches]
            launches += sums.launches() if sums else ()
            return LaunchProgram(engine, staging.around(engine, launches))

        return Accepted(
            op,
            build=build,
            efficiency=family.efficiency[engine.device_type],
            scratchpad_bytes=staging.nbytes + max(needs),
        )


def _resolved(op: Operation) -> Operation:
    """Replace each format `any` by row-major."""
    return op.resolve_any(**{a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()})


def _named(op: Operation, attr: Attributes) -> list[tuple[str, MemoryDesc]]:
    return [(a.name, desc) for a, desc in op.tensors()] + attr.operands()


def _opaque_refusal(op: Operation, attr: Attributes) -> Refused | None:
    for name, desc in _named(op, attr):
        if desc.format_kind != "blocked":
            return Refused("format", f"{name} must have strides; got {desc.tag}")
    return None


def _size_refusal(op: Operation, attr: Attributes) -> Refused | None:
    for name, desc in _named(op, attr):
        elements = desc.nbytes // desc.itemsize
        if elements > MAX_ELEMENTS:
            reason = f"{name} must span {MAX_ELEMENTS} elements at most; got {elements}"
            return Refused("shape", reason)
    return None
