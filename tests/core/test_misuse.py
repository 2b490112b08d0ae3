"""Wrong or rare uses of engines, memories, operations and observers."""

import functools
import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from toy import Relu, devices, registered, relu, relu_op

import dnncore as dnn
from dnncore import functional, interrupts, observers
from dnncore.backend import HostFunction, Peaks

CPU = dnn.engine("cpu")
OPENCL = [d.name for d in dnn.devices() if d.status == "ok" and d.kind == "opencl"]


@pytest.fixture(params=OPENCL)
def device(request):
    return dnn.engine(request.param)


@pytest.fixture
def other():
    """Another host engine."""
    with devices("elsewhere", dnn.Device("elsewhere")):
        yield dnn.engine("elsewhere")


# -- engines and memories --------------------------------------------------------------------------


def test_there_is_one_cpu_engine():
    with pytest.raises(dnn.EngineUnavailable, match="cpu:1: there is one CPU engine"):
        type(CPU)(1)


@pytest.mark.parametrize("nbytes", [-1, 1.5, None])
def test_a_size_is_a_number_of_bytes(nbytes):
    with pytest.raises(dnn.DescriptorError, match="a size in bytes must be an integer, at least 0"):
        CPU.allocate(nbytes)


@pytest.mark.parametrize(
    "buffer", [np.zeros((8, 8), np.uint8), np.zeros(128, np.uint8)[::2], bytearray(64)]
)
def test_a_buffer_is_a_contiguous_row_of_bytes(buffer):
    with pytest.raises(dnn.DescriptorError, match="buffer"):
        dnn.Memory(dnn.MemoryDesc((4,)), CPU, buffer)


def test_an_engine_is_no_descriptor():
    with pytest.raises(dnn.DescriptorError, match=r"must be a MemoryDesc; got .*; pass engine="):
        dnn.Memory.from_numpy(np.zeros(4, np.float32), CPU)
    with pytest.raises(dnn.DescriptorError, match=r"must be a MemoryDesc; got int$"):
        dnn.Memory.from_numpy(np.zeros(4, np.float32), 4)


def test_an_array_before_which_its_memory_begins_is_copied():
    values = np.arange(4, dtype=np.float32)
    memory = dnn.Memory.from_numpy(values, dnn.MemoryDesc((4,), offset0=3), CPU)
    np.testing.assert_array_equal(memory.numpy(), values)
    values[0] = 9
    assert memory.numpy()[0] == 0


def test_an_offset_may_be_a_number_of_numpy():
    plain = dnn.MemoryDesc((4,))
    assert dnn.MemoryDesc((4,), offset0=np.int64(0)) == plain
    assert dnn.MemoryDesc((4,), "f32", "any", offset0=np.int64(0)).is_any
    with pytest.raises(dnn.DescriptorError, match="offset0 is at least 0"):
        dnn.MemoryDesc((4,), offset0=np.int64(-1))


def test_a_part_has_no_negative_size():
    with pytest.raises(dnn.DescriptorError, match="dim 1 has 4 elements; got 3 to 2"):
        dnn.MemoryDesc((4, 4)).submemory((2, -1), (0, 3))


def test_only_arrays_are_packed():
    desc = dnn.MemoryDesc((2,))
    with pytest.raises(dnn.DescriptorError, match="the values are a numpy array; got list"):
        desc.pack([1.0, 2.0], np.zeros(8, np.uint8))


def test_a_memory_is_mapped_with_a_stream_of_its_engine(other):
    memory = dnn.Memory(dnn.MemoryDesc((4,)), CPU)
    with (
        pytest.raises(dnn.DescriptorError, match="the stream must be one of cpu; got"),
        memory.map(other.stream(), "r"),
    ):
        pass


def test_a_device_s_buffer_has_no_address(device):
    with pytest.raises(dnn.ExecutionError, match=f"buffers of {device.name} have no host address"):
        _ = dnn.Memory(dnn.MemoryDesc((4,)), device).span


