"""dnncore.functional: the examples of its docstrings, values against numpy's, mistakes."""

import doctest
import importlib
import inspect
import itertools
import pickle
import pkgutil
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import dnncore as dnn
from dnncore import functional as F
from dnncore import observers
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.functional import keywords
from dnncore.observers import Observer

MODULES = sorted(module.name for module in pkgutil.iter_modules(F.__path__))
MODULE = importlib.import_module("dnncore.functional.eltwise")
ACTIVATIONS = [name for name, a in ELTWISE.items() if a.defaults is not None]


@pytest.fixture
def on_target(target, monkeypatch):
    """Make the target's engine the default, and its implementations the only ones."""
    monkeypatch.setenv("DNNCORE_ENGINE", target.engine_name)
    monkeypatch.setenv("DNNCORE_IMPL", target.impl)
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", target.skip_impl)


def whole_numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def padded(image, padding, value=0.0):
    return np.pad(image, ((0, 0), (0, 0), *padding), constant_values=value)


def windows(image, kernel, strides, dilations):
    """(N, C, *output, *kernel): every window's cells."""
    spatial = len(kernel)
    spans = [(k - 1) * (d + 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    found = sliding_window_view(image, spans, tuple(range(2, 2 + spatial)))
    outer = [slice(None, None, s) for s in strides]
    inner = [slice(None, None, d + 1) for d in dilations]
    return found[(slice(None), slice(None), *outer, *inner)]


def convolved(image, weights, strides, padding, dilations):
    cells = windows(padded(image, padding), weights.shape[2:], strides, dilations)
    spatial = weights.ndim - 2
    taps = tuple(range(-spatial, 0))
    product = np.tensordot(cells, weights, axes=((1, *taps), (1, *taps)))
    return np.moveaxis(product, -1, 1)


# -- docstrings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("on_target")
def test_the_examples_print_what_they_say(name):
    module = importlib.import_module(f"dnncore.functional.{name}")
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_has_an_example_and_takes_an_engine(name):
    function = getattr(F, name)
    assert ">>> " in function.__doc__
    assert inspect.signature(function).parameters["engine"].kind == inspect.Parameter.KEYWORD_ONLY


def test_every_algorithm_of_one_array_is_a_function():
    # Forward, clip_v2 is clip; linear is the name of the layer.
    algorithms = set(ELTWISE) - {"clip_v2", "linear"}
    assert set(MODULE.__all__) == {*algorithms, "prelu"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_defaults_are_those_of_the_algorithms_record(name):
    parameters = inspect.signature(getattr(F, name)).parameters
    found = [parameters[p].default for p in ("alpha", "beta") if p in parameters]
    assert tuple(found) == ELTWISE[name].defaults


def test_names_from_elsewhere_lead_to_ours():
    with pytest.raises(AttributeError, match="here it is logistic"):
        F.sigmoid  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'conv4d'"):
        F.conv4d  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'attention'; here it is scaled_dot"):
        F.attention  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean layer_norm"):
        F.layernorm  # noqa: B018
    ours = [re.split("[ ,(]", name)[0] for name in F.ELSEWHERE.values()]
    assert set(ours) <= set(F.__all__)
    assert not set(F.ELSEWHERE) & set(F.__all__)


def test_the_table_of_torchs_names_is_right():
    """No argument has a name in the left column, except bias, and each name on the right exists."""
    arguments = {name for f in F.__all__ for name in inspect.signature(getattr(F, f)).parameters}
    table = F.__doc__.partition("torch's names of arguments")[2]
    rows = re.findall(r"^    (\S.*?)  +(.*)$", table, re.M)
    assert len(rows) > 10
    for theirs, ours in rows:
        assert not {*re.findall(r"\w+", theirs)} & arguments - {"bias"}, theirs
        first = re.split("[ =;:]", ours.replace(", ", ","))[0].split(",")
        assert {*first} - {"which", "none"} <= arguments, ours


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: F.softmax(x, dim=1), "here it is axis"),
        (lambda x: F.softmax(input=x), "here it is src"),
        (lambda x: F.layer_norm(x, weight=x[0]), "here it is scale"),
        (lambda x: F.linear(x, weight=x), "here it is weights"),
        (lambda x: F.conv1d(x[None], x[None], dilation=2), "here it is dilations=dilation - 1"),
        (lambda x: F.deconv1d(x[None], x[None], output_padding=1), r"pass padding=\[\(p, p - "),
        (lambda x: F.relu(x, alfa=1), r"did you mean alpha\?"),
        (lambda x: F.relu(x, nothing=1), "it takes src, alpha, engine"),
    ],
)
def test_unknown_options_lead_to_ours(call, hint):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '[a-z_]+'; {hint}") as found:
        call(np.ones((2, 3), np.float32))
    assert found.value.__cause__ is None


def test_suggested_options_exist():
    arguments = {name for f in F.__all__ for name in inspect.signature(getattr(F, f)).parameters}
    assert {name for ours in keywords.NAMES.values() for name in ours} <= arguments
    assert not {*keywords.ABSENT} & arguments


def test_other_type_errors_are_those_of_python_and_of_the_values():
    with pytest.raises(TypeError, match=r"'src'$"):
        F.relu()

    class Unreadable:
        def __array__(self, *_, **__):
            raise TypeError("got an unexpected keyword argument 'dim'")

    with pytest.raises((TypeError, dnn.DescriptorError), match=r"'dim'$"):
        F.relu(Unreadable())


