"""A run of the kit with a time budget: the order of its cases, and what it leaves out."""

import re
from collections import Counter
from pathlib import Path

import pytest
from test_kit_suite import REFERENCE, SUITE

from dnncore.problem import read
from dnncore.testing.running.plan import Plan
from dnncore.testing.running.sample import Surplus, in_reach, in_sample_order, row_of, stratum

CLAIMS = Path(__file__).parents[2] / "backends/reference/claims.txt"
JOBS = Plan("reference", "smoke").jobs()


def strata(jobs):
    return Counter((job.target, *stratum(job.problem.op)) for job in jobs)


def test_one_case_of_each_stratum_comes_first_and_is_required():
    order = in_sample_order(JOBS, seed=7)
    required = [job for job in order if job.required]
    assert order[: len(required)] == required
    assert strata(required) == Counter(strata(JOBS).keys())
    assert sorted(map(str, order)) == sorted(map(str, JOBS))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_each_beginning_has_the_same_share_of_every_stratum(share):
    order = in_sample_order(JOBS, seed=7)
    sizes, found = strata(JOBS), strata(order[: int(share * len(order))])
    shares = [found[s] / size for s, size in sizes.items() if size >= 20]
    assert len(shares) > 3
    assert max(shares) - min(shares) < 0.1


def test_cases_that_cannot_run_in_time_are_left_out_at_once():
    order = in_sample_order(JOBS, seed=7)
    required = sum(job.required for job in order)
    kept, surplus = in_reach(order, seconds=10.0, processes=2)
    assert kept == order[:200]
    assert surplus.count == len(order) - 200
    kept, surplus = in_reach(order, seconds=0.1, processes=1)
    assert kept == order[:required]
    assert in_reach(order, seconds=1e6, processes=1) == (order, Surplus(0))


def test_the_seed_decides_the_order_and_other_cases_do_not():
    first, again, other = (list(map(str, in_sample_order(JOBS, seed))) for seed in (7, 7, 8))
    assert first == again != other
    fewer = [job for job in JOBS if "--softmax" in job.text]
    assert list(map(str, in_sample_order(fewer, 7))) == [s for s in first if "--softmax" in s]


def test_a_run_without_time_has_one_case_of_each_stratum(kit):
    expected = len(strata(Plan("reference", "tiny").jobs()))
    options = ("--dnncore-budget=0", "--dnncore-seed=3", "-n", "2")
    code, output = kit(*SUITE, *REFERENCE, *options)
    assert code == 0, output
    said = re.search(r"^sample: (\d+) of (\d+) cases, .* --dnncore-seed=3$", output, re.M)
    assert [int(number) for number in said.groups()] == [
        expected,
        len(Plan("reference", "tiny").jobs()),
    ]


def test_a_run_without_time_misses_a_floor(kit):
    code, output = kit(*SUITE, *REFERENCE, "--dnncore-budget=0", "--dnncore-floor=1000")
    assert code == 1
    assert "fewer than the floor of 1000" in output


def test_a_run_with_time_enough_leaves_nothing_out(kit):
    options = ("--dnncore-match=--sum", "--dnncore-budget=600")
    code, output = kit(*SUITE, *REFERENCE, *options)
    count = len(Plan("reference", "tiny", match="--sum").jobs())
    assert code == 0
    assert f"sample: {count} of {count} cases" in output


@pytest.mark.parametrize("budget", ["-1", "nan", "inf"])
def test_a_budget_is_a_number_of_seconds(kit, budget):
    code, output = kit(*SUITE, *REFERENCE, f"--dnncore-budget={budget}")
    assert code == pytest.ExitCode.INTERRUPTED
    assert f"--dnncore-budget: expected seconds of at least 0; got {float(budget)}" in output


@pytest.mark.parametrize(
    ("text", "types", "kind"),
    [
        ("--eltwise --alg=relu --dt=f32 2x3", "f32", "f32"),
        ("--eltwise --alg=relu --dt=bf16 2x3", "bf16", "half"),
        ("--matmul --dt=u8:s8:f32 2x3:3x4", "u8:s8", "integer"),
        ("--matmul --dt=f32:u4:f32 2x3:3x4", "f32:u4", "packed"),
        ("--matmul --dt=f64 2x3:3x4", "f64", "f64"),
    ],
)
def test_a_row_of_the_table_has_types_and_a_stratum_their_kind(text, types, kind):
    (problem,) = read(text)
    operation, own, direction = row_of(problem.op)
    assert own == types
    assert stratum(problem.op) == (operation, kind, direction)


def test_claims_come_first_and_their_strata_need_no_other_case():
    plan = Plan("reference", "smoke", match="--sum|--softmax", claims=CLAIMS)
    order = in_sample_order(plan.jobs(), seed=7)
    required = [job for job in order if job.required]
    assert order[: len(required)] == required
    assert required[0].claim
    others = strata(job for job in required if not job.claim)
    assert others == Counter(strata(order).keys() - strata(job for job in required if job.claim))