def test_arrays_with_gaps_and_repeats_are_shared_by_descriptors_that_have_them():
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)[:, :4]
    memory = dnn.Memory.from_numpy(wide, dnn.MemoryDesc((3, 4), strides=(8, 1)), CPU)
    np.testing.assert_array_equal(memory.numpy(), wide)
    assert np.shares_memory(memory.buffer, wide)
    repeated = np.lib.stride_tricks.as_strided(wide, (2, 2), (0, 12))
    desc = dnn.MemoryDesc((2, 2), strides=(0, 3))
    assert np.shares_memory(dnn.Memory.from_numpy(repeated, desc, CPU).buffer, wide)
    with pytest.raises(dnn.DescriptorError, match="elements must not share a place"):
        dnn.Memory.from_numpy(repeated, desc, CPU, copy=True)


@pytest.mark.parametrize("flops", [3.0, {}, {"f16": 1.0}])
def test_peaks_have_flops_of_f32(flops):
    with pytest.raises(dnn.DescriptorError, match="flops must be a mapping with an entry for f32"):
        Peaks(flops, 1.0, 0.0)


@pytest.mark.parametrize("launch", ["x", -1.0, float("inf"), None])
def test_a_launch_takes_finite_time(launch):
    with pytest.raises(dnn.DescriptorError, match="launch must be a finite number of seconds"):
        Peaks({"f32": 1.0}, 1.0, launch)


# -- executions ------------------------------------------------------------------------------------


def relu_on(engine):
    op = relu_op((4,), "a")
    return dnn.PrimitiveDesc(op, engine).primitive()


def part(engine, buffer, first, count=4):
    return dnn.Memory(dnn.MemoryDesc((count,), offset0=first), engine, buffer)


@pytest.mark.parametrize(("first", "allowed"), [(0, True), (1, False), (3, False), (4, True)])
def test_tensors_in_one_buffer_of_a_device_share_all_elements_or_none(first, allowed, device):
    """Their addresses are not known, so their places in the buffer count."""
    primitive, buffer = relu_on(device), device.allocate(64)
    src, dst = part(device, buffer, 0), part(device, buffer, first)
    values = np.array([-1, 2, -3, 4], np.float32)
    stream = device.stream()
    device.copy_in(stream, values.view(np.uint8), buffer).wait()
    moved = primitive.pd.op.with_descs(src=src.desc, dst=dst.desc)
    call = dnn.PrimitiveDesc(moved, device).primitive()
    if not allowed:
        with pytest.raises(dnn.DescriptorError, match="overlap"):
            call.execute(stream, src=src, dst=dst)
        return
    call.execute(stream, src=src, dst=dst).wait()
    np.testing.assert_array_equal(dst.numpy(stream), np.maximum(values, 0))


def test_a_device_and_the_host_share_no_element(device):
    desc, values = dnn.MemoryDesc((4,)), np.arange(4, dtype=np.float32)
    for start, end in ((CPU, device), (device, CPU)):
        pd = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), end, src_engine=start)
        memory, out = dnn.Memory.from_numpy(values, engine=start), dnn.Memory(desc, end)
        pd.primitive().execute(end.stream(), src=memory, dst=out).wait()
        np.testing.assert_array_equal(out.numpy(), values)


@pytest.mark.parametrize("place", ["elsewhere", "in src"])
def test_a_scratchpad_is_on_the_engine_and_apart_from_the_tensors(place, other):
    class Needy(Relu):
        def build(self):
            return HostFunction(relu)

    attr = dnn.Attributes(scratchpad="user")
    with registered(needy := Needy("toybackend:needy", scratchpad_bytes=64)):
        pd = dnn.PrimitiveDesc(relu_op((64,), "a"), CPU, attr, impl=needy.name)
        primitive = pd.primitive()
        row = CPU.allocate(1024)
        src = dnn.Memory(pd.src_desc, CPU, row[:256])
        dst = dnn.Memory(pd.dst_desc, CPU)
        scratchpad = {
            "elsewhere": lambda: dnn.Memory(pd.scratchpad_desc, other),
            "in src": lambda: dnn.Memory(pd.scratchpad_desc, CPU, row[192:512]),
        }[place]()
        message = {"elsewhere": "scratchpad.*elsewhere", "in src": "scratchpad overlaps src"}[place]
        with pytest.raises(dnn.DescriptorError, match=message):
            primitive.bind(src=src, dst=dst, scratchpad=scratchpad)


