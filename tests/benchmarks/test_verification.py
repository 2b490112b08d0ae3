"""Contestants that do not do the work have no speed. Errors are those from float64."""

from __future__ import annotations

import importlib.util
import re
import time
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from benchmarks.contestants.contestant import Contestant, values_of
from benchmarks.measuring import accuracy, contest
from benchmarks.measuring.accuracy import Exact
from benchmarks.measuring.sampling import Times, one_by_one, sampled, timed
from benchmarks.measuring.verification import impossible
from dnncore.problem import read

M, K, N = 24, 40, 16
PRODUCT = f"--matmul {M}x{K}:{K}x{N}"
ORACLES = ["reference", pytest.param("torch", marks=pytest.mark.peer)]


def problem(text):
    (found,) = read(text)
    return found


@pytest.fixture(params=ORACLES)
def oracle(request, monkeypatch):
    """Both sources of exact results."""
    if request.param == "reference":
        known = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "torch" else known(name)
        )
    return request.param


class Honest:
    """A product of matrices by numpy."""

    def __init__(self):
        self.refill(0)

    def refill(self, draw):
        self.src, self.weights = values_of("src", (M, K), draw), values_of("weights", (K, N), draw)
        self.dst = np.full((M, N), np.nan, np.float32)

    def call(self):
        np.matmul(self.src, self.weights, out=self.dst)

    def contestant(self):
        return Contestant(
            type(self).__name__, one_by_one(self.call), lambda: {"dst": self.dst}, self.refill
        )


class Cached(Honest):
    """It always returns the results of the first inputs."""

    def refill(self, draw):
        super().refill(0)


class Lazy(Honest):
    """It computes in the first call only."""

    done = False

    def call(self):
        if not self.done:
            super().call()
        self.done = True


class Zeros(Honest):
    def call(self):
        self.dst[:] = 0


class Idle(Honest):
    def call(self):
        pass


class Partial(Honest):
    """It computes all rows but the last one."""

    def call(self):
        np.matmul(self.src[:-1], self.weights, out=self.dst[:-1])


class PartialLater(Honest):
    """It leaves out a row after the first calls."""

    calls = 0

    def call(self):
        self.calls += 1
        rows = M if self.calls < 3 else M - 1
        np.matmul(self.src[:rows], self.weights, out=self.dst[:rows])


class Smaller(Honest):
    """It computes the product of smaller matrices."""

    def contestant(self):
        made = super().contestant()
        return Contestant("Smaller", made.repeat, lambda: {"dst": self.dst[:8]}, made.refill)


class Shorter(Honest):
    """It leaves out the last terms of each sum."""

    def call(self):
        np.matmul(self.src[:, :-1], self.weights[:-1], out=self.dst)


class Unnamed(Honest):
    """It has no output with the right name."""

    def contestant(self):
        made = super().contestant()
        return Contestant("Unnamed", made.repeat, dict, made.refill)


class Frozen(Honest):
    """It keeps its first inputs."""

    def call(self):
        if not hasattr(self, "kept"):
            self.kept = self.src, self.weights
        np.matmul(*self.kept, out=self.dst)


class Early(Honest):
    """It computes while its inputs change."""

    def refill(self, draw):
        super().refill(draw)
        Honest.call(self)

    def call(self):
        pass


class Late(Honest):
    """It computes when its outputs are read."""

    def call(self):
        pass

    def contestant(self):
        made = super().contestant()
        return replace(made, outputs=lambda: {"dst": self.src @ self.weights})


class Rounded(Honest):
    """Its factors have 16 significant bits."""

    def call(self):
        np.matmul(_with_bits(self.src, 16), _with_bits(self.weights, 16), out=self.dst)


def _with_bits(values, bits):
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent).astype(np.float32)


FORGED = [
    Early,
    Late,
    Rounded,
    Cached,
    Lazy,
    Zeros,
    Idle,
    Partial,
    PartialLater,
    Smaller,
    Shorter,
    Unnamed,
    Frozen,
]


