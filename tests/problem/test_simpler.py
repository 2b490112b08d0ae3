"""Simpler problems, and the search for the simplest failing one."""

import pytest

from dnncore.problem import DRIVERS, read
from dnncore.problem.simpler import simpler_problems, simplest
from dnncore.testing.problems.random_problems import draw


def reduced(text, fails):
    """The simplest problem for which `fails` is true."""
    (problem,) = read(text)

    def simpler(current):
        before = None
        while before != current():
            before = current()
            yield from simpler_problems(before)

    return simplest(problem, simpler, fails, 2000)


@pytest.mark.parametrize(
    ("text", "fails", "expected"),
    [
        (
            "--conv --dir=FWD_D --stag=acdb mb4ic6oc8_ih9kh3ph1",
            lambda op: op.src.dims[2] > 4,
            "ih5",
        ),
        ("--conv --dir=FWD_D mb4ic6oc8_ih9kh3ph1", lambda op: op.weights.dims[3] > 1, "kw2"),
        ("--matmul --stag=ba 12x40:40x7", lambda op: op.src.dims[1] > 6, "--matmul 1x7:7x1"),
        ("--binary 4x5x6:1x5x1", lambda op: op.src0.dims[1] > 2, "--binary 1x3x1:1x1x1"),
        ("--reduction 4x5x6:4x1x6", lambda op: op.dst.dims[2] > 1, ":1x1x2"),
        ("--lrn ic16ih4", lambda op: op.src.dims[1] > 2, "mb1_ic3_ih1iw1"),
        ("--pool --dir=BWD_D ic4_ih9kh3sh2ph1", lambda op: op.kernel[0] > 2, "kh3"),
    ],
)
def test_what_matters_remains(text, fails, expected):
    found = reduced(text, lambda problem: fails(problem.op))
    assert expected in str(found)
    assert fails(found.op)


def test_options_that_do_not_matter_are_left_out():
    text = "--eltwise --alg=tanh --tag=axb --attr-scratchpad=user --attr-post-ops=relu 3x4x5"
    assert str(reduced(text, lambda problem: True)) == "--eltwise 1x1x1"


def test_names_of_implementations_and_directions_are_kept():
    text = "--eltwise --dir=BWD_D --impl=cpu_numba:* --skip-impl=reference:* 3x4"
    assert str(reduced(text, lambda problem: True)) == text.replace("3x4", "1x1")


@pytest.mark.parametrize("driver", DRIVERS)
def test_simpler_problems_are_valid_and_differ(driver):
    for problem in draw(4, driver):
        for simpler in simpler_problems(problem):
            assert simpler != problem
            assert read(str(simpler)) == [simpler]


def test_the_search_ends_after_some_tries():
    tried = []

    def fails(value):
        tried.append(value)
        return True

    assert simplest(100, lambda current: iter(range(99, 0, -1)), fails, 5) == 95
    assert tried == [99, 98, 97, 96, 95]
