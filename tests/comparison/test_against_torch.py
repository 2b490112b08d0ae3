"""Every operation beside torch, over at least 40 problems each, on every engine."""

from __future__ import annotations

from functools import cache

import pytest
from checks import REFERENCE, Target, agree, run
from problems import COUNT, KINDS, inputs_of, problems

import dnncore as dnn
from dnncore.comparison.compare import Expected, expected_outputs
from dnncore.testing.checks.torch_oracle import torch_outputs

# Engines refuse some problems of these: blocks of statistics or of spatial dims, padding, and
# attention without keys.
LIMITED = ("Attention", "BatchNorm", "GroupNorm", "LayerNorm", "Resampling", "RNN")
CASES = [(kind, i) for kind in KINDS for i in range(COUNT)]


@cache
def _problems(kind):
    return list(problems(kind))


@cache
def _round(kind, i):
    """A problem, its inputs, and what torch computes within the reference's error bounds."""
    op = _problems(kind)[i]
    inputs = inputs_of(op)
    bounds = expected_outputs(op, dnn.Attributes(), inputs)
    right = torch_outputs(op, dnn.Attributes(), inputs)
    return op, inputs, {name: Expected(v, bounds[name].noise) for name, v in right.items()}


def test_every_operation_is_drawn():
    exported = {getattr(dnn, name) for name in dnn.__all__}
    kinds = {c for c in exported if isinstance(c, type) and issubclass(c, dnn.Operation)}
    assert set(KINDS) == kinds - {dnn.Operation}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_are_forty_different_problems(kind):
    assert len(set(_problems(kind))) == COUNT >= 40


@pytest.mark.peer
@pytest.mark.parametrize(("kind", "i"), CASES, ids=[f"{kind.__name__}-{i}" for kind, i in CASES])
def test_agrees_with_torch(target: Target, kind, i):
    op, inputs, expected = _round(kind, i)
    may_refuse = target is not REFERENCE and kind.__name__.startswith(LIMITED)
    for pd in target.primitive_descs(op, may_refuse=may_refuse):
        agree(pd, run(pd, inputs), expected)
