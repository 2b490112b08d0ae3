"""Scales, zero points of results and bias: the stages of an epilogue beside post-ops.

x = sums * (src scale * weights scale) + bias, post-ops, x * (1 / dst scale) + dst zero point
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dnncore.backend import Attributes, Operation, Refused
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, from_post_ops
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.runtime.tensor import Tensor

WORDS = ("scales", "zero_points")
FACTORS = ("src", "weights")


@dataclass(frozen=True)
class Terms:
    """The operands of an epilogue, in the rank of dst, and the stages that read them.

    before, after: as in `from_post_ops`.
    """

    attr: Attributes = field(default_factory=Attributes)
    tensors: Sequence[Tensor] = ()
    before: Sequence[tuple[str, int]] = ()
    after: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(
        cls, plan: ProgramPlan, op: Operation, attr: Attributes,
        as_dst: Callable[[str, Tensor], Tensor] = lambda _name, tensor: tensor,
        operands: Sequence[Tensor] | None = None,
    ) -> Terms:  # fmt: skip
        """Those of an operation.

        as_dst: as_dst(name, tensor) gives an argument the rank of dst; its dims are 1 or those of
        dst. operands: those of post-ops; by default, the arguments.
        """
        scales = [f"{name}_scales" for name in FACTORS if name in attr.scales]
        before = [("scale", scales)] if scales else []
        if "bias" in plan.tensors:
            before.append(("add", ["bias"]))
        after = []
        for kind, algorithm in (("scales", "descale"), ("zero_points", "add")):
            if op.result_name in getattr(attr, kind):
                after.append((algorithm, [f"{op.result_name}_{kind}"]))

        def read(stages: Sequence[tuple[str, list[str]]]) -> list[Tensor]:
            names = [name for _, own in stages for name in own]
            return [as_dst(name, plan.tensors[name]) for name in names]

        own = plan.operands(attr) if operands is None else operands
        tensors = [*read(before), *own, *read(after)]
        counts = [[(algorithm, len(names)) for algorithm, names in own] for own in (before, after)]
        return cls(attr, tensors, *counts)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Terms:
        """These stages after a function changed each operand."""
        return replace(self, tensors=[change(tensor) for tensor in self.tensors])

    def epilogue(self, splats: Sequence[bool], types: Sequence[str], *, fused: bool) -> Epilogue:
        """The stages. splats, types: of the operands. fused: as in `epilogue.Sum`."""
        operands = list(zip(splats, types, strict=True))
        return from_post_ops(self.attr, operands, before=self.before, after=self.after, fused=fused)


def refuse_varying(op: Operation, attr: Attributes) -> Refused | None:
    """Refuse scales and zero points that vary along K, and zero points of four bits."""
    for kind in WORDS:
        for name, own in getattr(attr, kind).items():
            if own.data_type in ("s4", "u4"):
                return Refused("attribute", f"no {kind} of type {own.data_type}")
            dims = own.desc(getattr(op, name)).dims
            summed = {"src": dims[1:], "weights": dims[1:]}.get(name, ())
            if op.KIND == "matmul":
                summed = {"src": dims[-1:], "weights": dims[-2:-1]}.get(name, ())
            elif name == "weights" and len(getattr(op, name).dims) > op.result.ndims > 2:
                summed = dims[2:]  # behind groups
            if any(size != 1 for size in summed):
                return Refused("attribute", f"no {kind} of {name} that vary along K; got {dims}")
    return None
