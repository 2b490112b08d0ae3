"""The built-in backends prove themselves by the kit, as a stranger's backend would.

`make conformance` has the larger sizes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dnncore.testing import conformance
from dnncore.testing.running.plan import Plan
from dnncore.testing.running.sample import in_sample_order, row_of

BACKENDS = Path(__file__).parents[2] / "backends"


def sample(backend: str, *, seed: int) -> type:
    """The tests of one tiny case for each row of the table of coverage."""
    jobs = Plan(backend, "tiny").jobs()
    drawn: dict[tuple[str, ...], str] = {}
    for job in in_sample_order(jobs, seed):
        drawn.setdefault(row_of(job.problem.op), re.escape(job.text))
    match = f" ({'|'.join(drawn.values())})$"
    claims = BACKENDS / backend / "claims.txt"
    return conformance(backend, size="tiny", match=match, claims=claims)


# Without torch, the kit compares the values of the reference with golden values and by algebra
# alone. tests/comparison compares them with other definitions.
TestReference = conformance("reference", size="tiny", claims=BACKENDS / "reference/claims.txt")
TestReferenceByTorch = pytest.mark.peer(conformance("reference"))  # which the kit uses if installed
# `make conformance` runs larger sizes of the other backends, but not of the reference.
TestCpu = sample("cpu_numba", seed=4)
