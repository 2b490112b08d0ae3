"""One-line functions that return several arrays, and those of sequences with states."""

import numpy as np
import pytest

import dnncore as dnn
from dnncore import functional as F

NEAR = {"rtol": 1e-5, "atol": 1e-6}


def random(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("f4")


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_returns_the_logarithm_of_sums(function, axis):
    x = random(3, 4, 5)
    dst, lse = function(x, axis, lse=True)
    right = np.log(np.exp(x.astype(float)).sum(axis, keepdims=True))
    np.testing.assert_allclose(lse, right, **NEAR)
    assert lse.shape == right.shape
    assert np.array_equal(dst, function(x, axis))


def test_sums_of_half_types_and_of_one_number():
    dst, lse = F.softmax(random(2, 7).astype("f2"), lse=True)
    assert (dst.dtype, lse.dtype) == (np.float16, np.float32)
    dst, lse = F.softmax(np.float32(3), lse=True)
    assert (dst.shape, lse.shape, float(lse)) == ((), (), 3)


def test_attention_returns_the_logarithm_of_sums():
    q, k, v = random(2, 4, 3), random(2, 5, 3, seed=1), random(2, 5, 6, seed=2)
    dst, lse = F.scaled_dot_product_attention(q, k, v, scale=2, lse=True)
    scores = 2 * np.einsum("hqd,hkd->hqk", q, k)
    right = np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(lse, right, **NEAR)
    np.testing.assert_allclose(dst, np.exp(scores - right) @ v, **NEAR)


WEIGHTS = {"rnn": 1, "lstm": 4, "gru": 3}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rnn", {"direction": "bidirectional_concat"}),
        ("lstm", {"weights_peephole": random(2, 1, 3, 3, seed=5)}),
        ("gru", {}),
        ("gru", {"linear_before_reset": True}),
    ],
)
def test_a_sequence_in_two_parts(name, options):
    """The states after the first part are those before the second."""
    directions = 2 if "direction" in options else 1
    gates, layers = WEIGHTS[name], 1 if directions == 2 else 2
    x = random(4, 2, 3)
    weights = [random(layers, directions, 3, gates, 3, seed=seed) for seed in (1, 2)]
    function = getattr(F, name)
    whole = function(x, *weights, **options)
    plain, *states = function(x[:2], *weights, states=True, **options)
    assert all(state.shape == (layers, directions, 2, 3) for state in states)
    assert len(states) == (2 if name == "lstm" else 1)
    rest = function(x[2:], *weights, None, *states, **options)
    forward = slice(0, 3)  # the other direction begins at the end
    np.testing.assert_allclose(plain[..., forward], whole[:2, ..., forward], **NEAR)
    np.testing.assert_allclose(rest[..., forward], whole[2:, ..., forward], **NEAR)


@pytest.mark.filterwarnings("ignore::dnncore.ReferenceWarning")
def test_projection_changes_the_size_of_results():
    x, project = random(3, 2, 4), random(1, 1, 5, 2, seed=3)
    weights = random(1, 1, 4, 4, 5, seed=1), random(1, 1, 2, 4, 5, seed=2)
    dst, h, c = F.lstm(x, *weights, weights_projection=project, states=True)
    assert (dst.shape, h.shape, c.shape) == ((3, 2, 2), (1, 1, 2, 2), (1, 1, 2, 5))


def test_attention_of_one_ignores_the_past():
    """u is 0, so that h' is o."""
    x, ones = random(3, 2, 4), np.ones((3, 2, 1), "f4")
    weights = random(1, 1, 4, 3, 5, seed=1), np.zeros((1, 1, 5, 3, 5), "f4")
    got = F.gru(x, *weights, attention=ones)
    np.testing.assert_allclose(got, np.tanh(x @ weights[0][0, 0, :, 2]), **NEAR)
    same = F.gru(x, *weights, attention=0 * ones)
    np.testing.assert_allclose(same, F.gru(x, *weights), **NEAR)


def test_weighted_sums():
    x = random(3, 2, 5)
    np.testing.assert_allclose(F.weighted_sum(list(x)), x.sum(0), **NEAR)
    np.testing.assert_allclose(F.weighted_sum([x[0], x[1]], (0.5, -2)), x[0] / 2 - 2 * x[1], **NEAR)
    assert F.weighted_sum([np.float32(2)]).shape == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.softmax([1], lse=1), "softmax: lse must be True or False; got 1"),
        (lambda: F.log_softmax([1], lse="yes"), "log_softmax: lse must be True or False"),
        (lambda: F.softmax(np.zeros((2, 0), "f4"), lse=True), "lse needs elements along the axis"),
        (
            lambda: F.scaled_dot_product_attention([[1]], [[1]], [[1]], lse=None),
            "lse must be True or False; got None",
        ),
        (lambda: F.rnn([[[1]]], [1], [[[[[1]]]]]), "rnn: weights_layer must be"),
        (lambda: F.gru([[[1]]], [1], [1], states=1, attention=1), "gru: weights_layer must be"),
        (
            lambda: F.rnn([[[1]]], [[[[[1]]]]], [[[[[1]]]]], states=1),
            "rnn: states must be True or False; got 1",
        ),
        (
            lambda: F.gru([[[1]]], [1], [1], linear_before_reset=0),
            "gru: linear_before_reset must be True or False; got 0",
        ),
        (
            lambda: F.lstm(np.ones((4, 2, 3), "f4"), np.ones((8, 3), "f4"), np.ones((8, 2), "f4")),
            r"lstm: weights_layer must be \(layers, D, I, G, H\); got \(8, 3\); help\(",
        ),
        (
            lambda: F.lstm([[[1, 2]]], [[[[[1]] * 4]]], [[[[[1]] * 4]]]),
            r"lstm: src_layer must be \(1, 1, 1\), that is \(T, N, I\) with I = 1 of weights_layer",
        ),
        (
            lambda: F.rnn([[[1]]], [[[[[1, 2]]]]], [[[[[1]]]]]),
            "rnn: H of weights_iter must be H of weights_layer; got 1 and 2",
        ),
        (
            lambda: F.gru([[[1]]], [[[[[1]] * 3]]], [[[[[1]] * 3]]], [[[[1]] * 4]]),
            "gru: bias must have 3 rows u, r, o; got 4 rows; pass linear_before_reset=True for",
        ),
        (
            lambda: F.gru([[[1]]], [[[[[1]] * 3]]], [[[[[1]] * 3]]], [[[[1]] * 2]]),
            r"that is \(layers, D, B, H\) with B = 3 of vanilla_gru; got \(1, 1, 2, 1\)",
        ),
        (lambda: F.weighted_sum([]), "weighted_sum: srcs must be a sequence of one or more arrays"),
        (lambda: F.weighted_sum([[1]], ["x"]), "and scales one of numbers"),
        (lambda: F.weighted_sum([[1], [2]], [1]), "there must be one scale per src"),
        (lambda: F.weighted_sum([[1], [2, 3]]), "src1 must"),
    ],
)
def test_mistakes_are_reported(call, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        call()
