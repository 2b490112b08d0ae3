"""The kit catches lost precision in every operation that multiplies, and nothing else."""

from __future__ import annotations

import re

import numpy as np
import precision_faults
import pytest
from precision_faults import KIND

import dnncore as dnn
from dnncore.comparison.compare import against_reference, expected_outputs
from dnncore.problem import read
from dnncore.testing import run_case


@pytest.fixture(scope="module", autouse=True)
def plugin():
    dnn.register(precision_faults)
    yield
    dnn.unregister(precision_faults)


def random(text, name, check="random"):
    """The failures of the check of random numbers, or of another check."""
    (problem,) = read(text)
    result = run_case(problem, dnn.engine(KIND), impl=f"{KIND}:{name}", checks=[check])
    assert result.impl_names == (f"{KIND}:{name}",), str(result)
    return [failure.message for failure in result.failures]


def products(terms, options=""):
    """Problems with about 64 results and so many terms, by operation."""
    return [
        f"--matmul {options} 8x{terms}:{terms}x8",
        f"--ip --dir=FWD_D {options} mb8ic{terms}oc8",
        f"--ip --dir=BWD_D {options} mb8ic8oc{terms}",
        f"--ip --dir=BWD_W {options} mb{terms}ic8oc8",
        f"--conv --dir=FWD_D {options} mb1ic{terms}ih4oc4kh1",
        f"--conv --dir=BWD_D {options} mb1ic4ih4oc{terms}kh1",
        f"--conv --dir=BWD_W {options} mb{terms}ic8ih1oc8kh1",
    ]


def halves(terms, options, place):
    """A problem in a 16-bit type, or with a result in f32."""
    text = products(terms, options)[place]
    directions = [words for direction, words in WIDE.items() if direction in text]
    return text.replace("wide", f"--dt={(*directions, WIDE['FWD_D'])[0]}")


WINDOWS = [
    "--conv --dir=FWD_D mb2ic11ih4oc4kh3ph1",
    "--conv --dir=BWD_D mb2ic4ih4oc11kh3ph1sh2",
    "--conv --dir=BWD_W mb4ic4ih5oc4kh3ph1",
    "--conv --dir=FWD_D g4mb2ic8ih4oc8kh3ph1",
    "--conv --dir=BWD_D g8mb2ic8ih4oc8kh3ph1",
    "--conv --dir=BWD_W g8mb2ic8ih6oc8kh3ph1",
    "--binary --alg=mul 8x8:8x8",
]
FEW = ["--matmul 1x300:300x1", "--ip --dir=BWD_W mb90ic1oc3", "--conv --dir=FWD_D mb1ic9ih3oc2kh3"]
HALF = ("--dt=f16", "--dt=bf16", "wide")
WIDE = {"FWD_D": "f16:f16:f32", "BWD_D": "f32:f16:f16", "BWD_W": "f16:f32:f16"}


@pytest.mark.parametrize("text", [*products(2), *products(100), *WINDOWS, *FEW])
@pytest.mark.parametrize("bits", [11, 13, 16, 20])
def test_rounded_factors_are_caught(text, bits):
    assert random(text, f"bits_{bits}")


@pytest.mark.parametrize("text", products(20_000))
@pytest.mark.parametrize("bits", [11, 16])
def test_rounded_factors_are_caught_in_long_sums(text, bits):
    assert random(text, f"bits_{bits}")


@pytest.mark.parametrize("options", HALF)
@pytest.mark.parametrize("place", range(len(products(1))))
def test_rounded_halves_are_caught(place, options):
    bits = 6 if "bf16" in options else 8
    assert random(halves(100, options, place), f"bits_{bits}")


@pytest.mark.parametrize("options", HALF)
@pytest.mark.parametrize("place", range(len(products(1))))
def test_sums_in_halves_are_caught(place, options):
    assert random(halves(64, options, place), "sums_in_type")


@pytest.mark.parametrize("text", [*products(16), *products(64), *products(1000)])
def test_sums_that_are_rounded_towards_zero_are_caught(text):
    (message,) = random(text, "sums_towards_zero")
    assert "lost precision" in message or "WRONG" in message


@pytest.mark.parametrize("options", ["--dt=f16", "--dt=bf16"])
@pytest.mark.parametrize("place", range(len(products(1))))
def test_results_that_are_rounded_towards_zero_are_caught(place, options):
    (message,) = random(products(100, options)[place], "cuts_results")
    assert "lost precision" in message


@pytest.mark.parametrize("name", ["last_row", "last_columns"])
def test_lost_precision_of_a_few_rows_is_caught_and_located(name):
    (message,) = random("--matmul 97x200:200x103", name)
    assert "lost precision" in message
    assert ("at a = 96" if name == "last_row" else "at b = 101; 2 of 103") in message


@pytest.mark.parametrize("text", [*products(100), *products(100, "--dt=bf16"), *WINDOWS, *FEW])
def test_right_results_pass(text):
    assert not random(text, "right")


# -- claims ----------------------------------------------------------------------------------------

EVERY = [*products(9), WINDOWS[-1]]
WINOGRAD = "--conv --dir=FWD_D --alg=wino mb1ic4ih6oc4kh3ph1"


@pytest.mark.parametrize("text", [*EVERY, WINOGRAD])
@pytest.mark.parametrize("name", ["claims_much", "claims_more"])
def test_a_claim_does_not_excuse_zeros(text, name):
    (message,) = random(text, name)
    claimed = {"claims_much": r"1e\+30", "claims_more": "9"}[name]
    permitted = "8.1" if text is WINOGRAD else "1"
    assert re.search(f"claims the error factor {claimed}; .* permits {permitted}$", message)
    (message,) = random(text, name, "integers")
    assert "dst: WRONG" in message or "diff_" in message


@pytest.mark.parametrize("text", EVERY)
def test_direct_sums_of_integers_are_exact_whatever_is_claimed(text):
    (message,) = random(text, "inexact", "integers")
    assert "WRONG" in message


def test_winograd_s_results_of_integers_may_be_rounded():
    assert not random(WINOGRAD, "inexact", "integers")


def test_comparisons_with_the_reference_do_not_believe_a_claim():
    op = read(EVERY[0])[0].op
    engine = dnn.engine(KIND)
    pd = dnn.PrimitiveDesc(op, engine, impl=f"{KIND}:claims_much")
    arguments = {
        argument.name: dnn.Memory.from_numpy(np.ones(desc.dims, desc.dtype), desc, engine)
        for argument, desc in pd.arguments
    }
    found = against_reference(pd, arguments, engine.stream())["dst"]
    assert not found.ok
    assert found.error_factor == 1.0


def test_the_factor_is_printed_where_it_is_used():
    op = read(WINOGRAD)[0].op
    inputs = {name: np.ones(getattr(op, name).dims, np.float32) for name in ("src", "weights")}
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    assert "; error factor 8.09" in str(right.check(right.values, error_factor=8.09))
    assert "error factor" not in str(right.check(right.values))