@pytest.mark.parametrize("name", F.__all__)
def test_functions_can_be_pickled(name):
    function = getattr(F, name)
    assert pickle.loads(pickle.dumps(function)) is function


def test_it_is_imported_when_it_is_used():
    code = """
import sys, dnncore
before = "dnncore.functional" in sys.modules
print(before, dnncore.functional.relu([-1]).tolist(), hasattr(dnncore, "dysfunctional"))
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout == "False [0.0] False\n"


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spatial", "strides", "padding", "dilations"),
    [
        (1, 2, 1, 0),
        (1, 1, ((0, 3),), 1),
        (2, 1, 0, 0),
        (2, (2, 1), (1, (0, 2)), (0, 1)),
        (3, 1, (1, 0, 1), 0),
    ],
)
@pytest.mark.usefixtures("on_target")
def test_convolution(spatial, strides, padding, dilations):
    image = whole_numbers(2, 3, *(9, 8, 7)[:spatial])
    weights = whole_numbers(4, 3, *(3, 2, 2)[:spatial], seed=1)
    bias = whole_numbers(4, seed=2)
    conv = getattr(F, f"conv{spatial}d")
    got = conv(image, weights, bias, strides=strides, padding=padding, dilations=dilations)
    steps, skips = (np.broadcast_to(n, spatial) for n in (strides, dilations))
    rows = padding if isinstance(padding, tuple) else (padding,) * spatial
    sides = [tuple(np.broadcast_to(row, 2)) for row in rows]
    expected = convolved(image, weights, steps, sides, skips)
    assert np.array_equal(got, expected + bias.reshape(-1, *(1,) * spatial))


def test_padding_may_be_an_array():
    options = [F.conv2d(IMAGE, WEIGHTS, padding=p).shape for p in ((1, 2), np.array([1, 2]))]
    assert options == [(1, 3, 5, 7)] * 2


@pytest.mark.usefixtures("on_target")
def test_convolution_of_groups():
    image, weights = whole_numbers(2, 4, 5, 5), whole_numbers(2, 3, 2, 3, 3, seed=1)
    halves = [F.conv2d(image[:, 2 * g : 2 * g + 2], weights[g]) for g in range(2)]
    assert np.array_equal(F.conv2d(image, weights), np.concatenate(halves, axis=1))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.usefixtures("on_target")
def test_pooling(spatial):
    image = whole_numbers(2, 3, *(8, 7, 6)[:spatial])
    kernel, strides = (3, 2, 2)[:spatial], (2, 1, 2)[:spatial]
    sides = ((1, 1), (0, 1), (1, 0))[:spatial]
    options = {"strides": strides, "padding": sides}
    dense = (0,) * spatial
    taps = tuple(range(-spatial, 0))

    def cells(value):
        return windows(padded(image, sides, value), kernel, strides, dense)

    largest = getattr(F, f"max_pool{spatial}d")(image, kernel, **options)
    assert np.array_equal(largest, cells(-np.inf).max(taps))
    average = getattr(F, f"avg_pool{spatial}d")
    np.testing.assert_allclose(
        average(image, kernel, include_padding=True, **options), cells(0).mean(taps), rtol=1e-6
    )
    np.testing.assert_allclose(
        average(image, kernel, **options), np.nanmean(cells(np.nan), taps), rtol=1e-6
    )
    assert getattr(F, f"max_pool{spatial}d")(image, 2).shape[2:] == (4, 3, 3)[:spatial]


@pytest.mark.usefixtures("on_target")
def test_products():
    src, weights, bias = whole_numbers(5, 6), whole_numbers(4, 6), whole_numbers(4)
    assert np.array_equal(F.linear(src, weights, bias), src @ weights.T + bias)
    image, taps = src.reshape(5, 2, 3), weights.reshape(4, 2, 3)
    assert np.array_equal(F.linear(image, taps), src @ weights.T)
    batch = whole_numbers(3, 1, 2, 6)
    assert np.array_equal(F.matmul(batch, weights.T, bias), batch @ weights.T + bias)
    pair = whole_numbers(2, 6, 4)
    assert np.array_equal(F.matmul(batch, pair), batch @ pair)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.usefixtures("on_target")
def test_an_activation_is_the_function_of_its_name(name):
    src, weights = abs(whole_numbers(2, 3)) + 1, np.eye(3, dtype=np.float32)
    plain = F.linear(src, weights)
    fused = F.linear(src, weights, activation=name)
    np.testing.assert_allclose(fused, getattr(F, name)(plain), rtol=1e-5)


@pytest.mark.usefixtures("on_target")
def test_an_activation_may_be_a_post_op():
    clipped = dnn.PostOp.eltwise("clip", 0, 6)
    product = F.matmul([[2, 3]], [[1, 0, 2], [2, 0, -2]], activation=clipped)
    assert product.tolist() == [[6.0, 0.0, 0.0]]


@pytest.mark.usefixtures("on_target")
def test_prelu_takes_slopes_of_the_arrays_rank_or_one():
    image = whole_numbers(2, 3, 4, 4)
    slopes = np.float32([0.5, 2, -1]).reshape(1, 3, 1, 1)
    assert np.array_equal(F.prelu(image, slopes), np.where(image > 0, image, slopes * image))
    assert np.array_equal(F.prelu(image, 0.5), F.relu(image, alpha=0.5))
    assert F.prelu(-2, [0.5]).tolist() == -1
    with pytest.raises(dnn.DescriptorError, match="must have src's rank"):
        F.prelu(image, slopes.reshape(3))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "norm"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.usefixtures("on_target")
def test_reductions(name, keepdims):
    src = whole_numbers(2, 1, 3, 4)
    if name == "norm":
        expected = lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims))  # noqa: E731
    else:
        expected = getattr(np, name)
    for axis in (None, 0, -1, (1, 3), [2, 0], 1, (0, 1, 2, 3)):
        got = getattr(F, name)(src, axis, keepdims=keepdims)
        right = expected(src, axis=tuple(axis) if axis == [2, 0] else axis, keepdims=keepdims)
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-6)


@pytest.mark.usefixtures("on_target")
def test_the_norms_power():
    src = whole_numbers(3, 5)
    np.testing.assert_allclose(F.norm(src, 1, p=1), abs(src).sum(1), rtol=1e-6)
    np.testing.assert_allclose(F.norm(src, 1, p=3), np.cbrt((abs(src) ** 3).sum(1)), rtol=1e-5)


@pytest.mark.usefixtures("on_target")
def test_two_arrays_are_broadcast():
    shapes = [(), (4,), (1, 4), (3, 1), (2, 3, 4)]
    for first, second in itertools.product(shapes, repeat=2):
        a, b = whole_numbers(*first), whole_numbers(*second, seed=1)
        assert np.array_equal(F.sub(a, b), a - b)
        assert F.lt(a, b).shape == (a < b).shape
        assert np.array_equal(F.where(a > 0, a, b), np.where(a > 0, a, b))
    conditions = np.array([[0.0], [np.nan], [0.25]])
    assert F.where(conditions, 1, [2, 3]).tolist() == [[2, 3], [1, 1], [1, 1]]


@pytest.mark.usefixtures("on_target")
def test_softmax_along_each_axis():
    src = whole_numbers(2, 3, 4)
    for axis in (-3, 0, 1, -1):
        powers = np.exp(src)
        right = powers / powers.sum(axis, keepdims=True)
        np.testing.assert_allclose(F.softmax(src, axis), right, rtol=1e-5)
        np.testing.assert_allclose(F.log_softmax(src, axis), np.log(right), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("on_target")
def test_lrn_in_one_channel():
    src = whole_numbers(1, 2, 4, 4)
    options = {"alpha": 9.0, "beta": 1.0, "k": 2.0, "local_size": 3}
    sums = sliding_window_view(padded(src * src, ((1, 1), (1, 1))), (3, 3), (2, 3)).sum((-1, -2))
    got = F.lrn(src, algorithm="within_channel", **options)
    np.testing.assert_allclose(got, src / (2 + sums), rtol=1e-5)


@pytest.mark.parametrize("make", [np.array, tuple, list])
def test_sizes_and_factors_of_images_may_be_arrays(make):
    src = whole_numbers(1, 1, 2, 3)
    twice = F.resample(src, factors=2)
    assert np.array_equal(twice, src.repeat(2, 2).repeat(2, 3))
    for options in ({"size": make([4, 6])}, {"factors": make([2, 2.0])}):
        assert np.array_equal(F.resample(src, **options), twice)
    for factor in (np.array(2), np.float32(2), np.int64(2)):
        assert np.array_equal(F.resample(src, factors=factor), twice)


@pytest.mark.usefixtures("on_target")
def test_normalizations():
    src = whole_numbers(2, 4, 3, 5) + np.float32(0.5) * whole_numbers(2, 4, 3, 5, seed=1)
    scale, shift = whole_numbers(4, seed=2), whole_numbers(4, seed=3)

    def right(x, axes, root=0.25):
        return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + root)

    def of_channels(x):
        return scale[:, None, None] * x + shift[:, None, None]

    near = {"rtol": 1e-5, "atol": 1e-5}
    got = F.batch_norm(src, scale=scale, shift=shift, epsilon=0.25)
    np.testing.assert_allclose(got, of_channels(right(src, (0, 2, 3))), **near)
    got = F.batch_norm(src, scale, abs(shift), epsilon=1, activation="relu")
    x = (src - scale[:, None, None]) / np.sqrt(abs(shift)[:, None, None] + 1)
    np.testing.assert_allclose(got, np.maximum(x, 0), **near)
    grouped = right(src.reshape(2, 2, 2, 3, 5), (2, 3, 4)).reshape(src.shape)
    got = F.group_norm(src, 2, scale, shift, epsilon=0.25)
    np.testing.assert_allclose(got, of_channels(grouped), **near)
    np.testing.assert_allclose(F.instance_norm(src, epsilon=0.25), right(src, (2, 3)), **near)
    np.testing.assert_allclose(F.layer_norm(src, epsilon=0.25), right(src, -1), **near)
    squares = np.square(src).mean(-1, keepdims=True)
    np.testing.assert_allclose(F.rms_norm(src, epsilon=1), src / np.sqrt(squares + 1), **near)


# -- arrays in and out ----------------------------------------------------------------------------

HALVES = ("f2", ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "i1", "u1", "i2", "u2", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
def test_types_that_float32_holds_are_taken(dtype):
    got = F.add(np.array([[0, 1], [1, 0]], dtype), 1)
    assert got.dtype == (dtype if dtype in HALVES else np.float32)
    assert got.tolist() == [[1, 2], [2, 1]]


@pytest.mark.usefixtures("on_target")
@pytest.mark.parametrize("dtype", ["f2", "f4", "i2"])
def test_arrays_of_the_other_order_of_bytes_are_taken(dtype):
    """Big-endian files have such arrays."""
    values = np.array([[-1, 2], [3, -4]], dtype)
    other = values.astype(values.dtype.newbyteorder())
    for got in (F.relu(other), F.add(other, other) / 2, F.matmul(other, np.eye(2, dtype=dtype))):
        assert got.dtype.isnative
    np.testing.assert_array_equal(F.relu(other), np.maximum(values, 0))
    np.testing.assert_array_equal(F.matmul(other, values), values.astype("f4") @ values)


@pytest.mark.usefixtures("on_target")
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_come_out_as_they_went_in_and_are_rounded_once(dtype):
    rng = np.random.default_rng(0)
    src, weights = (rng.standard_normal(dims).astype(dtype) for dims in ((3, 200), (200, 5)))
    bias = rng.standard_normal(5).astype("f4")
    x, w = (array.astype("f4") for array in (src, weights))
    image, kernel = src.reshape(1, 6, 10, 10), weights[:108].reshape(10, 6, 3, 3)
    got = {
        "matmul": (F.matmul(src, weights, bias, activation="relu"), np.maximum(x @ w + bias, 0)),
        "add": (F.add(src, [1.5]), x + 1.5),
        "prelu": (F.prelu(src, 0.25), np.where(x > 0, x, x / 4)),
        "max_pool2d": (F.max_pool2d(image, 2), x.reshape(1, 6, 5, 2, 5, 2).max((3, 5))),
        "sum": (F.sum(src, axis=1), x.sum(1)),
        "conv2d": (F.conv2d(image, kernel), F.conv2d(image.astype("f4"), kernel.astype("f4"))),
        "softmax": (F.softmax(src), F.softmax(x)),
        "where": (F.where(src > 0, src, 0), np.where(x > 0, x, 0)),
    }
    eps = float(ml_dtypes.finfo(dtype).eps)
    for name, (half, right) in got.items():
        assert half.dtype == dtype, name
        assert half.shape == right.shape, name
        np.testing.assert_allclose(half.astype("f4"), right, rtol=eps, atol=1e-5, err_msg=name)


def test_half_types_are_one_type_only_where_all_fit():
    half, brain = np.ones(2, "f2"), np.ones(2, ml_dtypes.bfloat16)
    assert F.add(half, brain).dtype == np.float32
    assert F.add(half, np.ones(2, "f4")).dtype == np.float32
    assert F.add(half, np.ones(2, "i2")).dtype == np.float32
    assert F.add(half, np.ones(2, "i1")).dtype == np.float16
    assert F.matmul([half], [[1], [1]], np.ones(1, "f4")).dtype == np.float32  # lists are of none
    assert F.matmul(half[None], [[1], [1]], brain[:1]).dtype == np.float16
    assert F.matmul(np.ones((1, 2), "f4"), [[1], [1]], half[:1]).dtype == np.float32
    for mask in (np.ones(2, "f4"), brain, [[0, 0]]):
        attended = F.scaled_dot_product_attention(half[:, None], half[:, None], half[:, None], mask)
        assert attended.dtype == np.float16
    assert F.square(np.array([300], "f2")).tolist() == [np.inf]


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "c8", "U1", "M8[s]"])
def test_types_that_would_lose_digits_are_refused(dtype):
    message = r"^relu: src must be of a type .*; got .* convert it to float32"
    with pytest.raises(dnn.DescriptorError, match=message):
        F.relu(np.zeros((2, 2), dtype))


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]],
        ["a"],
        ["1"],
        [1j],
        [10**400],
        [None],
        np.ma.array([1.0]),
        {1: 2},
        object(),
        None,
    ],
)
def test_what_is_no_array_is_refused(values):
    with pytest.raises(dnn.DescriptorError, match=r"^add: src1 must be "):
        F.add([1], values)


@pytest.mark.parametrize("values", [[[1], [2, 3]], ["a"], np.array(["a"]), [1j], [None], None])
def test_what_is_no_condition_is_refused(values):
    with pytest.raises(dnn.DescriptorError, match=r"^where: condition must be "):
        F.where(values, 1, 2)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (1,) * 12])
@pytest.mark.usefixtures("on_target")
def test_empty_arrays_and_many_dims(shape):
    src = np.zeros(shape, np.float32)
    assert np.array_equal(F.exp(src), np.exp(src))
    assert F.add(src, 1).shape == shape


@pytest.mark.usefixtures("on_target")
def test_a_number_stays_one():
    assert F.relu(-2.5, alpha=2).shape == F.add(1, 2).shape == F.sum(3).shape == ()
    assert F.softmax(5).tolist() == F.log_softmax(5).tolist() + 1 == 1


@pytest.mark.usefixtures("on_target")
def test_any_order_and_frozen_arrays_are_read_and_left_alone():
    src = whole_numbers(4, 6)
    frozen = src.copy()
    frozen.flags.writeable = False
    views = [src.T, src[::-1], src[:, ::2], frozen, np.broadcast_to(src[0], (3, 6))]
    for view in views:
        kept = view.copy()
        assert np.array_equal(F.square(view), view * view)
        assert np.array_equal(view, kept)


def test_results_are_new_writable_and_outlive_the_call():
    src = np.full(1000, -1, np.float32)
    results = [F.add(src, float(i)) for i in range(20)]
    assert [r.mean() for r in results] == [i - 1.0 for i in range(20)]
    results[0][:] = 7
    assert src[0] == -1
    assert results[0].flags.c_contiguous


class OnlyDLPack:
    """An array of another library, that offers nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.usefixtures("on_target")
