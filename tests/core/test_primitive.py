"""Primitives and bound calls: arguments, scratchpads, in-place rules, events."""

import threading
from typing import ClassVar

import numpy as np
import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.backend import COMPLETED, Accepted, Event, Executable, Implementation

CPU = dnn.engine("cpu")


class Scratch(Implementation):
    """Copies src to dst by way of a scratchpad of src's size."""

    name = "toybackend:scratch"

    def accept(self, op, attr, engine, hint):
        op = op.resolve_any(dst=op.src)
        return Accepted(op, ScratchExecutable, efficiency=9.0, scratchpad_bytes=op.src.nbytes)


class ScratchExecutable(Executable):
    seen: ClassVar[list] = []

    def bind(self, memories, scratchpad):
        src, dst = memories

        def run(stream, wait_for=()):
            self.seen.append(scratchpad)
            scratchpad[: src.nbytes] = src.buffer[: src.nbytes]
            dst.buffer[: src.nbytes] = scratchpad[: src.nbytes]
            return COMPLETED

        return run


def memories(op, values=(-1, 2)):
    src = dnn.Memory(op.src, CPU)
    src.fill(values[0])
    return {"src": src, "dst": dnn.Memory(op.dst, CPU)}


@pytest.fixture
def relu():
    with registered(Relu("toybackend:relu", 9.0)):
        yield dnn.PrimitiveDesc(relu_op(format="ab"), CPU).primitive()


class Pending(Event):
    """The event of a command that ends, or fails, when a test says so."""

    done = False
    error: Exception | None = None


def test_texts_of_objects_name_what_they_are(relu):
    call = relu.bind(**memories(relu.pd.op))
    assert repr(relu) == "<primitive eltwise by toybackend:relu on cpu>"
    assert repr(call) == f"<bound call of {relu!r}>"
    assert repr(dnn.Sequence([call, call])) == "<sequence of bound calls: 2>"
    assert repr(COMPLETED) == "<ended event>"
    event = Pending()
    assert repr(event) == "<event of a command that has not ended>"
    event.done, event.error = True, dnn.ExecutionError("it burns")
    assert repr(event) == "<event of a failed command: it burns>"


def test_execute_returns_an_event_and_writes(relu):
    args = memories(relu.pd.op, (3,))
    event = relu.execute(CPU.stream(), **args)
    event.wait()
    assert event.done
    assert event.error is None
    assert (args["dst"].numpy() == 3).all()


def test_bound_calls_follow_their_memories(relu):
    args = memories(relu.pd.op)
    run, stream = relu.bind(**args), CPU.stream()
    for value in (1, 5):
        args["src"].fill(value)
        run(stream, wait_for=[COMPLETED])
        assert (args["dst"].numpy() == value).all()


def test_bound_calls_keep_their_memories_alive(relu):
    args = memories(relu.pd.op, (4,))
    dst = args["dst"].numpy()
    run = relu.bind(**args)
    del args
    run(CPU.stream())
    assert (dst == 4).all()


def test_in_place_where_the_table_allows(relu):
    memory = memories(relu.pd.op, (-2,))["src"]
    relu.execute(CPU.stream(), src=memory, dst=memory)
    assert (memory.numpy() == 0).all()


@pytest.mark.parametrize("in_sequence", [False, True])
def test_library_scratchpad_belongs_to_the_stream_and_grows(in_sequence):
    with registered(Scratch()):
        small = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU).primitive()
        large = dnn.PrimitiveDesc(relu_op((400,), "a"), CPU).primitive()
    stream = CPU.stream()
    call = small.bind(**memories(small.pd.op))
    bound = dnn.Sequence([call]) if in_sequence else call
    bound(stream)
    first = stream.scratchpad
    large.execute(stream, **memories(large.pd.op))
    assert stream.scratchpad.size >= 1600 > first.size
    bound(stream)
    assert ScratchExecutable.seen[-1] is stream.scratchpad
    bound(CPU.stream())
    assert ScratchExecutable.seen[-1] is not stream.scratchpad


def test_user_scratchpad_is_an_argument():
    attr = dnn.Attributes(scratchpad="user")
    with registered(Scratch()):
        primitive = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU, attr).primitive()
    desc = primitive.pd.scratchpad_desc
    assert (desc.dims, desc.data_type) == ((16,), "u8")
    args = memories(primitive.pd.op)
    with pytest.raises(dnn.DescriptorError, match=r"argument scratchpad is missing"):
        primitive.execute(CPU.stream(), **args)
    mine = dnn.Memory(desc, CPU)
    primitive.execute(CPU.stream(), scratchpad=mine, **args)
    assert ScratchExecutable.seen[-1] is mine.buffer
    bound = primitive.bind(scratchpad=mine, **args)
    bound(CPU.stream())
    assert ScratchExecutable.seen[-1] is mine.buffer


