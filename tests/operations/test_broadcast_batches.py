"""Matrix multiplication over many batch dims, alternately broadcast on either side."""

from __future__ import annotations

import pytest
from checks import Target, check

import dnncore as dnn

BATCHES = {  # src's, weights' and bias' batch dims
    "four_alternating": ((2, 1, 3, 1), (1, 2, 1, 2), (2, 1, 1, 2)),
    "five_alternating": ((2, 1, 2, 1, 3), (1, 2, 1, 3, 1), (1, 1, 1, 1, 3)),
    "ten": ((1, 2, 1, 2, 1, 2, 1, 1, 2, 1), (2, 1, 2, 1, 1, 1, 2, 1, 2, 2), (1,) * 10),
    "none_left": ((2, 1, 0, 1), (1, 2, 1, 2), (1, 2, 1, 1)),
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("depth", [0, 5])
def test_agrees_with_the_reference(target: Target, batches, depth):
    left, right, bias = batches
    whole = tuple(a if b == 1 else b for a, b in zip(left, right, strict=True))
    op = dnn.MatMul(
        src=dnn.MemoryDesc((*left, 3, depth)),
        weights=dnn.MemoryDesc((*right, depth, 4)),
        bias=dnn.MemoryDesc((*bias, 1, 4)),
        dst=dnn.MemoryDesc((*whole, 3, 4)),
    )
    operand = dnn.MemoryDesc((*(1 if i % 2 else n for i, n in enumerate(whole)), 3, 1))
    check(target, op, dnn.Attributes(post_ops=[dnn.PostOp.binary("mul", operand)]))