def test_dlpack_is_taken():
    assert F.square(OnlyDLPack(np.float32([1, 2]))).tolist() == [1, 4]
    with pytest.raises(dnn.DescriptorError, match="got int64"):
        F.square(OnlyDLPack(np.ones(3, np.int64)))


@pytest.mark.usefixtures("on_target")
def test_float64_is_computed_in_float64():
    """Numbers, lists and integers beside float64 keep the digits that float32 would lose."""
    tenth = np.full((2, 3), 0.1)
    calls = [
        (F.matmul(tenth, np.eye(3, dtype=np.int32)), tenth),
        (F.linear(tenth, [[0, 1, 0]], [0.2]), np.full((2, 1), 0.1 + 0.2)),
        (F.relu(tenth), tenth),
        (F.softmax(np.float64([[0, 0, 0]]), 1), np.full((1, 3), 1 / 3)),
        (F.avg_pool1d(tenth[None], 3), np.full((1, 2, 1), 0.1)),
        (F.conv1d(tenth[None], [[[1.0], [0.5]]]), np.full((1, 1, 3), 0.1 + 0.05)),
    ]
    for found, exact in calls:
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, exact, rtol=1e-15)


def test_functions_without_float64_refuse_it():
    with pytest.raises(dnn.DescriptorError, match=r"values float64 holds exactly.*got int64"):
        F.matmul(np.ones((2, 2)), np.ones((2, 2), np.int64))
    with pytest.raises(dnn.DescriptorError, match="src0 must be of type f32"):
        F.add(np.ones(3), 1)
    with pytest.raises(dnn.DescriptorError, match="PReLU has no f64; got float64"):
        F.prelu(np.ones(3), 0.1)


