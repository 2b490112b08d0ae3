"""The order of cases in a run with a time budget, so that the run can end at any case."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dnncore.ops import Operation
from dnncore.tensors.datatypes import data_type
from dnncore.testing.problems.types_and_attributes import direction_of, input_types
from dnncore.testing.running.plan import Job

__all__ = ["Surplus", "in_reach", "in_sample_order", "row_of", "stratum"]

CASES_PER_SECOND = 10  # of a process: more than it runs; each case that it leaves out takes 10 ms

KINDS = {"f64": "f64", "f32": "f32", "f16": "half", "bf16": "half",
         "s32": "integer", "s8": "integer", "u8": "integer"}  # fmt: skip
"""The kinds of types. Types of 4 bits and f8 are the kind `packed`."""


def row_of(op: Operation) -> tuple[str, str, str]:
    """Return an operation's row in the table of coverage: operation, types of inputs, direction."""
    return op.KIND.removesuffix(" backward"), input_types(op), direction_of(op)


def stratum(op: Operation) -> tuple[str, str, str]:
    """Return the stratum of an operation: operation, kind of types, direction.

    The input with the shortest type decides the kind. Strata of all combinations of types would be
    too many, because each stratum has a case in every sample.
    """
    operation, types, direction = row_of(op)
    shortest = min(types.split(":"), key=lambda name: data_type(name).bits)
    return operation, KINDS.get(shortest, "packed"), direction


def in_sample_order(jobs: Iterable[Job], seed: int) -> list[Job]:
    """Return jobs in an order drawn from `seed`. Each prefix of it is a stratified sample.

    A stratum is an operation, the kind of its types, a direction and an engine. Jobs with claims
    come first, then one job of each stratum that has no claims. All these are `required`. Each
    prefix of the other jobs contains about the same share of every stratum. A job's draw depends
    only on the seed and its text.
    """
    drawn = sorted(jobs, key=lambda job: (not job.claim, _draw(str(job), seed)))
    strata = [(job.target, *stratum(job.problem.op)) for job in drawn]
    sizes = Counter(strata)
    ranks: Counter[tuple[str, ...]] = Counter()
    placed = []
    for job, place in zip(drawn, strata, strict=True):
        share = -1.0 if job.claim else ranks[place] / sizes[place]
        placed.append((share, replace(job, required=job.required or not ranks[place])))
        ranks[place] += 1
    return [job for _, job in sorted(placed, key=lambda pair: pair[0])]


@dataclass(frozen=True)
class Surplus:
    """Cases that cannot run within the budget, so that pytest need not handle each."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} cases cannot run within the budget"


def in_reach(jobs: Sequence[Job], seconds: float, processes: int) -> tuple[list[Job], Surplus]:
    """Return the first jobs that might run in a time, and those that must run; and the others."""
    most = round(CASES_PER_SECOND * seconds * processes)
    kept = [job for place, job in enumerate(jobs) if place < most or job.required]
    return kept, Surplus(len(jobs) - len(kept))


def _draw(text: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest()
