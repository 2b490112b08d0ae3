"""PReLU: broadcasts, formats, signs, infinities, in place."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check

import dnncore as dnn
from dnncore.problem import read

WEIGHTS = ["1x7x1x1", "1x1x1x1", "2x7x3x5", "2x1x3x1", "1x1x1x5", "2x7x1x1"]


def the(text):
    (problem,) = read(text)
    return problem.op


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_DW"])
def test_agrees_with_the_reference(target: Target, direction, weights):
    check(target, the(f"--prelu --dir={direction} --stag=abx:abx 2x7x3x5:{weights}"))


@pytest.mark.parametrize("formats", ["axb:abx", "aBx8b:aBx8b", "abx:axb:axb:abx", "aBx8b:abx"])
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_DW"])
def test_formats(target: Target, direction, formats):
    formats = formats if direction == "BWD_DW" else ":".join(formats.split(":")[:2])
    check(target, the(f"--prelu --dir={direction} --stag={formats} 2x19x3x5:1x19x3x1"))


def executed(target, op, **arrays):
    """The outputs of the best implementation."""
    pd = target.primitive_descs(op)[0]
    memories = {
        name: dnn.Memory.from_numpy(np.float32(array), pd.descs[name], target.engine)
        for name, array in arrays.items()
    }
    outputs = {
        row.name: dnn.Memory(desc, target.engine)
        for row, desc in pd.arguments
        if row.direction == "out"
    }
    stream = target.engine.stream()
    pd.primitive().execute(stream, **memories, **outputs).wait()
    return {name: memory.numpy(stream).tolist() for name, memory in outputs.items()}


def test_a_slope_of_one_is_the_identity(target: Target):
    values = [[-2.0, 0.0, 3.0]]
    dst = executed(target, the("--prelu --stag=ab 1x3:1x1"), src=values, weights=[[1]])["dst"]
    assert dst == values


def test_infinities_and_nan(target: Target):
    """The weight of a positive element is not read: 0 times infinity would be NaN."""
    op = the("--prelu --stag=ab 1x4:1x4")
    inf, nan = np.inf, np.nan
    dst = executed(target, op, src=[[inf, -inf, nan, 2]], weights=[[0, 2, 1, inf]])["dst"]
    np.testing.assert_array_equal(dst, [[inf, -inf, nan, 2]])
    op = the("--prelu --dir=BWD_DW --stag=ab --dtag=ab 1x3:1x1")
    found = executed(target, op, src=[[inf, 1, -1]], weights=[[2]], diff_dst=[[3, inf, 5]])
    assert found == {"diff_src": [[3, inf, 10]], "diff_weights": [[-5]]}


def test_gradients_of_weights_without_elements_are_zero(target: Target):
    op = the("--prelu --dir=BWD_DW --stag=ab --dtag=ab 0x3:1x3")
    empty = np.zeros((0, 3))
    found = executed(target, op, src=empty, weights=[[1, 2, 3]], diff_dst=empty)
    assert found["diff_weights"] == [[0, 0, 0]]