class Memories(Observer):
    """Collects the memories of launches."""

    def __enter__(self):
        self.seen = []
        observers.add(self)
        return self.seen

    def __exit__(self, *_):
        observers.remove(self)

    def watch(self, primitive, memories, run):
        self.seen.append(list(memories))
        return run


def test_what_lies_right_is_not_copied():
    src = np.ones((4, 4), np.float32)
    frozen = src.copy()
    frozen.flags.writeable = False
    for given in (src, OnlyDLPack(src), memoryview(src), frozen):
        with Memories() as seen:
            F.square(given)
        ((read, written),) = seen
        own = frozen if given is frozen else src
        assert np.shares_memory(read.buffer, own)
        assert not np.shares_memory(written.buffer, own)


def test_a_warm_call_selects_nothing_and_makes_no_descriptor(monkeypatch):
    src, weights = whole_numbers(2, 3, 5, 5), whole_numbers(4, 3, 3, 3, seed=1)
    calls = [
        lambda: F.relu(src, alpha=0.5),
        lambda: F.relu(src, alpha=np.float32(0.25)),
        lambda: F.add(src, 2),
        lambda: F.conv2d(src, weights, np.ones(4, "f4"), padding=(1, 1), activation="relu"),
        lambda: F.max_pool2d(src, 2),
        lambda: F.sum(src, (1, 2)),
        lambda: F.where(src > 0, src, 0),
    ]
    expected = [call() for call in calls]
    for name in ("PrimitiveDesc", "primitive_descs"):
        monkeypatch.setattr(f"dnncore.functional.compiled.{name}", None)
    monkeypatch.setattr(dnn.MemoryDesc, "_fill", None)
    for call, right in zip(calls, expected, strict=True):
        assert np.array_equal(call(), right)


