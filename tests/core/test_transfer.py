"""Reorders across engines: every pair, every direction, converted on the way."""

import time

import numpy as np
import pytest

import dnncore as dnn
from dnncore.backend import Event

NAMES = [d.name for d in dnn.devices() if d.status == "ok"]
PAIRS = [(a, b) for a in NAMES for b in NAMES]


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda name: name.replace(":", ""))
@pytest.mark.parametrize(
    ("format", "data_type"), [("abcd", "f32"), ("aBcd8b", "f32"), ("acdb", "s32")]
)
def test_values_arrive(src, dst, format, data_type):
    values = np.arange(2 * 11 * 3 * 2, dtype=np.float32).reshape(2, 11, 3, 2) - 50
    start = dnn.Memory.from_numpy(values, engine=dnn.engine(src))
    wanted = dnn.MemoryDesc(values.shape, data_type, format)
    there = dnn.reorder(start, wanted, engine=dnn.engine(dst))
    assert (there.desc, there.engine) == (wanted, dnn.engine(dst))
    np.testing.assert_array_equal(there.numpy(), values)
    back = dnn.reorder(there, start.desc, engine=start.engine)
    np.testing.assert_array_equal(back.numpy(), values)


@pytest.mark.parametrize(("src", "dst"), PAIRS)
@pytest.mark.parametrize("format", ["ab", "ba"])
def test_post_ops_are_computed_on_the_way(src, dst, format):
    """Also between equal descriptors, which are copied without them."""
    source, target = dnn.engine(src), dnn.engine(dst)
    desc, values = dnn.MemoryDesc((2, 3)), np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    op = dnn.Reorder(src=desc, dst=desc.with_format(format))
    relu = dnn.Attributes((dnn.PostOp.eltwise("relu"),))
    for pd in dnn.primitive_descs(op, target, relu, src_engine=source):
        out, stream = dnn.Memory(pd.dst_desc, target), target.stream()
        memory = dnn.Memory.from_numpy(values, engine=source)
        pd.primitive().execute(stream, src=memory, dst=out).wait()
        np.testing.assert_array_equal(out.numpy(stream), np.maximum(values, 0), pd.impl_name)


@pytest.mark.parametrize(("src", "dst"), [pair for pair in PAIRS if len({*pair}) > 1])
@pytest.mark.parametrize("format", ["ab", "ba"])
def test_a_sum_adds_to_what_dst_held_and_operands_are_refused(src, dst, format):
    source, target = dnn.engine(src), dnn.engine(dst)
    desc, values = dnn.MemoryDesc((2, 3)), np.arange(6, dtype=np.float32).reshape(2, 3)
    op = dnn.Reorder(src=desc, dst=desc.with_format(format))
    total = dnn.Attributes((dnn.PostOp.sum(0.5),))
    found = list(dnn.primitive_descs(op, target, total, src_engine=source))
    assert found
    for pd in found:
        old = dnn.reorder(dnn.Memory.from_numpy(4 * values, engine=target), op.dst)
        stream, memory = target.stream(), dnn.Memory.from_numpy(values, engine=source)
        pd.primitive().execute(stream, src=memory, dst=old).wait()
        np.testing.assert_array_equal(old.numpy(stream), 3 * values, pd.impl_name)
    scaled = dnn.Attributes((dnn.PostOp.binary("mul", desc),))
    with pytest.raises(dnn.NoImplementation, match="takes no operand between engines"):
        dnn.PrimitiveDesc(op, target, scaled, src_engine=source)


@pytest.mark.parametrize(("src", "dst"), PAIRS)
@pytest.mark.parametrize("part", ["src", "dst"])
def test_some_images_of_a_batch_cross(src, dst, part):
    """A part of a batch has an offset and no gaps."""
    source, target = dnn.engine(src), dnn.engine(dst)
    whole, own = dnn.MemoryDesc((5, 3, 4)), dnn.MemoryDesc((2, 3, 4))
    images = whole.submemory((2, 3, 4), (2, 0, 0))
    values = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    if part == "src":
        memory = dnn.Memory(images, source, dnn.Memory.from_numpy(values, engine=source).buffer)
        moved = dnn.reorder(memory, own, engine=target)
        np.testing.assert_array_equal(moved.numpy(), values[2:4])
        return
    there = dnn.Memory.from_numpy(values, engine=target)
    op, stream = dnn.Reorder(src=own, dst=images), target.stream()
    memory = dnn.Memory.from_numpy(-values[:2], engine=source)
    for pd in dnn.primitive_descs(op, target, src_engine=source):
        out = dnn.Memory(images, target, there.buffer)
        pd.primitive().execute(stream, src=memory, dst=out).wait()
        expected = np.concatenate([values[:2], -values[:2], values[4:]])
        np.testing.assert_array_equal(there.numpy(stream), expected, pd.impl_name)


def test_what_is_in_place_already_is_returned():
    memory = dnn.Memory(dnn.MemoryDesc((3, 4)), dnn.engine("cpu"))
    assert dnn.reorder(memory, memory.desc) is memory
    assert dnn.reorder(memory) is memory


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cpu"], ids=lambda n: n.replace(":", ""))
@pytest.mark.parametrize("side", ["src", "dst"])
def test_either_engine_s_stream_carries_the_transfer(name, side):
    device, cpu = dnn.engine(name), dnn.engine("cpu")
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    up, down = device.stream(), cpu.stream()
    stream = {"src": down, "dst": up}[side]
    moved = dnn.reorder(dnn.Memory.from_numpy(x, engine=cpu), None, device, stream)
    stream.wait()
    up.wait()
    stream = {"src": up, "dst": down}[side]
    back = dnn.reorder(moved, dnn.MemoryDesc((5, 6), "f32", "ba"), cpu, stream)
    stream.wait()
    np.testing.assert_array_equal(back.numpy(), x)


