"""What the implementations that are made of matrix products share: accept, plan, build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Operation, Refused
from dnncore_opencl.families import Simd, Tiled, plan
from dnncore_opencl.program import Launch, LaunchProgram

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine
    from dnncore_opencl.gemm import Gemm

ROW_MAJOR = "abcdefghijkl"
MAX_ELEMENTS = 2**31 - 2**16  # kernels count elements in 32-bit integers; the rest is for tiles


class GemmImplementation(Implementation):
    """One family's implementation of one operation; subclasses say what products it is made of."""

    def __init__(self, family: type[Simd | Tiled]) -> None:
        self.family = family
        self.name = f"opencl:{family.name}"

    def refusal(self, op: Any, attr: Attributes) -> Refused | None:
        """Refuse what the products cannot express; formats are resolved and plain."""
        return None

    def gemms(self, op: Any, attr: Attributes) -> Sequence[Gemm]:
        """Return the products that together compute the operation."""
        raise NotImplementedError

    def more_launches(self, op: Any, engine: OpenCLEngine) -> Sequence[Launch]:
        """Return launches beside the products."""
        return ()

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every plain layout that 32-bit integers can count through."""
        op = _resolved(op)
        refused = self.family.refusal(engine) or _layout_refusal(op, attr) or self.refusal(op, attr)
        if refused:
            return refused
        family = self.family.of(engine)
        plans = [plan(family, gemm) for gemm in self.gemms(op, attr) if gemm.size]
        launches = [launch for p in plans for launch in p.launches]
        launches += self.more_launches(op, engine)
        return Accepted(
            op,
            build=lambda: LaunchProgram(engine, launches),
            efficiency=family.efficiency[engine.device_type],
            scratchpad_bytes=max((p.scratchpad for p in plans), default=0),
        )


def _resolved(op: Operation) -> Operation:
    """Replace each format `any` by row-major."""
    return op.resolve_any(**{a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()})


def _layout_refusal(op: Operation, attr: Attributes) -> Refused | None:
    named: list[tuple[str, MemoryDesc]] = [(a.name, desc) for a, desc in op.tensors()]
    for name, desc in named + attr.operands():
        if not desc.is_plain:
            return Refused("format", f"{name} must be plain, without inner blocks; got {desc.tag}")
        elements = desc.nbytes // desc.itemsize
        if elements > MAX_ELEMENTS:
            reason = f"{name} must span {MAX_ELEMENTS} elements at most; got {elements}"
            return Refused("shape", reason)
    return None
