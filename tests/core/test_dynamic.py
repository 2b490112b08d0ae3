"""Dynamic primitives: dims and strides of each execution, the cache, messages, threads."""

import copy
import doctest
import functools
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import dnncore as dnn
from dnncore.selection import dynamic

CPU = dnn.engine("cpu")
MAKE = functools.partial(dnn.DynamicPrimitive, engine=CPU)


def memory(array, engine=CPU):
    return dnn.Memory.from_numpy(array, engine=engine)


def product(shape, rng, engine=CPU, strided=False):
    """Memories of src, weights and dst, and the right result."""
    m, k, n = shape
    a, b = (rng.integers(-4, 5, dims).astype(np.float32) for dims in ((m, k), (k, n)))
    src, weights = memory(a, engine), memory(b, engine)
    if strided:
        transposed = dnn.MemoryDesc((m, k), strides=(1, m))
        src = dnn.reorder(src, transposed)
    memories = {"src": src, "weights": weights, "dst": dnn.Memory(dnn.MemoryDesc((m, n)), engine)}
    return memories, a @ b


@pytest.mark.parametrize("strided", [False, True])
def test_matmul_equals_the_static_primitive(target, strided):
    rng = np.random.default_rng(1)
    wishes = {"impl": target.impl or None, "skip_impl": target.skip_impl or None}
    matmul = dnn.DynamicPrimitive(dnn.MatMul, target.engine, **wishes)
    stream = target.engine.stream()
    for shape in [(3, 5, 4), (7, 5, 4), (1, 2, 3), (3, 5, 4), (0, 5, 4)]:
        memories, right = product(shape, rng, target.engine, strided)
        matmul.execute(stream, **memories).wait()
        got = memories["dst"].numpy(stream)
        np.testing.assert_array_equal(got, right)
        op = dnn.MatMul(**{name: each.desc for name, each in memories.items()})
        pd = dnn.PrimitiveDesc(op, target.engine, **wishes)
        assert matmul.primitive(**memories).pd == pd
        pd.primitive().execute(stream, **memories).wait()
        np.testing.assert_array_equal(memories["dst"].numpy(stream), got)
    assert len(matmul) == 4


def test_reorder_of_any_dims_and_strides(target):
    reorder = dnn.DynamicPrimitive(dnn.Reorder, target.engine)
    stream = target.engine.stream()
    for dims in [(2, 3), (2, 3, 4), (5,)]:
        array = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
        strides = tuple(np.cumprod((1, *dims[:-1])).tolist())
        dst = dnn.Memory(dnn.MemoryDesc(dims, strides=strides), target.engine)
        reorder.execute(stream, src=memory(array, target.engine), dst=dst).wait()
        np.testing.assert_array_equal(dst.numpy(stream), array)
    assert len(reorder) == 3


def test_attributes_may_follow_from_the_operation():
    def attr(op):
        row = dnn.MemoryDesc((1, op.dst.dims[1]))
        return dnn.Attributes(post_ops=[dnn.PostOp.binary("add", row)])

    matmul = MAKE(dnn.MatMul, attr=attr)
    for n in (3, 4):
        memories, right = product((2, 5, n), np.random.default_rng(n))
        row = np.arange(n, dtype=np.float32)[None]
        matmul.execute(CPU.stream(), **memories, post_op_0_src=memory(row)).wait()
        np.testing.assert_array_equal(memories["dst"].numpy(), right + row)


def test_other_fields_and_several_sources():
    softmax = MAKE(
        functools.partial(dnn.SoftmaxForward, "forward_inference", algorithm="accurate", axis=1)
    )
    total = MAKE(
        lambda src0, src1, dst: dnn.Sum(srcs=(src0, src1), dst=dst, scales=(1, 2)),
        impl="reference:*",
    )
    for rows in (1, 2):
        ones = np.ones((rows, 4), np.float32)
        dst = dnn.Memory(dnn.MemoryDesc((rows, 4)))
        softmax.execute(CPU.stream(), src=memory(ones), dst=dst).wait()
        np.testing.assert_allclose(dst.numpy(), 0.25, rtol=1e-6)
        total.execute(CPU.stream(), src0=memory(ones), src1=memory(ones), dst=dst).wait()
        np.testing.assert_array_equal(dst.numpy(), 3 * ones)


def test_an_optional_tensor_may_be_absent():
    matmul = MAKE(dnn.MatMul)
    memories, right = product((2, 3, 4), np.random.default_rng(0))
    for bias in ({}, {"bias": memory(np.full((1, 4), 2, np.float32))}):
        matmul.execute(CPU.stream(), **memories, **bias).wait()
        np.testing.assert_array_equal(memories["dst"].numpy(), right + (2 if bias else 0))
    assert len(matmul) == 2