def test_two_threads_share_a_primitive_and_one_builds_it():
    toy = Relu("toybackend:shared", 9.0)
    with registered(toy):
        pd = dnn.PrimitiveDesc(relu_op((64, 64), "ab"), CPU)
        results = []

        def work(value):
            primitive = pd.primitive()
            args = memories(pd.op, (value,))
            stream = CPU.stream()
            for _ in range(50):
                primitive.execute(stream, **args)
            results.append((args["dst"].numpy() == value).all())

        threads = [threading.Thread(target=work, args=(v,)) for v in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert results == [True] * 4
    assert toy.built == 1


def test_overlapping_but_unequal_tensors_are_refused(relu):
    buffer = np.zeros(200, np.uint8)
    op = relu.pd.op
    src = dnn.Memory(op.src, CPU, buffer[:80])
    dst = dnn.Memory(op.dst, CPU, buffer[40:120])
    with pytest.raises(dnn.DescriptorError, match=r"dst overlaps src.*src and dst"):
        relu.execute(CPU.stream(), src=src, dst=dst)
    relu.execute(CPU.stream(), src=src, dst=dnn.Memory(op.dst, CPU, buffer[80:160]))


def test_interleaved_parts_of_one_buffer_are_apart():
    parent = dnn.Memory.from_numpy(np.ones((4, 6), np.float32), engine=CPU)
    left, right = parent.submemory((4, 3), (0, 0)), parent.submemory((4, 3), (0, 3))
    left.fill(-1)
    op = dnn.EltwiseForward("forward_inference", "relu", src=right.desc, dst=left.desc)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="*,reference:*").primitive()
    primitive.execute(CPU.stream(), src=right, dst=left)
    assert (parent.numpy() == 1).all()
    middle = parent.submemory((4, 3), (0, 2))
    op = dnn.EltwiseForward("forward_inference", "relu", src=right.desc, dst=middle.desc)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="*,reference:*").primitive()
    with pytest.raises(dnn.DescriptorError, match="dst overlaps src"):
        primitive.execute(CPU.stream(), src=right, dst=middle)


def test_a_failing_launch_is_an_execution_error():
    class Failing(Relu):
        def build(self):
            from dnncore.backend import HostFunction

            def fail(src, dst):
                raise OSError("device lost")

            return HostFunction(fail)

    with registered(Failing("toybackend:failing", 9.0)):
        primitive = dnn.PrimitiveDesc(relu_op(format="ab"), CPU).primitive()
    args = memories(primitive.pd.op)
    with pytest.raises(dnn.ExecutionError, match="toybackend:failing failed: OSError: device lost"):
        primitive.execute(CPU.stream(), **args)
    run = primitive.bind(**args)
    with pytest.raises(dnn.ExecutionError, match="device lost"):
        run(CPU.stream())
    with pytest.raises(dnn.ExecutionError, match="device lost"):
        dnn.Sequence([run])(CPU.stream())


def test_needs_reorder_and_like():
    blocked = dnn.MemoryDesc((2, 16, 3, 3), "f32", "nChw16c")
    plain = dnn.Memory(dnn.MemoryDesc((2, 16, 3, 3)), CPU)
    op = dnn.EltwiseForward("forward_inference", "relu", src=blocked, dst=plain.desc.like(blocked))
    pd = dnn.PrimitiveDesc(op, CPU, impl="*,reference:*")
    assert pd.needs_reorder(plain, "src")
    assert not pd.needs_reorder(dnn.Memory(blocked, CPU), "dst")
    with pytest.raises(dnn.DescriptorError, match="unknown argument 'weights'; it takes src, dst"):
        pd.needs_reorder(plain, "weights")


def test_wishes_that_engines_do_not_grant_are_refused():
    with pytest.raises(dnn.DescriptorError, match="must have order 'in'; got 'out'"):
        CPU.stream(order="out")


def test_a_user_s_scratchpad_is_checked_when_bound():
    attr = dnn.Attributes(scratchpad="user")
    with registered(Scratch()):
        primitive = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU, attr).primitive()
    args = memories(primitive.pd.op)
    small = dnn.Memory(dnn.MemoryDesc((8,), "u8"), CPU)
    size = primitive.pd.scratchpad_desc.nbytes
    arena = dnn.Memory(dnn.MemoryDesc((3 * size,), "u8"), CPU)
    for scratchpad, message in [
        (None, "argument scratchpad is missing"),
        ("x", "scratchpad must be a Memory; got str"),
        (small, "scratchpad must be laid out as"),
        (args["src"], "scratchpad overlaps src"),
        (arena.submemory((size,), (size,)), f"where its buffer begins; got .* at byte {size};"),
    ]:
        with pytest.raises(dnn.DescriptorError, match=message):
            primitive.bind(scratchpad=scratchpad, **args)
    stream = CPU.stream()
    mine = dnn.Memory(primitive.pd.scratchpad_desc, CPU)
    dnn.Sequence([primitive.bind(scratchpad=mine, **args)])(stream)
    assert stream.scratchpad is None


@pytest.mark.parametrize("stream", [None, 5, "cpu"])
def test_a_call_needs_a_stream(relu, stream):
    bound = relu.bind(**memories(relu.pd.op))
    for call in (bound, dnn.Sequence([bound])):
        with pytest.raises(dnn.DescriptorError, match="the stream must be one of cpu"):
            call(stream)


@pytest.mark.parametrize("events", [COMPLETED, ["x"], 3])
def test_a_call_waits_for_events_only(relu, events):
    args = memories(relu.pd.op)
    bound = relu.bind(**args)
    for call in (bound, dnn.Sequence([bound]), lambda s, e: relu.execute(s, wait_for=e, **args)):
        with pytest.raises(dnn.DescriptorError, match="wait_for must be a sequence of events"):
            call(CPU.stream(), events)
    bound(CPU.stream(), None)


def test_descriptors_with_other_hints_share_no_executable():
    """An implementation may build another executable for another hint."""
    desc, small = dnn.MemoryDesc((1, 1, 4, 4)), dnn.MemoryDesc((1, 1, 2, 2))
    window = {"kernel": (2, 2), "strides": (2, 2)}
    forward = dnn.PoolingForward("forward_training", "max", src=desc, dst=small, **window)
    backward = dnn.PoolingBackward("max", diff_src=desc, diff_dst=small, **window)
    hints = [
        dnn.PrimitiveDesc(forward, CPU, impl=f"{name}:*") for name in ("reference", "cpu_numba")
    ]
    first, second = (dnn.PrimitiveDesc(backward, CPU, hint=hint) for hint in hints)
    assert first != second
    assert first == dnn.PrimitiveDesc(backward, CPU, hint=hints[0])
