"""Check of attributes: an implementation computes or refuses them, and never ignores them."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase
from zlib import crc32

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.errors import DescriptorError
from dnncore.post_op import PostOp
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["attributes", "probes"]


PER_CHANNEL = 2
LARGE_BYTES = 2**17  # of tensors. Larger cases test sizes, not ways to call


def probes(
    dims: tuple[int, ...], mask: int = PER_CHANNEL, *, is_reversed: bool = False
) -> list[PostOp]:
    """Return a post-op of each kind that may follow any operation. Each changes nearly every
    result.

    mask: bit d is set if operands have the size of dim d; else they have size 1. Operands
        of tensors of one dim always have its size.
    is_reversed: whether the first dim of operands is the innermost one, and the last the outermost.
    """
    mask = mask if len(dims) > 1 else 1
    own = tuple(n if mask >> d & 1 else 1 for d, n in enumerate(dims))
    operand = MemoryDesc(own, "f32", ascii_lowercase[: len(dims)][::-1] if is_reversed else None)
    return [
        PostOp(kind, **record.probe(operand))
        for kind, record in POST_OPS.items()
        if record.probe is not None
    ]


def attributes(trial: Trial) -> None:
    """An implementation that accepts an additional post-op of any kind and mask computes it.

    Large problems get only two post-ops. These show whether a sum was complete before post-ops.
    """
    case = trial.case
    dims = case.attr.stored(case.op).dims
    number = crc32(case.text.encode())  # the number differs from case to case
    others = probes(dims, number % (1 << len(dims)), is_reversed=bool(number >> 16 & 1))
    steps = [*probes(dims), *others]
    if case.op.bytes > LARGE_BYTES:
        steps = [PostOp.eltwise("linear", 2.0, 1.0), PostOp.sum()]
    for step in dict.fromkeys(steps):
        attr = replace(case.attr, post_ops=(*case.attr.post_ops, step))
        try:
            pd = case.sibling(trial, attr)
        except DescriptorError:
            continue  # the core refuses the chain for this result
        if pd is None:
            continue
        given = case.round("integers", attr)
        wrong = trial.wrong(given, trial.execute(given.inputs, pd=pd))
        if wrong and not _is_wrong_without(trial):
            name = step.algorithm or step.kind
            operand = "".join(f" with an operand {desc}" for _, desc in step.operands)
            raise CheckFailed(f"accepts the post-op {name}{operand}, but: {wrong}")


def _is_wrong_without(trial: Trial) -> bool:
    """Whether the implementation is wrong without the post-op. Other checks report this."""
    return bool(trial.wrong(trial.case.round("integers"), trial.outputs("integers")))
