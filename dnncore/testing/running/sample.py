"""The order of cases in a run with a time budget, so that the run can end at any case."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from dnncore.ops import Operation
from dnncore.testing.problems.types_and_attributes import direction_of, input_types
from dnncore.testing.running.plan import Job

__all__ = ["in_sample_order", "stratum"]


def stratum(op: Operation) -> tuple[str, str, str]:
    """Return an operation's row in the table of coverage: operation, types of inputs, direction."""
    return op.KIND.removesuffix(" backward"), input_types(op), direction_of(op)


def in_sample_order(jobs: Iterable[Job], seed: int) -> list[Job]:
    """Return jobs in an order drawn from `seed`. Each prefix of it is a stratified sample.

    A stratum is an operation, the types of its inputs, a direction and an engine. Jobs with claims
    come first, then one job of each stratum. All these are `required`. Each prefix of the other
    jobs contains about the same share of every stratum. A job's draw depends only on the seed and
    its text.
    """
    drawn = sorted(jobs, key=lambda job: _draw(str(job), seed))
    strata = [(job.target, *stratum(job.problem.op)) for job in drawn]
    sizes = Counter(strata)
    ranks: Counter[tuple[str, ...]] = Counter()
    placed = []
    for job, place in zip(drawn, strata, strict=True):
        share = -1.0 if job.claim else ranks[place] / sizes[place]
        placed.append((share, replace(job, required=job.required or not ranks[place])))
        ranks[place] += 1
    return [job for _, job in sorted(placed, key=lambda pair: pair[0])]


def _draw(text: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest()