def test_the_cache_is_bounded_and_drops_the_oldest():
    matmul = MAKE(dnn.MatMul, capacity=2)
    descs = {n: product((n, 2, 2), np.random.default_rng(0))[0] for n in (1, 2, 3)}
    kept = {n: matmul.primitive(**descs[n]) for n in (1, 2)}
    assert matmul.primitive(**descs[1]) is kept[1]
    matmul.primitive(**descs[3])
    assert len(matmul) == 2
    assert matmul.primitive(**descs[1]) is kept[1]
    assert matmul.primitive(**descs[2]) is not kept[2]


def test_threads_share_one_primitive_per_shape():
    matmul = MAKE(dnn.MatMul)
    wrong, made = [], []

    def work(seed):
        stream, rng = CPU.stream(), np.random.default_rng(seed)
        for turn in range(20):
            memories, right = product((turn % 4 + 1, 3, 2), rng)
            matmul.execute(stream, **memories).wait()
            made.append(id(matmul.primitive(**memories)))
            if not np.array_equal(memories["dst"].numpy(), right):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(made) == 80
    assert len(set(made)) == len(matmul) == 4


def test_the_number_of_threads_makes_another_primitive():
    matmul = MAKE(dnn.MatMul)
    memories, _ = product((2, 2, 2), np.random.default_rng(0))
    usual = dnn.get_num_threads()
    try:
        for number in (1, 2, 1):
            dnn.set_num_threads(number)
            matmul.primitive(**memories)
    finally:
        dnn.set_num_threads(usual)
    assert len(matmul) == 2


def test_copies_and_text():
    matmul = MAKE(dnn.MatMul, dims={"weights": (None, 2)}, capacity=3, impl="reference:*")
    memories, right = product((2, 3, 2), np.random.default_rng(0))
    for each in (pickle.loads(pickle.dumps(matmul)), copy.copy(matmul), copy.deepcopy(matmul)):
        each.execute(CPU.stream(), **memories).wait()
        np.testing.assert_array_equal(memories["dst"].numpy(), right)
        assert each.primitive(**memories).impl_name.startswith("reference:")
    assert len(matmul) == 0
    assert repr(matmul) == "<dynamic primitive of MatMul on cpu>"


def test_the_example_of_the_docstring():
    assert doctest.testmod(dynamic).failed == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "make must be a class of operations or a function that returns one; got int"),
        (
            (dnn.SoftmaxForward,),
            "make must need descriptors only; SoftmaxForward also needs prop_kind, algorithm, axis;\
 fix them with functools.partial",
        ),
    ],
)
def test_bad_functions(arguments, message):
    with pytest.raises(dnn.DescriptorError) as error:
        MAKE(*arguments)
    assert str(error.value) == f"dynamic primitive: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1; got 0"),
        ({"capacity": 1.5}, "capacity must be an integer of at least 1; got 1.5"),
        (
            {"dims": {"scr": (2, 3)}},
            "dims are of tensors that make takes: src, weights, bias, dst; got 'scr'",
        ),
        (
            {"dims": {"src": (None, -1)}},
            "dims of src must be sizes, or None where unknown; got (None, -1)",
        ),
        ({"dims": [1]}, "dims must be a mapping from names of tensors to sizes; got list"),
        ({"dims": {"src": 3}}, "dims of src must be sizes, or None where unknown; got 3"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(dnn.DescriptorError) as error:
        MAKE(dnn.MatMul, **options)
    assert str(error.value) == f"dynamic primitive: {message}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"weights": None},
            "dynamic primitive: argument weights is missing; it takes src, weights, bias, dst",
        ),
        (
            {"src": np.ones((2, 3))},
            "dynamic primitive: src must be a Memory; got ndarray; make one with Memory.from_numpy",
        ),
        (
            {"src": memory(np.ones((2, 4), np.float32))},
            "dynamic primitive: src must have the dims (*, 3); got (2, 4)",
        ),
        (
            {"src": memory(np.ones(2, np.float32))},
            "dynamic primitive: src must have the dims (*, 3); got (2,)",
        ),
        (
            {"weights": memory(np.ones((5, 4), np.float32))},
            "matmul: src has K = 3 columns but weights have 5 rows (src's last dim must equal\
 weights' last but one)",
        ),
        (
            {"scr": memory(np.ones((2, 4), np.float32))},
            "matmul: unknown argument scr; it takes src, weights, dst",
        ),
    ],
)
def test_bad_memories(changed, message):
    matmul = MAKE(dnn.MatMul, dims={"src": (None, 3)})
    memories, _ = product((2, 3, 4), np.random.default_rng(0))
    memories = {k: v for k, v in (memories | changed).items() if v is not None}
    with pytest.raises(dnn.DescriptorError) as error:
        matmul.execute(CPU.stream(), **memories)
    assert str(error.value) == message


def test_bad_results_of_a_function():
    wrong: Any = lambda src, dst: (src, dst)  # noqa: E731
    reorder = MAKE(wrong)
    a = memory(np.ones(2, np.float32))
    with pytest.raises(dnn.DescriptorError, match="make must return an operation; got tuple"):
        reorder.execute(CPU.stream(), src=a, dst=a)
