"""Depthwise convolutions where kernels of vectors end: channels, lines, taps, and mixed layouts."""

from __future__ import annotations

import pytest
from checks import Target, check
from combinations import every
from test_convolution import DIRECTIONS, FORWARD, Problem

import dnncore as dnn

PROBLEMS = {
    "one_channel": Problem((2, 1, 5, 33), (1, 1, 1, 3, 3), padding_l=(1, 1)),
    "three_channels": Problem((2, 3, 6, 7), (3, 1, 1, 3, 3), padding_l=(1, 1)),
    "channels_17": Problem((1, 17, 6, 17), (17, 1, 1, 3, 3), padding_l=(1, 1)),
    "channels_33": Problem((3, 33, 4, 5), (33, 1, 1, 3, 3), padding_l=(1, 1)),
    "stride2_line_40": Problem((1, 16, 5, 40), (16, 1, 1, 3, 3), strides=(2, 2), padding_l=(1, 1)),
    "stride3": Problem((1, 8, 9, 31), (8, 1, 1, 2, 3), strides=(3, 3)),
    "dilated": Problem((1, 5, 9, 18), (5, 1, 1, 3, 3), dilations=(1, 2), padding_l=(2, 3)),
    "taps_81": Problem((1, 18, 9, 20), (18, 1, 1, 9, 9), padding_l=(4, 4)),
    "taps_1089": Problem((1, 2, 34, 33), (2, 1, 1, 33, 33), bias=False),
    "lines": Problem((2, 20, 50), (20, 1, 1, 5), padding_l=(2,), padding_r=(0,)),
    "volume": Problem((2, 9, 4, 5, 18), (9, 1, 1, 3, 2, 3), padding_l=(1, 0, 1)),
    "two_of_nine_groups": Problem((2, 18, 5, 9), (9, 2, 2, 3, 3), padding_l=(1, 1)),
    "four_of_nine_groups": Problem(
        (1, 36, 6, 7), (9, 4, 4, 3, 3), strides=(2, 2), padding_l=(1, 1)
    ),
    "four_with_taps_81": Problem((1, 16, 9, 20), (4, 4, 4, 9, 9), padding_l=(4, 4)),
    "eight_of_eight_groups": Problem((2, 64, 4, 17), (8, 8, 8, 3, 3), padding_l=(1, 1)),
    "six_to_two": Problem((1, 30, 5, 6), (5, 2, 6, 3, 3), padding_l=(1, 1)),
    "eight_to_twelve": Problem((1, 40, 5, 6), (5, 12, 8, 2, 3), dilations=(0, 1), padding_l=(1, 1)),
    "four_in_a_volume": Problem((2, 8, 4, 5, 6), (2, 4, 4, 3, 2, 3), padding_l=(1, 0, 1)),
    "no_image": Problem((0, 16, 6, 6), (16, 1, 1, 3, 3), padding_l=(1, 1)),
}
LAYOUTS = {
    "channels_outside": ("abcde", "abcde"),
    "channels_inside": ("acdeb", "acdeb"),
    "inside_to_outside": ("acdeb", "abcde"),
    "images_inside": ("bcdea", "cdeba"),
    "blocks": ("aBcde16b", "aBcde8b"),
}


def tag(letters: str, dims: tuple[int, ...]) -> str:
    """A tag of five dims cut down to fewer."""
    return "".join(c for c in letters if not c.isalpha() or ord(c.lower()) - 97 < len(dims))


@pytest.mark.in_turn(4)
@every(4, ("direction", DIRECTIONS), ("name", PROBLEMS), ("layouts", LAYOUTS))
def test_agrees_with_the_reference(target: Target, name, direction, layouts):
    problem = PROBLEMS[name]
    src, dst = (tag(letters, problem.src) for letters in LAYOUTS[layouts])
    check(target, problem.op(direction, src, None, dst))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["channels_17", "stride2_line_40", "four_of_nine_groups"])
def test_post_ops_are_applied_once_to_each_element(target: Target, name, layouts):
    problem = PROBLEMS[name]
    op = problem.op(FORWARD, tag(layouts[0], problem.src), None, tag(layouts[1], problem.src))
    dims = op.dst.dims
    slope = dnn.MemoryDesc((1, dims[1], 1, 1), "f32", "aBcd8b")
    other = dnn.MemoryDesc((dims[0], 1, dims[2], dims[3]))
    condition = dnn.MemoryDesc((1, dims[1], 1, dims[3]), "s8", "aBcd16b")
    attr = dnn.Attributes(
        post_ops=[
            dnn.PostOp.sum(2.0),
            dnn.PostOp.prelu(slope),
            dnn.PostOp.binary("select", other, condition),
        ]
    )
    check(target, op, attr)
