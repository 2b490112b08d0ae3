"""The checks themselves: each kind of broken implementation is caught, and told by its fault."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check
from toy import Relu, registered, relu

import dnncore as dnn
from dnncore.backend import HostFunction

BROKEN = Target("broken", "cpu", impl="toybackend:*")
PLAIN = dnn.MemoryDesc((3, 5))
PADDED = dnn.MemoryDesc((3, 5), "f32", "aB4b")


class Faulty(Relu):
    """Relu as `function(src, dst)` computes it."""

    def __init__(self, function):
        super().__init__(f"toybackend:{function.__name__}")
        self.function = function

    def build(self):
        return HostFunction(self.function)


def correct(src, dst):
    relu(src, dst)


def inexact(src, dst):
    dst.desc.pack(np.maximum(src.numpy(), 0) * np.float32(1.00001), dst.buffer)


def one_nan(src, dst):
    relu(src, dst)
    dst.buffer[:4] = 0xFF


def past_the_end(src, dst):
    relu(src, dst)
    dst.buffer[dst.desc.nbytes] = 0


def into_the_padding(src, dst):
    relu(src, dst)
    dst.desc.view(dst.buffer)[0, 1, 3] = 1.0


def not_everything(src, dst):
    relu(src, dst)
    dst.buffer[-4200:-4096] = 0xFF


def over_the_input(src, dst):
    relu(src, dst)
    src.buffer[:4] = 0


@pytest.mark.parametrize(
    ("function", "desc", "message"),
    [
        (inexact, PLAIN, r"toybackend:inexact: dst: WRONG: norm-wise error 1e-05"),
        (one_nan, PLAIN, r"NaN or inf differ in 1 place.*worst at \[0, 0\]: got nan"),
        (
            past_the_end,
            PLAIN,
            r"bytes outside of the tensor were written: 1 byte changed, from byte 60",
        ),
        (into_the_padding, PADDED, r"padding is not zero"),
        (not_everything, PLAIN, r"NaN or inf differ"),
        (over_the_input, PLAIN, r"src was written to"),
    ],
)
def test_a_fault_is_found(function, desc, message):
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    with registered(Faulty(function)), pytest.raises(AssertionError, match=message):
        check(BROKEN, op)


@pytest.mark.parametrize("desc", [PLAIN, PADDED])
def test_what_is_right_passes(desc):
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    with registered(Faulty(correct)):
        check(BROKEN, op)


def test_no_implementation_fails_unless_it_may_be():
    op = dnn.EltwiseForward("forward_inference", "tanh", src=PLAIN, dst=PLAIN)
    with registered(Faulty(correct)):
        with pytest.raises(pytest.fail.Exception, match="computes relu; got tanh"):
            check(BROKEN, op)
        with pytest.raises(pytest.skip.Exception, match="no implementation that accepts"):
            check(BROKEN, op, may_refuse=True)