def test_a_relu_on_a_device_has_two_buffers(device):
    """In-place use needs one buffer. Others are apart, wherever they are."""
    primitive = relu_on(device)
    src = dnn.Memory.from_numpy(np.array([-1, 2, -3, 4], np.float32), engine=device)
    dst = dnn.Memory(primitive.pd.dst_desc, device)
    primitive.execute(device.stream(), src=src, dst=dst).wait()
    np.testing.assert_array_equal(dst.numpy(), [0, 2, 0, 4])


def test_a_function_of_the_host_waits_for_the_lag_of_its_stream():
    class Slow(Relu):
        def build(self):
            return HostFunction(relu)

    with registered(slow := Slow("toybackend:slow")):
        primitive = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU, impl=slow.name).primitive()
        src, dst = (dnn.Memory(primitive.pd.src_desc, CPU) for _ in range(2))
        stream = CPU.stream()
        stream.lag = 0.05
        start = time.monotonic()
        primitive.execute(stream, src=src, dst=dst).wait()
        assert time.monotonic() - start >= 0.05


def test_a_sequence_is_made_of_calls():
    with pytest.raises(dnn.DescriptorError, match="calls must be a sequence; got int"):
        dnn.Sequence(3)


def test_an_algorithm_with_larger_errors_proves_no_peak():
    """Winograd's algorithm does fewer multiplications than its operation counts."""
    values = np.ones((1, 16, 8, 8), np.float32)
    weights = np.ones((16, 16, 3, 3), np.float32)
    dims = {"src": values, "weights": weights, "dst": np.empty((1, 16, 6, 6), np.float32)}
    descs = {name: dnn.MemoryDesc(array.shape) for name, array in dims.items()}
    op = dnn.ConvolutionForward("forward_inference", algorithm="winograd", strides=(1, 1), **descs)
    pd = dnn.PrimitiveDesc(op, CPU)
    assert pd.error_factor > 1
    memories = {name: dnn.Memory.from_numpy(array, engine=CPU) for name, array in dims.items()}
    stream = CPU.stream(profiling=True)
    pd.primitive().execute(stream, **memories).wait()
    np.testing.assert_allclose(memories["dst"].numpy(), 16 * 9, rtol=1e-4)


def test_numbers_of_numpy_have_a_type():
    ones = np.ones(3, np.float16)
    assert functional.add(2.0, ones, engine=CPU).dtype == np.float16
    assert functional.add(np.float16(2), ones, engine=CPU).dtype == np.float16
    with pytest.raises(dnn.DescriptorError, match="float64"):
        functional.add(np.float64(2), ones, engine=CPU)


def test_a_primitive_descriptor_has_descriptors_of_arguments_alone():
    pd = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU)
    assert pd.src_desc == pd.op.src
    for name in ("nothing", "nothing_desc"):
        with pytest.raises(AttributeError, match=f"PrimitiveDesc has no attribute '{name}'"):
            getattr(pd, name)


# -- operations ------------------------------------------------------------------------------------


def test_operations_equal_themselves_and_those_with_equal_fields():
    op = relu_op((4,), "a")
    assert op == op
    assert op == relu_op((4,), "a")
    assert op != relu_op((5,), "a")
    assert op != "eltwise"
    pd = dnn.PrimitiveDesc(op, CPU)
    assert pd == dnn.PrimitiveDesc(op, CPU)
    assert pd != op


def test_a_tensor_without_dims_is_absent():
    absent = dnn.MemoryDesc.zero()
    with pytest.raises(dnn.DescriptorError, match="src is an absent tensor"):
        dnn.EltwiseForward("forward_inference", "relu", src=absent, dst=absent)


def test_a_sum_needs_a_source_and_has_no_others():
    desc = dnn.MemoryDesc((4,))
    with pytest.raises(dnn.DescriptorError, match="at least one src; got 0 scales and 0 srcs"):
        dnn.Sum(srcs=(), dst=desc, scales=())
    op = dnn.Sum(srcs=(desc,), dst=desc, scales=(1.0,))
    assert op.src0 == desc
    with pytest.raises(AttributeError, match="no attribute 'src1'"):
        _ = op.src1


