"""Tensors that begin behind the start of their buffer: what is copied first begins there once."""

import pytest
from checks import check

from dnncore.problem import read

COPIED = [  # with an offset, in a layout that some implementations copy
    "--ip --dir=BWD_W --wtag=abx --dtag=ba@3x14@3 mb3ic17ih3oc16",
    "--ip --dir=BWD_WB --dtag=ba@1x3@3 mb3ic17oc16",
    "--ip --dir=BWD_WB --wtag=ab --dtag=ab@11x2@64 mb2ic48oc5",
    "--conv --dir=BWD_D --stag=aBcd8b@144x72x24x8@3 --dtag=abcd@60x12x4x1@2 mb1ic16ih3oc5kh3ph1",
]


@pytest.mark.parametrize("text", COPIED)
def test_an_offset_counts_once(target, text):
    (problem,) = read(text)
    check(target, problem.op)