def test_options_that_are_equal_but_not_the_same_are_told_apart():
    src = np.float32([[-1.0, 2.0]])
    assert F.sum(src, 1, keepdims=True).shape == F.sum(src, 1, keepdims=1).shape == (1, 1)
    image = np.ones((1, 2, 5, 5), "f4")
    assert F.max_pool2d(image, 2).shape == F.max_pool2d(image, (2, 2)).shape
    with pytest.raises(dnn.DescriptorError, match="groups must be an integer"):
        [F.conv2d(image, np.ones((2, 1, 3, 3), "f4"), groups=g) for g in (2, 2.0)]


def test_the_environment_is_read_at_each_call(monkeypatch):
    src = np.float32([-1.0, 2.0])
    with Memories():
        F.relu(src)
    monkeypatch.setenv("DNNCORE_IMPL", "nothing:*")
    with pytest.raises(dnn.NoImplementation, match="DNNCORE_IMPL"):
        F.relu(src)
    monkeypatch.delenv("DNNCORE_IMPL")
    assert F.relu(src).tolist() == [0, 2]
    monkeypatch.setenv("DNNCORE_ENGINE", "nowhere")
    with pytest.raises(dnn.BackendNotFound, match="nowhere"):
        F.relu(src)


def test_calls_are_kept_up_to_a_number(monkeypatch):
    calls = F.call.calls
    monkeypatch.setattr(calls, "capacity", 4)
    for n in range(1, 10):
        assert F.relu(np.ones(n, np.float32)).sum() == n
    assert len(calls) <= 5


