"""The stages of an epilogue other than post-ops: scales, bias and zero points of results.

x = sums * (src scale * weights scale) + bias, post-ops, x * (1 / dst scale) + dst zero point
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dnncore.backend import Attributes, Operation, Refused
from dnncore_cpu_numba.codegen.type_conversion import INTEGERS
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, from_post_ops
from dnncore_cpu_numba.gemm.plan import PRODUCT_WORDS, ProgramPlan
from dnncore_cpu_numba.runtime.tensor import Tensor

WORDS = ("scales", "zero_points")
ATTRIBUTES = (*WORDS, *PRODUCT_WORDS)
FACTORS = ("src", "weights")


@dataclass(frozen=True)
class Terms:
    """The operands of an epilogue, with the rank of dst, and the stages that read them.

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
        operands: Sequence[Tensor] | None = None, scales: Sequence[str] = FACTORS,
    ) -> Terms:  # fmt: skip
        """Return the terms of an operation.

        as_dst: as_dst(name, tensor) returns an argument with the rank of dst; its dims are 1 or
        those of dst. operands: the operands of post-ops; by default the arguments. scales: the
        factors whose scales apply to sums.
        """
        own_scales = [f"{name}_scales" for name in scales if name in attr.scales]
        before = [("scale", own_scales)] if own_scales else []
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

    def following(self, scales: Sequence[Tensor], addend: Tensor) -> Terms:
        """Return the terms with two stages in front: scale the sums, then add a tensor."""
        first = [("scale", len(scales))] if scales else []
        before = [*first, ("add", 1), *self.before]
        return replace(self, tensors=[*scales, addend, *self.tensors], before=before)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Terms:
        """Return the terms with a function applied to each operand."""
        return replace(self, tensors=[change(tensor) for tensor in self.tensors])

    def epilogue(self, splats: Sequence[bool], types: Sequence[str], *, fused: bool) -> Epilogue:
        """Return the stages. splats, types: of the operands. fused: as in `epilogue.Sum`."""
        operands = list(zip(splats, types, strict=True))
        return from_post_ops(self.attr, operands, before=self.before, after=self.after, fused=fused)


def refuse_varying(op: Operation, attr: Attributes, group: int) -> Refused | None:
    """Refuse scales and zero points that vary along K, for integers and for groups of elements.

    group: the elements of a group; 1 if factors are decompressed to the type of the products.
    """
    if op.data_type not in INTEGERS and group == 1:
        return None
    for kind, name in varying(op, attr):
        dims = getattr(attr, kind)[name].desc(getattr(op, name)).dims
        return Refused("attribute", f"no {kind} of {name} that vary along K; got {dims}")
    return None


def refuse_uniform(op: Operation, attr: Attributes) -> Refused | None:
    """Refuse operations other than integers with scales or zero points that vary along K."""
    if op.data_type not in INTEGERS:
        return Refused("type", f"takes src of {', '.join(INTEGERS)}; got {op.data_type}")
    if not varying(op, attr):
        return Refused("attribute", "takes scales or zero points that vary along K; there are none")
    return None


def varying(op: Operation, attr: Attributes) -> list[tuple[str, str]]:
    """Return (kind, tensor name) of all scales and zero points that vary along K."""
    return [
        (kind, name)
        for kind in WORDS
        for name, dims in _summed(op, attr, kind).items()
        if any(size != 1 for size in dims)
    ]


def summed(op: Operation, attr: Attributes, kind: str) -> list[tuple[int, ...]]:
    """Return, for each factor's scales or zero points, their dims along K."""
    return list(_summed(op, attr, kind).values())


def _summed(op: Operation, attr: Attributes, kind: str) -> dict[str, tuple[int, ...]]:
    found = {}
    for name in FACTORS:
        if own := getattr(attr, kind).get(name):
            tensor = getattr(op, name)
            dims = own.desc(tensor).dims
            if op.KIND == "matmul":
                found[name] = dims[-1:] if name == "src" else dims[-2:-1]
            elif name == "weights" and tensor.ndims > op.result.ndims > 2:
                found[name] = dims[2:]  # behind groups
            else:
                found[name] = dims[1:]
    return found
