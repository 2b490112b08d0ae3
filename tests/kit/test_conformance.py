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


def sample(backend: str, engine: str = "", *, seed: int, words: int) -> type:
    """The tests of one tiny case for each row of the table of coverage, or for several rows.

    words: how many words of a row, its operation, types and direction, make another case.
    """
    jobs = Plan(backend, "tiny", engine).jobs()
    drawn: dict[tuple[str, ...], str] = {}
    for job in in_sample_order(jobs, seed):
        drawn.setdefault(row_of(job.problem.op)[:words], re.escape(job.text))
    match = f" ({'|'.join(drawn.values())})$"
    claims = BACKENDS / backend / "claims.txt"
    return conformance(backend, size="tiny", engine=engine, match=match, claims=claims)


# Without torch, the kit compares the values of the reference with golden values and by algebra
# alone. tests/comparison compares them with other definitions.
TestReference = conformance("reference", size="tiny", claims=BACKENDS / "reference/claims.txt")
TestReferenceByTorch = pytest.mark.peer(conformance("reference"))  # which the kit uses if installed
# `make conformance` runs larger sizes of these two, but not of the reference. The first case of an
# operation and a direction takes long on PoCL, because all slow checks run on it.
TestCpu = sample("cpu_numba", seed=4, words=3)
TestPoCL = pytest.mark.long(sample("opencl", "pocl", seed=8, words=1))