def duel(monkeypatch, ours, *theirs):
    """The outcome of a product with these kinds of contestants."""
    sides = {
        "ours": lambda *_: iter([ours().contestant()]),
        "fake": lambda *_: (kind().contestant() for kind in theirs),
    }
    monkeypatch.setattr(contest, "side", sides.__getitem__)
    return contest.measure(problem(PRODUCT), ["fake"], samples=2)


def test_honest_contestants_have_a_ratio_and_errors(monkeypatch, oracle):
    outcome = duel(monkeypatch, Honest, Honest)
    assert outcome["ratio"] > 0
    assert 0 < outcome["ours_error"] == outcome["peer_error"] < 1e-6
    assert "peer_wrong" not in outcome


@pytest.mark.parametrize("kind", FORGED)
def test_our_forged_result_has_no_speed(monkeypatch, kind):
    outcome = duel(monkeypatch, kind, Honest)
    assert "ratio" not in outcome
    assert re.search("differs from float64|results before it computes", outcome["wrong"])


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_peer_does_not_count(monkeypatch, kind):
    outcome = duel(monkeypatch, Honest, kind, Honest)
    assert outcome["peer_impl"] == "Honest"
    alone = duel(monkeypatch, Honest, kind)
    assert "ratio" not in alone
    assert kind.__name__ in alone["left_out"]


def test_another_side_replaces_a_wrong_one(monkeypatch):
    sides = {"ours": Honest, "cudnn": Zeros, "cudnn-10": Honest}
    monkeypatch.setattr(
        contest, "side", lambda name: lambda *_: iter([sides[name]().contestant()])
    )  # fmt: skip
    outcome = contest.measure(problem(PRODUCT), ["cudnn"], samples=1)
    assert outcome["peer"] == "cudnn-10"
    assert "Zeros differs" in outcome["peer_wrong"]
    sides["cudnn-10"] = Idle
    outcome = contest.measure(problem(PRODUCT), ["cudnn"], samples=1)
    assert "Zeros" in outcome["left_out"]
    assert "Idle" in outcome["left_out"]


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("milliseconds", [0.3, 1, 2])
def test_calls_that_are_counted_but_not_made_are_found(clock, milliseconds):
    def repeating(share):
        """Makes this share of the calls that it counts."""

        def run(count):
            clock.spend(max(1, round(share * count)) * milliseconds / 1e3)
            return count

        return timed(run)

    p = problem(PRODUCT)
    times = sampled([repeating(share) for share in (1, 0.5, 0.1)], 5, pause=0.0)
    assert not impossible(p, times[0], 2)
    assert all("for one call" in impossible(p, found, 2) for found in times[1:])


@pytest.mark.parametrize("cores", [0, 2])
@pytest.mark.parametrize("text", ["--matmul 4096x4096:4096x4096", "--eltwise 64x1024x1024"])
def test_impossible_speeds_are_found(text, cores):
    instant, slow = (Times(1, [seconds] * 3, [seconds] * 3) for seconds in (1e-9, 1.0))
    assert "more than" in impossible(problem(text), instant, cores)
    assert not impossible(problem(text), slow, cores)


def test_products_of_small_types_may_be_faster():
    text = "--matmul --dt={} 4096x4096:4096x4096"
    times = Times(1, [0.05] * 3, [0.05] * 3)  # 2.7 TF/s on two cores
    assert "more than" in impossible(problem(text.format("f32")), times, 2)
    assert not impossible(problem(text.format("bf16")), times, 2)
    assert not impossible(problem(text.format("u8:s8:s32")), times, 2)


def test_taps_in_the_padding_need_no_operations():
    """The outer two of three taps with dilation 36 mostly lie outside of a 65 x 65 image."""
    dilated = "--conv --dir=FWD_I mb4_ic2048oc256_ih65oh65kh3sh1dh35ph36_iw65ow65kw3sw1dw35pw36"
    p = problem(dilated)
    inside = (65 + 2 * 29) ** 2 / (65 * 3) ** 2  # counted by hand: 29 places see an outer tap
    least = p.op.flops * inside / 0.8e12
    late, early = (Times(1, [s] * 3, [s] * 3) for s in (1.01 * least, 0.99 * least))
    assert not impossible(p, late, 2)
    assert "more than" in impossible(p, early, 2)


