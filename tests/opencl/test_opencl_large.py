"""Elements further apart than 32-bit integers count; the memory between them is never touched."""

import numpy as np
import pytest
from opencl_engine import DEVICES

import dnncore as dnn

cl = pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")

FAR = 2**31 + 5  # elements between rows: the second row is out of the reach of an int
DIMS = (2, 6)


@pytest.fixture(params=DEVICES)
def engine(request):
    engine = dnn.engine(request.param)
    if engine.device.limits["max_allocation"] < 2 * FAR:
        pytest.skip("the device's buffers are too small")
    return engine


def far(data_type, offset0=0):
    return dnn.MemoryDesc(DIMS, data_type, strides=(FAR, 1), offset0=offset0)


def write(memory, values):
    queue = cl.CommandQueue(memory.engine.native.context, memory.engine.native.device)
    for start, row in _rows(memory, values):
        cl.enqueue_copy(queue, memory.buffer, row, dst_offset=start)
    queue.finish()


def read(memory):
    values = np.empty(DIMS, memory.desc.dtype)
    queue = cl.CommandQueue(memory.engine.native.context, memory.engine.native.device)
    for start, row in _rows(memory, values):
        cl.enqueue_copy(queue, row, memory.buffer, src_offset=start)
    queue.finish()
    return values


def _rows(memory, values):
    desc = memory.desc
    for i, row in enumerate(values):
        yield (desc.offset0 + i * desc.strides[0]) * desc.itemsize, row


def run(engine, op, **memories):
    stream = engine.stream()
    dnn.PrimitiveDesc(op, engine).primitive().execute(stream, **memories)
    stream.wait()


VALUES = np.arange(12, dtype=np.uint8).reshape(DIMS)
REALS = np.array([[-3, 2, -1, 0, 1, 4], [5, -6, 2, 1, 0, -2]], np.float16)


def softmax(x):
    terms = np.exp(x.astype(np.float32) - x.max(axis=1, keepdims=True))
    return terms / terms.sum(axis=1, keepdims=True)


def images(desc):
    """The same elements as images of one channel, two rows and three columns."""
    return dnn.MemoryDesc((2, 1, 2, 3), desc.data_type, strides=(FAR, 6, 3, 1))


FORWARD = "forward_inference"
OPERATIONS = {
    "eltwise": (lambda d: dnn.EltwiseForward(FORWARD, "relu", src=d, dst=d), lambda x: x.clip(0)),
    "softmax": (lambda d: dnn.SoftmaxForward(FORWARD, "accurate", src=d, dst=d, axis=1), softmax),
    "sum": (lambda d: dnn.Sum(srcs=(d, d), dst=d, scales=(1.0, 2.0)), lambda x: 3 * x),
    "pooling": (
        lambda d: dnn.PoolingForward(
            FORWARD, "max", src=images(d), dst=images(d), kernel=(1, 1), strides=(1, 1)
        ),
        lambda x: x,
    ),
    "lrn": (
        lambda d: dnn.LRNForward(
            FORWARD, "across_channels", src=images(d), dst=images(d),
            local_size=1, alpha=1.0, beta=1.0, k=1.0,
        ),
        lambda x: x / (1 + x.astype(np.float32) ** 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPERATIONS)
def test_operations_reach_far_elements(engine, kind):
    make, expected = OPERATIONS[kind]
    op = make(far("f16"))
    found = list(dnn.primitive_descs(op, engine))
    assert found
    for pd in found:
        memories = {a.name: dnn.Memory(desc, engine) for a, desc in pd.arguments}
        for argument, _ in pd.arguments:
            if argument.direction == "in":
                write(memories[argument.name], REALS)
        stream = engine.stream()
        pd.primitive().execute(stream, **memories)
        stream.wait()
        assert np.allclose(read(memories["dst"]), expected(REALS), rtol=1e-3, atol=1e-6), (
            pd.impl_name
        )


@pytest.mark.parametrize("offset0", [0, 3])
@pytest.mark.parametrize("which", ["src", "dst"])
def test_reorders_reach_far_elements(engine, which, offset0):
    descs = {"src": dnn.MemoryDesc(DIMS, "u8"), "dst": dnn.MemoryDesc(DIMS, "u8")}
    descs[which] = far("u8", offset0)
    memories = {name: dnn.Memory(desc, engine) for name, desc in descs.items()}
    write(memories["src"], VALUES)
    run(engine, dnn.Reorder(**descs), **memories)
    assert np.array_equal(read(memories["dst"]), VALUES)


def test_products_refuse_what_they_cannot_count(engine):
    op = dnn.MatMul(
        src=dnn.MemoryDesc((2**21, 1024)),
        weights=dnn.MemoryDesc((1024, 8)),
        dst=dnn.MemoryDesc((2**21, 8)),
    )
    with pytest.raises(dnn.NoImplementation) as info:
        dnn.PrimitiveDesc(op, engine)
    reasons = [refusal for refusal in info.value.refusals if refusal.kind == "shape"]
    assert any("src must span 2147418112 elements at most" in r.reason for r in reasons)
