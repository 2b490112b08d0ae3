"""Check of attributes: an implementation computes or refuses them, and never ignores them."""

from __future__ import annotations

from dataclasses import replace

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.attributes import PostOp
from dnncore.errors import DescriptorError
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["attributes", "probes"]


def probes(dims: tuple[int, ...]) -> list[PostOp]:
    """Return a post-op of each kind. Each changes nearly every result."""
    channel = MemoryDesc(tuple(n if d == min(1, len(dims) - 1) else 1 for d, n in enumerate(dims)))
    return [PostOp(kind, **record.probe(channel)) for kind, record in POST_OPS.items()]


def attributes(trial: Trial) -> None:
    """An implementation that accepts an additional post-op of any kind computes it."""
    case = trial.case
    for step in probes(case.op.result.dims):
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
            raise CheckFailed(f"accepts the post-op {step.algorithm or step.kind}, but: {wrong}")


def _is_wrong_without(trial: Trial) -> bool:
    """Whether the implementation is wrong without the post-op; other checks report that."""
    return bool(trial.wrong(trial.case.round("integers"), trial.outputs("integers")))