def test_a_call_alone_may_read_from_memory_what_others_find_in_caches():
    def found(text, alone):
        return impossible(problem(text), Times(8, [2e-4] * 5, [alone] * 5), 2)

    assert not found("--eltwise 1024x2048", 6.5e-4)  # 16 MB
    assert "for one call" in found("--eltwise 1024x2048", 8e-4)
    assert "for one call" in found("--eltwise 16x2048x2048", 6.5e-4)  # no cache holds 512 MB


def test_inputs_change_once_just_before_the_last_sample():
    events = []
    repeat = one_by_one(lambda: time.sleep(0.02))

    def noted(count):
        events.append(count)
        return repeat(count)

    sampled([noted], 2, pause=0.0, refills=[lambda: events.append("refill")])
    assert events[-2:] == ["refill", 1]
    assert events.count("refill") == 1


# -- float64 ---------------------------------------------------------------------------------------

PROBLEMS = [
    "--conv --dir=FWD_I mb2ic16ih8oc32kh3ph1",
    "--conv --dir=BWD_WB g2mb2ic16ih8oc32kh3ph1",
    "--ip --dir=BWD_D mb2ic16ih3oc32",
    "--lrn --dir=BWD_D --tag=abx mb2ic16ih8",
    "--pool --dir=BWD_D --tag=abx mb2ic16ih9kh3sh2",
    "--softmax --dir=BWD_D --dtag=ab --alg=LOGSOFTMAX 4x10",
    "--reorder --stag=abcd --dtag=aBcd16b 2x16x8x8",
    "--eltwise --alg=log 2x16x8x8",
    "--eltwise --alg=swish --alpha=2 2x16x8x8",
]


@pytest.mark.parametrize("draw", [0, 1])
@pytest.mark.parametrize("text", PROBLEMS)
def test_our_results_are_those_of_float64(text, draw, oracle):
    p = problem(text)
    (contestant,) = contest.side("ours")(p, contest.NO_TERMS)
    contestant.refill(draw)
    contestant.repeat(1)
    errors = Exact(p, draw).errors(contestant.outputs())
    assert 0 <= errors.norm < 3e-6
    assert 0 <= errors.largest < 3e-6
    assert not Exact(p, 1 - draw).errors(contestant.outputs()).largest < 1e-3


@pytest.mark.parametrize("data_type", [np.float16, ml_dtypes.bfloat16])
def test_halves_have_the_error_of_their_rounding(data_type, oracle):
    name = "f16" if data_type is np.float16 else "bf16"
    p = problem(f"--matmul --dt={name} {M}x{K}:{K}x{N}")
    src, weights = (
        values_of(n, getattr(p.op, n).dims).astype(data_type) for n in ("src", "weights")
    )
    right = (src.astype(np.float64) @ weights.astype(np.float64)).astype(data_type)
    errors = Exact(p).errors({"dst": right})
    assert errors.largest <= float(ml_dtypes.finfo(data_type).eps)
    wrong = right.copy()
    wrong[3, 4] += 1
    assert Exact(p).errors({"dst": wrong}).largest > 0.01


def test_nan_and_infinities_agree_only_in_the_same_places(oracle):
    p = problem("--eltwise --alg=log 2x16x8x8")
    with np.errstate(invalid="ignore", divide="ignore"):
        right = np.log(values_of("src", p.op.src.dims))
    assert np.isnan(right).any()
    assert Exact(p).errors({"dst": right}).largest < 1e-6
    for value in (0.0, np.nan, np.inf):
        wrong = right.copy()
        wrong[np.isnan(right) if value == 0 else np.isfinite(right)] = value
        assert not Exact(p).errors({"dst": wrong}).largest < 1


def test_a_post_op_that_adds_the_old_result_is_left_out():
    p = problem("--matmul --attr-post-ops=sum:0.5 8x16:16x8")
    with pytest.raises(contest.LeftOut, match="the call before"):
        accuracy.Exact(p)
