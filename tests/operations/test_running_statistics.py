"""Batch normalization in training: running statistics, saved statistics, both modes."""

from typing import Any

import numpy as np
import pytest

import dnncore as dnn
from dnncore import functional as F

NEAR = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def on_target(target, monkeypatch):
    """Make the target's engine the default, and its implementations the only ones."""
    monkeypatch.setenv("DNNCORE_ENGINE", target.engine_name)
    monkeypatch.setenv("DNNCORE_IMPL", target.impl)
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", target.skip_impl)


@pytest.fixture(scope="module")
def batch():
    return np.random.default_rng(0).normal(100, 2, (3, 4, 2, 5)).astype("f4")


def as_defined(batch, old_mean, old_variance, f, epsilon, axes):
    """The definition in float64."""
    x = batch.astype(float)
    mean, n = x.mean(axes, keepdims=True), np.prod([x.shape[axis] for axis in axes])
    squares = ((x - mean) ** 2).sum(axes, keepdims=True)
    inverse = 1 / np.sqrt(squares / n + epsilon)
    unbiased = squares / (n - 1)
    flat = [part.squeeze(axes) for part in (mean, squares / n, inverse, unbiased)]
    running = old_mean + f * (flat[0] - old_mean), old_variance + f * (flat[3] - old_variance)
    return (x - mean) * inverse, *flat[:3], *running


@pytest.mark.parametrize("per_activation", [False, True])
@pytest.mark.usefixtures("on_target")
def test_results_are_those_of_the_definition(batch, per_activation):
    shape, axes = ((4, 2, 5), (0,)) if per_activation else ((4,), (0, 2, 3))
    old = np.linspace(90, 99, np.prod(shape), dtype="f4").reshape(shape)
    expected = as_defined(batch, old, old / 50, 0.25, 0.5, axes)
    got = F.batch_norm_training(
        batch, old, old / 50,
        average_factor=0.25, epsilon=0.5, per_activation=per_activation,
    )  # fmt: skip
    for name, one, right in zip(got._fields, got, expected, strict=True):
        assert one.shape == right.shape, name
        np.testing.assert_allclose(one, right, err_msg=name, rtol=1e-4, atol=1e-4)
    again = F.batch_norm(
        batch, got.mean, got.variance, epsilon=0.5, per_activation=per_activation
    )  # fmt: skip
    np.testing.assert_allclose(again, got.dst, **NEAR)


def test_the_average_factor_1_over_the_count_gives_averages(batch):
    mean: Any = np.float32([7] * 4)
    variance: Any = np.float32([9] * 4)
    for i, part in enumerate((batch, batch + 1, 2 * batch)):
        y = F.batch_norm_training(part, mean, variance, average_factor=1 / (1 + i))
        mean, variance = y.running_mean, y.running_variance
    own, unbiased = batch.mean((0, 2, 3)), batch.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(mean, (4 * own + 1) / 3, **NEAR)
    np.testing.assert_allclose(variance, 2 * unbiased, **NEAR)


def test_one_element_and_none_per_channel():
    one = F.batch_norm_training([[5, 7]], [1, 1], [3, 3], average_factor=0.5)
    assert one.running_mean.tolist() == [3, 4]
    assert one.running_variance.tolist() == [1.5, 1.5]  # the variance of one element is 0
    none = F.batch_norm_training(np.zeros((0, 2), "f4"), [1, 1], [3, 3])
    assert none.dst.shape == (0, 2)
    assert none.running_mean.tolist() == [1, 1]
    assert none.running_variance.tolist() == [3, 3]
    assert F.batch_norm_training([[1], [3]]).running_mean is None


def test_activations_and_half_types(batch):
    scale, shift = np.float32([1, 2, 3, 4]), np.float32([0, 1, 0, -1])
    plain = F.batch_norm_training(batch, scale=scale, shift=shift)
    clipped = F.batch_norm_training(batch, scale=scale, shift=shift, activation="relu")
    np.testing.assert_allclose(clipped.dst, np.maximum(plain.dst, 0), **NEAR)
    half = F.batch_norm_training((batch - 100).astype("f2"))
    assert half.dst.dtype == np.float16
    assert half.mean.dtype == half.inverse_variance.dtype == np.float32


def test_the_given_arrays_are_not_written(batch):
    mean, variance = np.zeros(4, "f4"), np.ones(4, "f4")
    F.batch_norm_training(batch, mean, variance)
    assert not mean.any()
    assert (variance == 1).all()


@pytest.mark.peer
@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_torch_agrees(batch, factor):
    torch = pytest.importorskip("torch")
    scale, shift, mean, variance = map(
        torch.tensor, np.float32([[2] * 4, [1] * 4, [9] * 4, [3] * 4])
    )
    src = torch.tensor(batch)
    got = F.batch_norm_training(src, mean, variance, scale, shift, average_factor=factor)
    right = torch.nn.functional.batch_norm(
        src, mean, variance, scale, shift, training=True, momentum=factor
    )
    torch.testing.assert_close(got.dst, right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.running_mean, mean)
    torch.testing.assert_close(got.running_variance, variance, rtol=1e-4, atol=1e-4)
    _, saved, inverse = torch.native_batch_norm(src, scale, shift, None, None, True, 0.0, 1e-5)
    torch.testing.assert_close(got.mean, saved)
    torch.testing.assert_close(got.inverse_variance, inverse, rtol=1e-4, atol=1e-4)


X = np.ones((2, 3, 4), "f4")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.batch_norm_training(X, average_factor=1.5),
            "average_factor must be a number from 0 to 1; got 1.5",
        ),
        (lambda: F.batch_norm_training(X, average_factor=True), "from 0 to 1; got True"),
        (lambda: F.batch_norm_training(X, running_mean=[1] * 3), "must both be given or both"),
        (
            lambda: F.batch_norm_training(X, [1], [1]),
            r"running_mean must be of the shape \(3,\) of mean; got \(1,\)",
        ),
        (
            lambda: F.batch_norm_training(X, np.zeros(3), np.ones(3)),
            "batch_norm_training: running_mean must not be float64; convert it to float32",
        ),
        (
            lambda: F.batch_norm_training(X, scale=[1] * 3, per_activation=True),
            r"scale must be of the shape \(3, 4\), a number per element of an image; got \(3,\)",
        ),
        (
            lambda: F.batch_norm([1.0], per_activation=True),
            r"src must have at least 2 dims; got \(1,\)",
        ),
        (
            lambda: F.batch_norm(X, per_activation=1),
            "per_activation must be True or False; got 1",
        ),
        (lambda: F.batch_norm_training(X, activation="x"), "activation must be one of abs"),
    ],
)
def test_mistakes_are_reported(call, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        call()