@pytest.mark.peer
def test_tensors_of_torch_are_taken():
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = torch.tensor([[-1.0, 2.0], [3.0, -4.0]], dtype=dtype)
        for view in (given, given.T, given[:, 0]):
            result = F.relu(view)
            assert type(result) is torch.Tensor
            assert torch.equal(result, torch.relu(view))
        assert torch.equal(F.add(given, 1), given + 1)
        assert torch.equal(F.add([1, 2], given), given + torch.tensor([1, 2]))
    assert F.relu(torch.ones(3, dtype=torch.uint8)).dtype is torch.float32
    tensor, array = torch.ones(2), np.ones(2, "f4")
    for pair in ((tensor, array), (array, tensor)):
        with pytest.raises(dnn.DescriptorError, match=r"of one kind;.*torch\.from_numpy\(array\)"):
            F.add(*pair)
    with pytest.raises(dnn.DescriptorError, match=r"on meta; move it with tensor\.cpu\(\)"):
        F.relu(torch.ones(2, device="meta"))
    with pytest.raises(dnn.DescriptorError, match="requires grad"):
        F.relu(torch.ones(2, requires_grad=True))


def test_a_memory_is_taken(target):
    memory = dnn.Memory.from_numpy(np.float32([-1, 2]), engine=target.engine)
    assert F.relu(memory).tolist() == [0, 2]


def test_threads_have_streams_of_their_own(target):
    src = whole_numbers(64, 64)
    results = {}

    def work(i):
        results[i] = [F.add(src, i, engine=target.engine) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(r, src + i) for i in range(4) for r in results[i])


# -- engines and mistakes -------------------------------------------------------------------------