def test_bound_transfers_can_be_replayed():
    cpu, device = dnn.engine("cpu"), dnn.engine(NAMES[-1])
    desc = dnn.MemoryDesc((4, 4))
    pd = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), device, src_engine=cpu)
    src, dst = dnn.Memory(desc, cpu), dnn.Memory(desc, device)
    run, stream = pd.primitive().bind(src=src, dst=dst), device.stream()
    for value in (1, 2):
        src.fill(value)
        run(stream)
        assert (dst.numpy(stream) == value).all()


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda name: name.replace(":", ""))
@pytest.mark.parametrize("format", ["ab", "ba", "aB4b"])
@pytest.mark.parametrize("shared", ["key", "primitive"])
def test_transfers_in_flight_share_no_staging(src, dst, format, shared):
    """Three transfers run on three streams. The first stream is the slowest."""
    start, end = dnn.engine(src), dnn.engine(dst)
    op = dnn.Reorder(src=dnn.MemoryDesc((8, 12)), dst=dnn.MemoryDesc((8, 12), "f32", format))
    for pd in dnn.primitive_descs(op, end, src_engine=start):
        primitives = [pd.primitive()] * 3 if shared == "primitive" else [
            dnn.PrimitiveDesc(op, end, src_engine=start, impl=pd.impl_name).primitive()
            for _ in range(3)
        ]  # fmt: skip
        streams = [end.stream() for _ in primitives]
        results = [dnn.Memory(op.dst, end) for _ in primitives]
        calls = []
        for value, (primitive, result) in enumerate(zip(primitives, results, strict=True)):
            source = dnn.Memory(op.src, start)
            source.fill(value)
            calls.append(primitive.bind(src=source, dst=result))
        if streams[0].lag is not None:
            streams[0].lag, streams[1].lag = 0.1, 0.05
        events = [call(stream) for call, stream in zip(calls, streams, strict=True)]
        for event in events:
            event.wait()
        for value, (result, stream) in enumerate(zip(results, streams, strict=True)):
            assert (result.numpy(stream) == value).all(), pd.impl_name


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda name: name.replace(":", ""))
@pytest.mark.parametrize("from_part", [False, True])
@pytest.mark.parametrize(("dims", "start"), [((2, 2), (1, 1)), ((2, 4), (1, 0))])
def test_a_part_of_a_larger_tensor_is_written_alone(src, dst, dims, start, from_part):
    """A part with gaps; and rows, which are dense but begin behind others."""
    whole = dnn.Memory.from_numpy(np.full((4, 4), 7, np.float32), engine=dnn.engine(dst))
    part = whole.submemory(dims, start)
    ones = dnn.Memory.from_numpy(np.ones((4, 4), np.float32), engine=dnn.engine(src))
    ones = ones.submemory(dims, start if from_part else (0, 0))
    op = dnn.Reorder(src=ones.desc, dst=part.desc)
    expected = np.full((4, 4), 7)
    expected[start[0] :, start[1] :][: dims[0], : dims[1]] = 1
    stream = whole.engine.stream()
    pds = list(dnn.primitive_descs(op, whole.engine, src_engine=ones.engine))
    assert pds
    for pd in pds:
        whole.fill(7)
        pd.primitive().execute(stream, src=ones, dst=part).wait()
        np.testing.assert_array_equal(whole.numpy(stream), expected)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cpu"], ids=lambda n: n.replace(":", ""))
def test_what_follows_a_transfer_in_a_sequence_sees_it(name):
    cpu, device = dnn.engine("cpu"), dnn.engine(name)
    desc = dnn.MemoryDesc((4_000_000,))
    far = dnn.Memory(desc, device)
    far.fill(1)
    near, result = dnn.Memory(desc, cpu), dnn.Memory(desc, cpu)
    near.fill(0)
    fetch = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), cpu, src_engine=device)
    relu = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    calls = [
        fetch.primitive().bind(src=far, dst=near),
        dnn.PrimitiveDesc(relu, cpu).primitive().bind(src=near, dst=result),
    ]
    dnn.Sequence(calls)(cpu.stream())
    assert (result.numpy() == 1).all()


class Late(Event):
    """An event of another library. The first wait for it ends after a while."""

    ended = False

    def wait(self, timeout=None):
        time.sleep(0.05)
        self.ended = True

    @property
    def done(self):
        return self.ended


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cpu"], ids=lambda n: n.replace(":", ""))
@pytest.mark.parametrize("behind", [True, False])
def test_what_follows_a_transfer_on_its_stream_sees_it(name, behind):
    """On the CPU's stream, whose commands have ended when their launches return."""
    cpu, device = dnn.engine("cpu"), dnn.engine(name)
    desc = dnn.MemoryDesc((7, 5))
    far, near, result = dnn.Memory(desc, device), dnn.Memory(desc, cpu), dnn.Memory(desc, cpu)
    for memory, value in ((far, 1), (near, 0), (result, 0)):
        memory.fill(value)
    fetch = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), cpu, src_engine=device).primitive()
    relu = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    stream = cpu.stream()
    fetch.execute(stream, src=far, dst=near, wait_for=[Late()] if behind else [])
    dnn.PrimitiveDesc(relu, cpu).primitive().execute(stream, src=near, dst=result)
    stream.wait()
    assert (result.numpy() == 1).all()


def test_only_reorders_cross_engines():
    desc = dnn.MemoryDesc((4,))
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    with pytest.raises(dnn.DescriptorError, match="src_engine is for reorders only; got eltwise"):
        dnn.PrimitiveDesc(op, dnn.engine(NAMES[-1]), src_engine=dnn.engine("cpu"))