def test_the_operand_of_a_post_op_needs_a_format():
    attr = dnn.Attributes((dnn.PostOp.binary("add", dnn.MemoryDesc((4,), "f32", "any")),))
    with pytest.raises(dnn.DescriptorError, match="must have a concrete format; got 'any'"):
        dnn.PrimitiveDesc(relu_op((4,), "a"), CPU, attr)


def test_an_optional_tensor_of_a_problem_has_no_descriptor():
    data, weights = dnn.MemoryDesc((1, 2, 3, 3)), dnn.MemoryDesc((2, 2, 1, 1))
    op = dnn.ConvolutionForward(
        "forward_inference", src=data, weights=weights, dst=data, strides=(1, 1)
    )
    pd = dnn.PrimitiveDesc(op, CPU)
    assert pd.bias_desc is None
    with pytest.raises(AttributeError, match="diff_dst_desc"):
        _ = pd.diff_dst_desc
    assert op.resolve_any(bias="a", src="acdb") == op


def test_the_forward_operation_of_a_gradient_in_any_format_is_plain():
    diff_src = dnn.MemoryDesc((1, 2, 4, 4), "f32", "any")
    op = dnn.PoolingBackward(
        "max", diff_src=diff_src, diff_dst=dnn.MemoryDesc((1, 2, 2, 2)), kernel=(2, 2),
        strides=(2, 2),
    )  # fmt: skip
    assert op.forward_op.src == diff_src.with_format(None)


def test_a_memory_of_another_engine_needs_a_reorder(other):
    pd = dnn.PrimitiveDesc(relu_op((4,), "a"), CPU)
    assert not pd.needs_reorder(dnn.Memory(pd.src_desc, CPU), "src")
    assert pd.needs_reorder(dnn.Memory(pd.src_desc, other), "src")
    assert pd.needs_reorder(dnn.Memory(dnn.MemoryDesc((4,), "f16"), CPU), "src")


def test_an_engine_without_implementations_says_so(tmp_path):
    program = (
        "import dnncore as dnn\n"
        "desc = dnn.MemoryDesc((4,))\n"
        "dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), dnn.engine('cpu'))"
    )
    environment = {**os.environ, "DNNCORE_BACKENDS": "opencl"}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (
        "reorder: no implementation on cpu accepts this problem: no backend implements"
        in found.stderr
    )


@pytest.mark.parametrize("tag", ["abcdefgh", "abcdefy"])
def test_wrong_tags_of_many_dims(tag):
    with pytest.raises(dnn.DescriptorError, match="tag"):
        dnn.MemoryDesc((1,) * 7, "f32", tag)


# -- observers and interrupts ----------------------------------------------------------------------


class Listener(observers.Observer):
    def __init__(self):
        self.heard = []

    def remarked(self, engine, text):
        self.heard.append(text)


def test_an_observer_that_is_removed_leaves_the_others():
    first, second = Listener(), Listener()
    observers.add(first)
    observers.add(second)
    try:
        observers.remark(CPU, "one")
        observers.remove(first)
        observers.remark(CPU, "two")
    finally:
        observers.remove(first)
        observers.remove(second)
    assert (first.heard, second.heard) == (["one"], ["one", "two"])


def test_the_collector_stays_off_if_it_was_off():
    gc.disable()
    try:
        with registered(Relu("toybackend:relu")):
            dnn.PrimitiveDesc(relu_op((4,), "a"), CPU, impl="toybackend:*").primitive()
        assert interrupts.uninterrupted(gc.isenabled) is False
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_error_of_a_handler_that_is_a_partial_call_is_passed_on():
    def handle(word, *_):
        raise KeyError(word)

    before = signal.signal(signal.SIGUSR1, functools.partial(handle, "stop"))
    try:
        with pytest.raises(KeyError) as found:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(KeyError, match="stop"):
            interrupts.pass_on(found.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    interrupts.pass_on(found.value)