def test_the_engine_is_a_name_or_an_object(target):
    for engine in (target.engine_name, target.engine):
        assert F.relu([-1, 1], engine=engine).tolist() == [0, 1]


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize(
    ("spatial", "groups", "channels", "outputs", "options"),
    [
        (1, 2, 6, 4, {"padding": 1}),
        (1, 5, 5, 5, {"strides": 2}),  # depthwise
        (2, 1, 3, 4, {}),
        (2, 3, 6, 12, {"padding": (1, 0), "strides": (2, 1)}),
        (2, 8, 8, 8, {"padding": 1}),  # depthwise
        (2, 4, 4, 12, {"padding": "same", "dilations": 1}),  # depthwise, three outputs a channel
        (3, 2, 4, 2, {"padding": ((1, 0), 0, 1)}),
    ],
)
@pytest.mark.usefixtures("on_target")
def test_groups_as_torch_has_them(spatial, groups, channels, outputs, options, activation):
    image = whole_numbers(2, channels, *(9, 8, 7)[:spatial])
    weights = whole_numbers(outputs, channels // groups, *(3, 2, 2)[:spatial], seed=1)
    bias = whole_numbers(outputs, seed=2)
    conv = getattr(F, f"conv{spatial}d")
    got = conv(image, weights, bias, groups=groups, activation=activation, **options)
    expected = by_hand(image, weights, bias, groups, got.shape[2:], **options)
    assert np.array_equal(got, np.maximum(expected, 0) if activation else expected)
    grouped = weights.reshape(groups, -1, *weights.shape[1:])
    for given in (groups, None):
        again = conv(image, grouped, bias, groups=given, activation=activation, **options)
        assert np.array_equal(again, got)


def by_hand(image, weights, bias, groups, output, strides=1, padding=0, dilations=0):
    """A convolution tap by tap: output channel o reads the src channels of o's own group."""
    spatial = image.ndim - 2
    steps, skips = (np.broadcast_to(n, spatial) for n in (strides, dilations))
    taps = weights.shape[2:]
    if padding == "same":
        total = [(k - 1) * (d + 1) for k, d in zip(taps, skips, strict=True)]
        padding = tuple((n // 2, n - n // 2) for n in total)
    rows = padding if isinstance(padding, tuple) else (padding,) * spatial
    around = padded(image, [tuple(np.broadcast_to(row, 2)) for row in rows])
    inputs, outputs = weights.shape[1], weights.shape[0] // groups
    dst = np.zeros((len(image), len(weights), *output), np.float32)
    for o, i, tap in itertools.product(range(len(weights)), range(inputs), np.ndindex(*taps)):
        cells = tuple(
            slice(t * (d + 1), t * (d + 1) + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, skips, output, steps, strict=True)
        )
        channel = o // outputs * inputs + i
        dst[:, o] += around[(slice(None), channel, *cells)] * weights[(o, i, *tap)]
    return dst + bias.reshape(-1, *(1,) * spatial)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("shape", "weights", "groups", "options"),
    [
        ((2, 6, 9), (4, 3, 3), 2, {"stride": 2, "padding": 1}),
        ((2, 8, 9, 7), (16, 1, 3, 3), 8, {"padding": 2, "dilation": 2}),
        ((1, 12, 8, 9), (6, 4, 2, 5), 3, {"padding": "same"}),
        ((1, 7, 10, 9), (7, 1, 4, 3), 7, {"padding": "same", "dilation": (3, 2)}),
        ((1, 4, 10, 9), (6, 4, 4, 3), 1, {"padding": "valid", "stride": (3, 2)}),
        ((2, 4, 5, 6, 7), (8, 2, 2, 3, 2), 2, {"padding": (1, 0, 2), "stride": (1, 2, 1)}),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.usefixtures("on_target")
def test_convolution_agrees_with_torch(shape, weights, groups, options):
    import torch

    tensors = whole_numbers(*shape), whole_numbers(*weights, seed=1), whole_numbers(weights[0])
    name = f"conv{len(shape) - 2}d"
    peer = getattr(torch.nn.functional, name)
    expected = peer(*map(torch.from_numpy, tensors), groups=groups, **options).numpy()
    ours = {"stride": "strides", "padding": "padding"}
    options = {ours[k]: v for k, v in options.items() if k in ours} | {
        "dilations": tuple(
            np.subtract(np.broadcast_to(options.get("dilation", 1), len(shape) - 2), 1)
        )
    }
    assert np.array_equal(getattr(F, name)(*tensors, groups=groups, **options), expected)


def test_padding_by_name():
    x, box = whole_numbers(1, 1, 5, 4), np.ones((1, 1, 2, 3), np.float32)
    assert np.array_equal(F.conv2d(x, box, padding="valid"), F.conv2d(x, box))
    assert np.array_equal(
        F.conv2d(x, box, padding="same"), F.conv2d(x, box, padding=((0, 1), (1, 1)))
    )
    assert np.array_equal(
        F.max_pool2d(x, 3, strides=1, padding="same"), F.max_pool2d(x, 3, strides=1, padding=1)
    )


def test_an_engine_that_is_not_there():
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'tpu'"):
        F.sum(np.ones((1, 3), np.float32), axis=0, engine="tpu")  # with nothing to reduce
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'tpu'"):
        F.relu([1], engine="tpu")
    with pytest.raises(dnn.BackendNotFound, match="must be a string"):
        F.relu([1], engine=3)


IMAGE = np.zeros((1, 2, 5, 5), np.float32)
WEIGHTS = np.zeros((3, 2, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.conv2d(IMAGE[0], WEIGHTS), r"conv2d: src must be \(N, IC, H, W\); got"),
        (lambda: F.conv2d(IMAGE, WEIGHTS[0]), r"weights must be \(OC, IC / G, KH, KW\) or \("),
        (lambda: F.conv2d(IMAGE, WEIGHTS[:, :1]), "src has 2 channels but weights expect 1"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, [1, 2]), r"bias must be \(3,\)"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, strides=0), r"strides\[0\] must be at least 1; got 0"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, strides=(1, 1, 1)), "strides must hold 2 integers"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=-1), r"conv2d: padding\[0\] before must be at"),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS, padding=[0, (0, -1)]),
            r"conv2d: padding\[1\] after must be at least 0, because padding after \+ stride",
        ),
        (
            lambda: F.avg_pool2d(IMAGE, 2, include_padding="no"),
            "avg_pool2d: include_padding must be True or False; got 'no'",
        ),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=(1, 1, 1, 1)), "padding must be one integer"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding="full"), "must be 'same', 'valid' or integers"),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS, padding=""),
            "must be 'same', 'valid' or integers; got ''",
        ),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS, padding="same", strides=(1, 2)),
            r"padding 'same' needs strides of 1; got strides \(1, 2\)",
        ),
        (lambda: F.max_pool2d(IMAGE, 2, padding="same"), "padding 'same' needs strides of 1"),
        (lambda: F.max_pool2d(IMAGE, 0, strides=1, padding="same"), "2 positive integers"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, groups=0), "conv2d: groups must be an integer, at least"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, groups=-2), "groups must be an integer, at least 1"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, groups=1.0), "at least 1; got 1.0"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, groups="2"), "at least 1; got '2'"),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS[:, :1], groups=2),
            "groups must divide src's channels and weights' output channels; got 2 groups, 2 and 3",
        ),
        (
            lambda: F.conv2d(IMAGE[:, :1], WEIGHTS[:2, :1], groups=2),
            "got 2 groups, 1 and 2 channels",
        ),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS[:2], groups=2),
            "weights must have src's channels / groups = 2 / 2 = 1 along dim 1; got 2",
        ),
        (
            lambda: F.conv2d(IMAGE, WEIGHTS[:, None, :1], groups=2),
            r"groups must be 3, the first of weights' dims \(3, 1, 1, 3, 3\); got 2",
        ),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=1.5), "padding must be one integer"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=((1, 2, 3), 1)), "padding must be one integer"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=((1, 0.5), 1)), "padding must be one integer"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, dilations=2), "spans 7 cells along h but src has 5"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, dilations=-1), "dilations"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, strides=10**30), "strides must be at most 2147483647"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, padding=10**400), "padding must be at most 2147483647"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, activation="sigmoid"), "activation must be one of abs"),
        (lambda: F.conv2d(IMAGE, WEIGHTS, activation=dnn.PostOp.sum()), "activation must be"),
        (lambda: F.conv2d(IMAGE, None), "conv2d: weights must be an array in host memory"),
        (lambda: F.max_pool2d(IMAGE, 0), "kernel must hold 2 positive integers"),
        (lambda: F.max_pool2d(IMAGE, 6), "max_pool2d: the kernel spans 6 cells along h"),
        (lambda: F.avg_pool1d(IMAGE, 2), r"avg_pool1d: src must be \(N, C, W\)"),
        (lambda: F.linear([[1, 2]], [[1, 2, 3]]), "linear: weights must be"),
        (lambda: F.linear([1], [1]), "linear: src must be"),
        (lambda: F.matmul([1, 2], [3, 4]), r"matmul: src \(\.\.\., M, K\)"),
        (lambda: F.matmul([[1, 2]], [[3, 4]]), "matmul: src has K = 2 columns"),
        (lambda: F.matmul(np.ones((2, 1, 1), "f"), np.ones((3, 1, 1), "f")), "each batch dim"),
        (lambda: F.matmul([[1]], [[1]], np.ones((2, 2), "f")), "bias must have"),
        (lambda: F.add([1, 2], [1, 2, 3]), r"add: the shapes of src0, src1 must broadcast"),
        (lambda: F.where([1, 0], 1, [1, 2, 3]), "where: the shapes of condition, src0, src1 must"),
        (lambda: F.sum([1], axis=1), "sum: axis must be one or several of src's 1 dims"),
        (lambda: F.sum([[1]], axis=(0, 0)), "repeated axis"),
        (lambda: F.max([1], axis="x"), "max: axis must"),
        (lambda: F.max(np.zeros((0, 2), "f"), 0), "nothing to reduce"),
        (lambda: F.sum([1], axis=10**30), "sum: axis must be one or several of src's 1 dims"),
        (lambda: F.norm([1, 2], p=0.5), "p must be at least 1"),
        (lambda: F.norm([1], p=0.5), "p must be at least 1"),
        (lambda: F.norm([1, 2], p=1e39), "p must be a finite number of float32"),
        (lambda: F.softmax([1], axis=1), "softmax: axis must be an integer from -1 to 0; got 1"),
        (lambda: F.softmax([1], axis=None), "softmax: axis must"),
        (lambda: F.clip([1], 2, 1), "clip needs beta >= alpha"),
        (lambda: F.soft_relu([1], alpha=0), "soft_relu needs alpha != 0"),
        (lambda: F.lrn([1.0]), "lrn: src must have 2 to 5 dims"),
        (lambda: F.batch_norm([[1.0]], [1]), "mean and variance must both be given"),
        (lambda: F.batch_norm([[1.0]], activation="tanh"), "activation must be None or 'relu'"),
        (lambda: F.group_norm([[[1.0]]], 2), "groups must be a positive integer that divides"),
        (lambda: F.layer_norm([[1.0, 2]], [1]), r"layer_norm: scale must be \(2,\)"),
        (lambda: F.rms_norm([1.0, 2]), "rms_norm: src must have 2 to 5 dims"),
        (lambda: F.exp(np.zeros((1,) * 13, "f")), "exp: memory descriptor: .* at most 12 dims"),
        (lambda: F.resample(IMAGE, factors=np.ones(3)), "resample: factors must be one number"),
        (lambda: F.resample(IMAGE, factors=np.ones((2, 2))), "or one for each of 2 spatial dims"),
        (lambda: F.resample(IMAGE[..., 0], factors="2"), "resample: factors must be .* got '2'"),
        (lambda: F.resample(IMAGE, np.float32([4, 4])), "size must hold 2 integers"),
        (lambda: F.resample(IMAGE, np.array([4, -4])), "size must not be negative"),
        (lambda: F.relu(None), "relu: src must"),
        (lambda: F.batch_norm(None), "batch_norm: src must be an array"),
        (lambda: F.batch_norm_training(None), "batch_norm_training: src must be an array"),
        (
            lambda: F.scaled_dot_product_attention([[1]], [[1]], [[1]], [[True]]),
            "mask must be numbers, which are added to the scores; got bool",
        ),
        (
            lambda: F.scaled_dot_product_attention([[1]], [[1]], [[1]], [0, 0]),
            r"mask must have the last dims of the scores \(1, 1\), or 1 .* got \(2,\)",
        ),
        (
            lambda: F.scaled_dot_product_attention([[1]], [[1]], [[1]], [[[[[0]]]]]),
            r"mask must have the last dims of the scores .* got \(1, 1, 1, 1, 1\)",
        ),
        (
            lambda: F.batch_norm_training([[1]], None, [1]),
            "both be None; got only running_variance",
        ),
        (lambda: F.layer_norm(None), "layer_norm: src must be an array"),
        (lambda: F.rms_norm(None), "rms_norm: src must be an array"),
        (lambda: F.group_norm(None, 1), "group_norm: src must be an array"),
        (lambda: F.group_norm([[[1.0]]], None), "groups must be a positive integer"),
        (lambda: F.instance_norm(None), "instance_norm: src must be an array"),
        (lambda: F.batch_norm([[1.0]], activation=np.ones(2)), "activation must be None or 'relu'"),
        (
            lambda: F.concat([np.ones(2)]),
            "concat: src0 must be of type .* convert arrays of float64 to float32, here src0$",
        ),
        (
            lambda: F.add(np.ones(2, "f4"), np.ones(2)),
            "add: src0 must be of type .* convert arrays of float64 to float32, here src1$",
        ),
    ],
)
def test_mistakes_are_reported(call, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        call()


@pytest.mark.parametrize(
    "bias",
    [
        np.arange(8, dtype="f4")[::2],
        np.arange(4, dtype="f4")[::-1],
        np.ones((4, 3), "f4")[:, 0],
        np.broadcast_to(np.float32(2), 4),
    ],
    ids=["step", "reversed", "column", "broadcast"],
)
def test_a_bias_may_have_any_strides(bias):
    src, weights = np.ones((2, 3), "f4"), np.ones((4, 3), "f4")
    np.testing.assert_array_equal(F.linear(src, weights, bias), src @ weights.T + bias)


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "other", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4, bool]
)
def test_small_types_beside_a_half_type_give_the_half_type(half, other):
    result = F.add(np.ones(2, half), np.ones(2, other), engine="cpu")
    assert result.dtype == half
    assert result.tolist() == [2, 2]


def test_a_number_of_python_is_rounded_to_bfloat16_once():
    """It is above the middle of 1 and 1 + 2**-7, and would become the middle in float32."""
    zeros = np.zeros(2, ml_dtypes.bfloat16)
    assert F.add(zeros, 1 + 2**-8 + 2**-30, engine="cpu").tolist() == [1 + 2**-7] * 2
    assert F.add(zeros, 1 + 2**-8, engine="cpu").tolist() == [1.0] * 2
