"""Every implementation agrees with stored results of torch, and torch still computes them."""

from __future__ import annotations

from functools import cache

import pytest
from checks import REFERENCE, Round, Target, agree, run
from instruction_sets import in_turn
from ml_dtypes import finfo
from numpy.testing import assert_allclose
from problems import KINDS
from torch_values import FILE, inputs_of, stored_outputs, texts, wanted

import dnncore as dnn
from dnncore.problem import Problem, read
from dnncore.testing.checks.torch_oracle import torch_outputs

# Not every engine accepts f16, bf16, recurrent cells, attention with attributes, and Winograd's
# algorithm for gradients of weights.
OPTIONAL = [
    text
    for text in texts()
    if "f16" in text or "--rnn" in text or "--sdpa" in text or ("BWD_W" in text and "wino" in text)
]
COMMON = [text for text in texts() if text not in OPTIONAL]


@cache
def _round(text: str) -> tuple[Problem, Round]:
    """A problem, its inputs, and torch's results within the reference's error bounds."""
    (problem,) = read(text)
    return problem, Round(problem.op, problem.attr, inputs_of(problem), stored_outputs)


def _check(pd: dnn.PrimitiveDesc, given: Round) -> None:
    agree(pd, run(pd, given.inputs), given.expected)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("text", COMMON)
def test_agrees_with_torch(target: Target, text):
    problem, given = _round(text)
    for pd in in_turn(target.primitive_descs(problem.op, problem.attr)):
        _check(pd, given)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("text", OPTIONAL)
def test_agrees_with_torch_where_it_is_accepted(target: Target, text):
    """The reference accepts all."""
    problem, given = _round(text)
    may_refuse = target is not REFERENCE
    for pd in in_turn(target.primitive_descs(problem.op, problem.attr, may_refuse=may_refuse)):
        _check(pd, given)


# -- the file --------------------------------------------------------------------------------------


def test_results_of_every_operation_are_stored():
    assert {type(read(text)[0].op) for text in texts()} == set(KINDS)


def test_the_file_is_small():
    assert FILE.stat().st_size < 600_000


@pytest.mark.peer
def test_the_file_has_the_whole_list():
    assert texts() == [str(problem) for problem in wanted()]


@pytest.mark.peer
@pytest.mark.parametrize("text", texts())
def test_torch_computes_what_is_stored(text):
    """Up to one unit in the last place, since float64's roundings depend on the processor."""
    (problem,) = read(text)
    stored = stored_outputs(problem.op, problem.attr)
    got = torch_outputs(problem.op, problem.attr, inputs_of(problem))
    assert got.keys() == stored.keys()
    for name, values in got.items():
        eps = 0.0 if values.dtype.kind in "iu" else float(finfo(values.dtype).eps)
        assert_allclose(values.astype(float), stored[name].astype(float), rtol=eps, err_msg=name)
