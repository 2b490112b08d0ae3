"""Arrays of one-line functions: any view and type, many calls, threads and forks."""

import gc
import os
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnncore as dnn
from dnncore import functional as F

TYPES = ("f4", "f2", ml_dtypes.bfloat16, "i1", "u1", "i2", "u2", "?")
SWAPPED = ("f4", "f2", "i2", "u2")


@st.composite
def views(draw):
    """A view of an array: any type, shape, step, order of dims, order of bytes and flag."""
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    steps = draw(st.lists(st.sampled_from((-2, -1, 1, 2)), min_size=4, max_size=4))
    array = np.arange(np.prod(shape, dtype=int) * 2 ** len(shape)) % 9
    array = array.reshape([2 * n for n in shape]).astype(dtype)
    array = array[..., *(slice(None, None, step) for step in steps[: len(shape)])]
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()) and dtype in SWAPPED:
        array = array.astype(array.dtype.newbyteorder())
    if draw(st.booleans()):
        array = np.broadcast_to(array, (2, *array.shape))
    if draw(st.booleans()):
        array = array.view()
        array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "objects of Python: NoneType"),
        (np.array([1, None]), "got object"),
        (2**70, "an integer has more than 64 bits"),
        ([2**70, 1.5], "objects of Python: float, int"),
    ],
)
def test_the_error_for_objects_names_their_types(values, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        F.relu(values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_number_beyond_the_arrays_type_is_infinite_without_a_warning(dtype):
    with warnings.catch_warnings(action="error"):
        assert np.isposinf(F.add(np.ones(3, dtype), 1e300)).all()
        assert np.isneginf(F.maximum(np.full(3, -np.inf, ml_dtypes.bfloat16), -1e300)).all()


@settings(max_examples=100, deadline=None)
@given(view=views(), other=views())
def test_any_view_is_read_as_numpy_reads_it(view, other):
    kept = view.copy()
    half = view.dtype in (np.float16, ml_dtypes.bfloat16)
    wide = view.astype(np.float32)
    for _ in range(2):  # a cold call and a warm one
        squares, sums = F.square(view), F.add(view, 1)
        assert squares.dtype == sums.dtype == (view.dtype.newbyteorder("=") if half else np.float32)
        assert squares.shape == view.shape
        assert np.array_equal(squares.astype("f4"), wide * wide)
        assert np.array_equal(sums.astype("f4"), wide + 1)
        for result in (squares, sums):
            assert result.flags.c_contiguous
            assert result.flags.writeable
            assert not np.shares_memory(result, view)
    try:
        shape = np.broadcast_shapes(view.shape, other.shape)
    except ValueError:
        return
    products = F.mul(view, other)
    assert products.shape == shape
    assert np.array_equal(products.astype("f4"), wide * other.astype("f4"))
    assert np.array_equal(view, kept)


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(4)), step=st.sampled_from((-1, 1, 2)), frozen=st.booleans())
def test_weights_of_any_layout_are_read(order, step, frozen):
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (4, 6, 3, 3)).astype(np.float32)[:, ::step]
    weights = weights.transpose(order).copy().transpose(np.argsort(order))
    weights.flags.writeable = not frozen
    image = rng.integers(-3, 4, (2, weights.shape[1], 5, 5)).astype(np.float32)
    expected = F.conv2d(image, np.ascontiguousarray(weights).copy())
    assert np.array_equal(F.conv2d(image, weights), expected)


def test_many_calls_leave_nothing():
    src, weights = np.ones((8, 16), "f4"), np.ones((4, 16), "f4")

    def calls():
        F.relu(F.linear(src, weights, [1, 2, 3, 4]))
        F.sum(F.add(src, 1), axis=(0, 1))

    for _ in range(3):
        calls()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        calls()
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_threads_that_begin_together_get_their_own_results():
    sizes = range(100, 120)  # of no other test, so that the threads compile together
    barrier = threading.Barrier(4)
    right = []

    def work(i):
        barrier.wait()
        results = [F.add(np.full(n, i, "f4"), np.full(n, n, "f4")) for n in sizes for _ in range(3)]
        right.append(all((r == i + len(r)).all() for r in results))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_uses_the_calls_of_its_parent():
    src = np.full((3, 5), -2, "f4")
    F.abs(src)
    child = os.fork()
    if not child:
        right = (F.abs(src) == 2).all() and (F.square(src) == 4).all()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (F.square(src) == 4).all()
