"""`dnncore.crosscheck`: which launches are repeated, what is reported, what is not disturbed."""

import gc
import threading
import weakref

import numpy as np
import pytest
import toy
from planted_layers import FAULTS, planted

import dnncore as dnn
from dnncore import backend, observers
from dnncore.backend import Accepted, HostFunction, Implementation


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Saved calls go to a temporary folder."""
    monkeypatch.chdir(tmp_path)


def relu(engine, dims=(4, 6), data_type="f32", **wishes):
    desc = dnn.MemoryDesc(dims, data_type)
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    return dnn.PrimitiveDesc(op, engine, **wishes).primitive()


def drawn(desc, engine, seed=0):
    values = np.random.default_rng(seed).standard_normal(desc.dims).astype(desc.dtype)
    return dnn.Memory.from_numpy(values, desc, engine)


def launched(primitive, **memories):
    """Execute with random inputs; return all memories."""
    for seed, (argument, desc) in enumerate(primitive.pd.arguments):
        engine = primitive.pd.engine
        if argument.name not in memories:
            is_read = argument.direction == "in"
            memories[argument.name] = (
                drawn(desc, engine, seed) if is_read else dnn.Memory(desc, engine)
            )
    primitive.execute(engine.stream(), **memories).wait()
    return memories


@pytest.fixture
def cpu():
    return dnn.engine("cpu")


@pytest.fixture
def faulty_relu():
    """Relu of 2-dimensional tensors with an even number of rows is wrong."""
    where = lambda op: op.src.ndims == 2 and op.src.dims[0] % 2 == 0  # noqa: E731
    with planted("cpu", dnn.EltwiseForward, where, FAULTS["last_element"]):
        yield


# -- names and modes -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["refrence", "nobody:*", "opencl:99", "", None, 3, "cpu, nobody"])
def test_an_unknown_name_is_an_error(name):
    with pytest.raises(dnn.DescriptorError, match="crosscheck: expected 'reference'"):
        dnn.crosscheck(name)


@pytest.mark.parametrize("wrong", [{"mode": "print"}, {"mode": None}, {"slowdown": 1},
                                   {"slowdown": "15"}, {"slowdown": float("nan")},
                                   {"folder": 3}])  # fmt: skip
def test_wrong_arguments(wrong):
    (name,) = wrong
    with pytest.raises(dnn.DescriptorError, match=f"crosscheck: {name} must be"):
        dnn.crosscheck("reference", **wrong)


def test_report_prints_each_divergence_and_a_summary(cpu, faulty_relu, capsys):
    primitive = relu(cpu)
    with dnn.crosscheck("reference", slowdown=None):
        launched(primitive)
        launched(primitive)
    text = capsys.readouterr().err
    assert "call 1: dst of planted:fault on cpu diverges from reference" in text
    assert "problem: --eltwise --dir=FWD_I --impl=planted:fault 4x6" in text
    assert "worst at [3, 5]" in text
    assert "again: dnncore check --inputs=dnncore-divergences/call-1-eltwise.npz" in text
    assert text.count("problem: ") == 1  # the second divergence takes one line
    assert "crosscheck against reference: 2 calls, 2 compared, 2 divergences" in text


@pytest.mark.parametrize("way", ["execute", "bind", "sequence"])
def test_raise_raises_at_the_launch(cpu, faulty_relu, way):
    primitive = relu(cpu)
    memories = {n: drawn(desc, cpu) for n, desc in primitive.pd.descs.items()}
    call = primitive.bind(**memories)
    launch = {
        "execute": lambda stream: primitive.execute(stream, **memories),
        "bind": call,
        "sequence": dnn.Sequence([call, call]),
    }[way]
    with (
        dnn.crosscheck("reference", mode="raise") as report,
        pytest.raises(dnn.CrossCheckError, match=r"call 1: dst of planted:fault"),
    ):
        launch(cpu.stream())
    assert len(report.divergences) == 1
    launch(cpu.stream())  # behind the block nothing is compared


def test_a_folder_that_cannot_be_written(cpu, faulty_relu, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with dnn.crosscheck("reference", folder=tmp_path / "file" / "folder") as report:
        launched(relu(cpu))
    assert report.divergences[0].path is None
    text = capsys.readouterr().err
    assert "not saved: " in text
    assert "again: " not in text


def test_collect_prints_the_summary_only(cpu, faulty_relu, capsys):
    with dnn.crosscheck("reference", mode="collect") as report:
        launched(relu(cpu))
        assert not capsys.readouterr().err
    assert str(report) in capsys.readouterr().err


def test_a_pattern_compares_with_another_implementation(cpu, faulty_relu):
    with dnn.crosscheck("cpu_numba:*") as report:
        launched(relu(cpu))
        launched(relu(cpu, (3, 6)))
    (divergence,) = report.divergences
    assert divergence.other == "cpu_numba:simd"
    assert divergence.verdict[0].startswith("cpu_numba:simd is closer to the reference")
    assert divergence.verdict[1].startswith("planted:fault breaks its bound")
    assert divergence.verdict[2].startswith("cpu_numba:simd keeps its bound")
    (reason,) = report.left_out
    assert reason[1:] == (
        "cpu_numba:simd",
        "no other implementation by cpu_numba:*: there is none but cpu_numba:simd",
    )


def test_the_other_implementation_is_blamed_if_it_is_wrong(cpu, faulty_relu):
    """And the saved call repeats the wrong one."""
    with dnn.crosscheck("planted:*") as report:
        launched(relu(cpu, impl="cpu_numba:*"))
    (divergence,) = report.divergences
    assert divergence.verdict[0].startswith("cpu_numba:simd is closer to the reference")
    from dnncore.crosschecking.saved import load

    assert load(divergence.path).implementation == "planted:fault"


def test_another_engine_repeats_the_calls(cpu, faulty_relu):
    pocl = pytest.importorskip("pyopencl") and dnn.engine("pocl")
    with dnn.crosscheck("pocl") as report:
        launched(relu(cpu))
        launched(relu(cpu, (3, 6)))
    assert [d.other for d in report.divergences] == ["opencl:pointwise"]
    assert report.compared == 2
    with dnn.crosscheck("cpu") as report:
        launched(relu(pocl, (3, 6)))
    assert report.compared == 1


# -- which launches --------------------------------------------------------------------------------


def test_calls_made_before_the_block_are_repeated(cpu, faulty_relu):
    primitive = relu(cpu)
    memories = {name: drawn(desc, cpu) for name, desc in primitive.pd.descs.items()}
    call, stream = primitive.bind(**memories), cpu.stream()
    sequence = dnn.Sequence([call])
    call(stream)
    sequence(stream)
    with dnn.crosscheck("reference", mode="collect", slowdown=None) as report:
        call(stream)
        sequence(stream)
        primitive.execute(stream, **memories)
    assert [d.number for d in report.divergences] == [1, 2, 3]


def test_repetitions_are_not_repeated_and_blocks_may_be_nested(cpu, faulty_relu):
    with (
        dnn.crosscheck("reference", mode="collect") as outer,
        dnn.crosscheck("cpu_numba:*", mode="collect") as inner,
    ):
        launched(relu(cpu))
    assert outer.calls == inner.calls == 1
    assert len(outer.divergences) == len(inner.divergences) == 1


def test_all_threads_are_compared(cpu, faulty_relu):
    primitives = [relu(cpu, (2 * n + 2, 5)) for n in range(4)]
    with dnn.crosscheck("reference", mode="collect") as report:
        threads = [
            threading.Thread(target=lambda p=p: [launched(p) for _ in range(5)]) for p in primitives
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert report.calls == report.compared == len(report.divergences) == 20
    assert sorted(d.number for d in report.divergences) == [*range(1, 21)]


def test_a_limit_of_time_postpones_calls_on_known_memories(cpu):
    primitive = relu(cpu, (64, 64))
    memories = {name: drawn(desc, cpu) for name, desc in primitive.pd.descs.items()}
    with dnn.crosscheck("reference", slowdown=1.001) as report:
        for _ in range(50):
            primitive.execute(cpu.stream(), **memories)
        primitive.execute(cpu.stream(), **{**memories, "dst": dnn.Memory(primitive.pd.dst_desc)})
    assert report.calls == 51
    assert report.postponed == 51 - report.compared >= 40
    assert f"not repeated because of the limit of time: {report.postponed} calls" in str(report)


# -- what is compared ------------------------------------------------------------------------------


def test_in_place_and_sums_read_the_old_values(cpu):
    desc = dnn.MemoryDesc((4, 6))
    with dnn.crosscheck("reference", slowdown=None) as report:
        x = drawn(desc, cpu)
        launched(relu(cpu), src=x, dst=x)
        op = dnn.Binary("add", src0=desc, src1=desc, dst=desc)
        attr = dnn.Attributes(post_ops=[dnn.PostOp.sum(0.5)])
        launched(dnn.PrimitiveDesc(op, cpu, attr).primitive(), dst=drawn(desc, cpu, 7))
    assert report.compared == 2
    assert not report.divergences


def test_a_divergence_in_place_is_repeated_in_place(cpu, faulty_relu):
    x = drawn(dnn.MemoryDesc((4, 6)), cpu)
    with dnn.crosscheck("reference", mode="collect") as report:
        launched(relu(cpu), src=x, dst=x)
    (divergence,) = report.divergences
    assert "--inplace=true" in divergence.problem


def test_nan_and_infinity_are_values(cpu, faulty_relu):
    values = np.array([[np.nan, np.inf, -np.inf, 1.0]] * 3, np.float32)
    primitive = relu(cpu, (3, 4))
    with dnn.crosscheck("reference") as report:
        launched(primitive, src=dnn.Memory.from_numpy(values, engine=cpu))
    assert report.compared == 1
    assert not report.divergences


def test_a_wrong_nan_is_shown_in_the_heat_map(cpu):
    with (
        planted("cpu", dnn.EltwiseForward, lambda op: True, FAULTS["nan"]),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        launched(relu(cpu, (3, 4)))
    (divergence,) = report.divergences
    assert divergence.heat_map[1:] == ("....", "N...", "....")


def test_tensors_without_elements(cpu):
    with dnn.crosscheck("reference") as report:
        launched(relu(cpu, (0, 6)))
    assert report.compared == 1
    assert not report.divergences
    assert not report.left_out


@pytest.mark.parametrize("data_type", ["f16", "bf16"])
def test_a_cut_off_of_half_types_is_found(data_type):
    """Each error is within the bound; all together show it."""
    pocl = pytest.importorskip("pyopencl") and dnn.engine("pocl")
    desc = dnn.MemoryDesc((16, 16), data_type)
    op = dnn.EltwiseForward("forward_inference", "tanh", src=desc, dst=desc)
    with dnn.crosscheck("reference", mode="collect") as report:
        launched(dnn.PrimitiveDesc(op, pocl).primitive())
    assert not report.divergences
    with (
        planted("opencl", dnn.EltwiseForward, lambda op: True, FAULTS["truncated"]),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        launched(dnn.PrimitiveDesc(op, pocl).primitive())
    (divergence,) = report.divergences
    assert divergence.comparison.lost
    assert "lost precision" in divergence.verdict[0]


def test_results_of_whole_numbers_must_be_exact(cpu):
    """An error within the bound of rounding errors."""

    def off_by_one_bit(new, old):
        new.flat[0] = np.nextafter(new.flat[0], np.float32(np.inf))

    desc = dnn.MemoryDesc((8, 8))
    whole = dnn.Memory.from_numpy(np.arange(64, dtype=np.float32).reshape(8, 8), engine=cpu)
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    with (
        planted("cpu", dnn.MatMul, lambda op: True, off_by_one_bit),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        primitive = dnn.PrimitiveDesc(op, cpu).primitive()
        launched(primitive, src=whole, weights=whole)
        launched(primitive)
    (divergence,) = report.divergences
    assert divergence.number == 1
    assert "must be exact" in divergence.verdict[0]


def test_a_result_that_changes_breaks_the_promise_to_be_deterministic(cpu):
    calls = []

    def every_second(new, old):
        calls.append(new)
        new.flat[0] += len(calls) % 2

    with (
        planted("cpu", dnn.EltwiseForward, lambda op: True, every_second),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        launched(relu(cpu))
    (divergence,) = report.divergences
    assert "returned other values when it ran again on the same inputs" in divergence.verdict[1]
    assert "deterministic" in divergence.verdict[1]


def test_an_infinity_may_meet_the_zeros_of_padding_or_not(cpu):
    """The reference multiplies them, which gives NaN. Other implementations leave them out."""
    src = dnn.MemoryDesc((1, 2, 5, 5))
    op = dnn.ConvolutionForward(
        "forward_inference", src=src, weights=dnn.MemoryDesc((3, 2, 3, 3)),
        dst=dnn.MemoryDesc((1, 3, 5, 5)), padding_l=(1, 1),
    )  # fmt: skip
    weights = drawn(op.weights, cpu)
    weights.numpy()[0, 0, 0, 0] = np.inf
    with dnn.crosscheck("reference", slowdown=None) as report:
        for pd in dnn.primitive_descs(op, cpu, skip_impl="reference:*"):
            launched(pd.primitive(), weights=weights)
    assert report.compared > 3
    assert not report.divergences


# -- tensors that only their owner can read --------------------------------------------------------


def test_opaque_weights_stand_for_those_that_were_reordered(cpu):
    src, dst = dnn.MemoryDesc((1, 16, 12, 12)), dnn.MemoryDesc((1, 16, 12, 12))
    plain = dnn.MemoryDesc((16, 16, 3, 3))
    op = dnn.ConvolutionForward(
        "forward_inference", algorithm="winograd", src=src, weights=plain.with_format("any"),
        dst=dst, padding_l=(1, 1),
    )  # fmt: skip
    pd = dnn.PrimitiveDesc(op, cpu, impl="cpu_numba:winograd*")
    assert pd.weights_desc.format_kind == "opaque"
    with dnn.crosscheck("reference", mode="collect") as report:
        weights = dnn.reorder(drawn(plain, cpu), pd.weights_desc, cpu)
        memories = launched(pd.primitive(), weights=weights)
    assert report.calls == 2
    assert report.compared == 1
    assert [key[0] for key in report.left_out] == ["reorder"]
    assert not report.divergences
    with dnn.crosscheck("reference", mode="collect") as report:
        weights = dnn.reorder(drawn(plain, cpu), pd.weights_desc, cpu)
        weights.buffer[:] = dnn.reorder(drawn(plain, cpu, 1), pd.weights_desc, cpu).buffer
        launched(pd.primitive(), weights=weights)
    assert report.compared == 0  # the bytes are not those of the first reorder
    assert not report.divergences
    with dnn.crosscheck("reference", mode="collect") as report:
        launched(pd.primitive(), **memories)
    ((_, _, reason),) = report.left_out
    assert "can read weights, and the call that wrote it was not seen" in reason


# -- what is not disturbed -------------------------------------------------------------------------


def test_errors_of_a_launch_are_passed_through(cpu):
    def fail(src, dst):
        raise ZeroDivisionError("by the kernel")

    class Failing(toy.Relu):
        def build(self):
            return HostFunction(fail)

    with (
        toy.registered(Failing("toybackend:failing", 1.0)),
        dnn.crosscheck("reference") as report,
        pytest.raises(dnn.ExecutionError, match="by the kernel"),
    ):
        launched(relu(cpu, impl="toybackend:*"))
    assert report.calls == 1
    assert report.compared == 0


def test_a_failing_repetition_leaves_the_call_out(cpu):
    class Broken(toy.Relu):
        def build(self):
            raise ZeroDivisionError("in build")

    with (
        toy.registered(Broken("toybackend:broken")),
        dnn.crosscheck("toybackend:*", mode="raise") as report,
    ):
        launched(relu(cpu, impl="cpu_numba:*"))
    ((_, _, reason),) = report.left_out
    assert "the repetition failed" in reason
    assert "in build" in reason


def test_wrong_arguments_of_a_launch_are_passed_through(cpu):
    with dnn.crosscheck("reference") as report, pytest.raises(dnn.DescriptorError):
        relu(cpu).execute(cpu.stream())
    assert report.calls == 0


def test_memories_are_released(cpu):
    with dnn.crosscheck("reference") as report:
        memories = launched(relu(cpu))
    dst = weakref.ref(memories["dst"])
    del memories
    gc.collect()
    assert dst() is None
    assert report.compared == 1
    assert not observers.active


def test_the_state_of_a_block_is_released(cpu):
    block = dnn.crosscheck("cpu_numba:*")
    with block, planted("cpu", dnn.EltwiseForward, lambda op: False, None):
        launched(relu(cpu, impl="reference:*"))
    observer = weakref.ref(block._observer)
    del block
    gc.collect()
    assert observer() is None


def test_events_and_streams_keep_their_meaning():
    """Out of order, behind an event of another engine."""
    pytest.importorskip("pyopencl")
    from opencl_engine import Gate

    pocl = dnn.engine("pocl")
    primitive, stream = relu(pocl), pocl.stream("out")
    src = dnn.Memory(primitive.pd.src_desc, pocl)
    dst = dnn.Memory(primitive.pd.dst_desc, pocl)
    gate, values = Gate(), np.full((4, 6), 2, np.float32)

    def write_late():
        with src.map(mode="w") as buffer:
            buffer[:] = values.reshape(-1).view(np.uint8)
        gate.open()

    timer = threading.Timer(0.2, write_late)
    timer.start()
    with dnn.crosscheck("reference") as report:
        event = primitive.execute(stream, src=src, dst=dst, wait_for=[gate])
        event.wait()
    timer.join()
    assert (dst.numpy() == 2).all()
    assert report.compared == 1
    assert not report.divergences


def test_a_failed_event_fails_the_launch():
    pytest.importorskip("pyopencl")
    from opencl_engine import Gate

    pocl = dnn.engine("pocl")
    primitive, stream = relu(pocl), pocl.stream()
    gate = Gate()
    gate.open(dnn.ExecutionError("of another engine"))
    memories = {name: drawn(desc, pocl) for name, desc in primitive.pd.descs.items()}
    with (
        dnn.crosscheck("reference") as report,
        pytest.raises(dnn.ExecutionError, match="EXEC_STATUS_ERROR"),
    ):
        primitive.execute(stream, **memories, wait_for=[gate]).wait()
    assert report.compared == 0
    with pytest.raises(dnn.ExecutionError):
        stream.wait()


# -- host fallbacks and the reference --------------------------------------------------------------


def test_the_summary_lists_host_fallbacks_and_uses_of_the_reference(cpu):
    with (
        toy.devices("toydevice", dnn.Device("toy")),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        launched(relu(dnn.engine("toydevice"), host_fallback=True))
        launched(relu(cpu, impl="reference:*"))
    text = str(report)
    assert "host fallbacks: 1 call\n    1 x host:cpu_numba:simd on toydevice" in text
    assert "computed by the reference: 1 call\n    1 x reference:eltwise on cpu: eltwise" in text
    ((_, _, reason),) = report.left_out
    assert reason == "the reference computed it"
    assert report.compared == 1


# -- engines, scratchpads, workspaces --------------------------------------------------------------


def test_a_users_scratchpad(cpu):
    """The other implementation has its own; the repetition of a wrong call, too."""
    desc = dnn.MemoryDesc((1, 16, 12, 12))
    op = dnn.ConvolutionForward(
        "forward_inference", algorithm="winograd", src=desc, weights=dnn.MemoryDesc((16, 16, 3, 3)),
        dst=desc, padding_l=(1, 1),
    )  # fmt: skip
    attr = dnn.Attributes(scratchpad="user")
    with (
        planted("cpu", dnn.ConvolutionForward, lambda op: True, FAULTS["last_element"]),
        dnn.crosscheck("reference", mode="collect") as report,
    ):
        for wishes in ({"impl": "cpu_numba:winograd*"}, {}):
            primitive = dnn.PrimitiveDesc(op, cpu, attr, **wishes).primitive()
            own = primitive.pd.scratchpad_desc
            scratchpad = {"scratchpad": dnn.Memory(own, cpu)} if own else {}
            launched(primitive, **scratchpad)
    assert report.compared == 2
    assert [d.implementation for d in report.divergences] == ["planted:fault"]
    assert len(report.divergences[0].verdict) == 1


def test_reorders_between_engines(cpu):
    pocl = pytest.importorskip("pyopencl") and dnn.engine("pocl")
    src = drawn(dnn.MemoryDesc((3, 5)), cpu)
    with dnn.crosscheck("reference") as report:
        there = dnn.reorder(src, dnn.MemoryDesc((3, 5), "f32", "ba"), pocl)
        back = dnn.reorder(there, src.desc, cpu)
    assert (back.numpy() == src.numpy()).all()
    assert report.compared == 2
    assert not report.left_out


def test_an_out_of_order_stream_with_scratchpads():
    pocl = pytest.importorskip("pyopencl") and dnn.engine("pocl")
    src = dnn.MemoryDesc((2, 17, 9, 9))
    op = dnn.ConvolutionForward(
        "forward_inference", src=src, weights=dnn.MemoryDesc((19, 17, 3, 3)),
        dst=dnn.MemoryDesc((2, 19, 9, 9)), padding_l=(1, 1),
    )  # fmt: skip
    primitive = dnn.PrimitiveDesc(op, pocl).primitive()
    memories = {name: drawn(desc, pocl) for name, desc in primitive.pd.descs.items()}
    call, stream = primitive.bind(**memories), pocl.stream("out")
    with dnn.crosscheck("reference", slowdown=None) as report:
        event = call(stream)
        dnn.Sequence([call, call])(stream, [event]).wait()
    assert report.compared == 3
    assert not report.divergences


class PrivatePooling(Implementation):
    """Pooling whose workspace nobody else can read: the public one, with all bits inverted."""

    name = "private:pooling"

    def accept(self, op, attr, engine, hint):
        op = op.with_descs(**{a.name: d.with_format(None) for a, d in op.tensors() if d.is_any})
        public = op.workspace_desc()
        private = dnn.MemoryDesc(public.dims, public.data_type, "private:inverted",
                                 nbytes=public.nbytes)  # fmt: skip
        return Accepted(op, lambda: HostFunction(self.compute(op, public)), workspace=private,
                        seconds=1e-9)  # fmt: skip

    def compute(self, op, public):
        from dnncore.comparison.compare import correct_values

        def forward(src, dst, workspace):
            values = correct_values(op, dnn.Attributes(), {"src": src.numpy()})
            dst.desc.pack(values["dst"] * FACTOR, dst.buffer)
            public.pack(values["workspace"], workspace.buffer)
            np.invert(workspace.buffer, out=workspace.buffer)

        def backward(diff_dst, workspace, diff_src):
            inputs = {
                "diff_dst": diff_dst.numpy(),
                "workspace": public.unpack(np.invert(workspace.buffer)),
            }
            values = correct_values(op, dnn.Attributes(), inputs)
            diff_src.desc.pack(values["diff_src"] * FACTOR, diff_src.buffer)

        return forward if op.forward_op is None else backward


FACTOR = np.float32(1)
PRIVATE = [PrivatePooling()]


@pytest.fixture
def private_pooling():
    """A backend with private workspaces."""
    tables = {
        ("cpu", op): f"{__name__}:PRIVATE" for op in (dnn.PoolingForward, dnn.PoolingBackward)
    }
    module = toy.plugin(
        lambda: backend.Backend("private", backend.API_VERSION, implementations=tables)
    )
    dnn.register(module)
    yield
    dnn.unregister(module)


def pooled(cpu, impl):
    """Launch pooling and its gradient; return the launch of the gradient."""
    src, dst = dnn.MemoryDesc((2, 3, 6, 6)), dnn.MemoryDesc((2, 3, 3, 3))
    window = {"kernel": (2, 2), "strides": (2, 2)}
    op = dnn.PoolingForward("forward_training", "max", src=src, dst=dst, **window)
    forward = dnn.PrimitiveDesc(op, cpu, impl=impl)
    workspace = launched(forward.primitive())["workspace"]
    gradient = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **window)
    backward = dnn.PrimitiveDesc(gradient, cpu, impl=impl, hint=forward).primitive()
    launched(backward, workspace=workspace)
    return lambda: launched(backward, workspace=workspace)


@pytest.mark.parametrize(
    ("program", "other"),
    [("private:*", "reference"), ("private:*", "cpu_numba:*"), ("cpu_numba:*", "private:*")],
)
def test_private_workspaces_stand_for_those_of_the_other_implementation(
    cpu, private_pooling, program, other, monkeypatch
):
    with dnn.crosscheck(other, mode="collect") as report:
        pooled(cpu, program)
    assert report.compared == 2
    assert not report.divergences
    monkeypatch.setattr(f"{__name__}.FACTOR", np.float32(2))
    with dnn.crosscheck(other, mode="collect") as report:
        pooled(cpu, program)
    assert [d.argument for d in report.divergences] == ["dst", "diff_src"]


@pytest.mark.parametrize(
    ("program", "other"), [("private:*", "reference"), ("cpu_numba:*", "private:*")]
)
def test_a_private_workspace_that_was_not_seen(cpu, private_pooling, program, other):
    again = pooled(cpu, program)
    with dnn.crosscheck(other, mode="collect") as report:
        again()
    assert report.compared == 0
    ((_, _, reason),) = report.left_out
    assert "forward call was not repeated" in reason or "was not seen" in reason


# -- what hides faults, and what looks like one ----------------------------------------------------


@pytest.mark.parametrize("padding", [0, 1])
def test_lost_nan_of_a_convolution(cpu, padding):
    """Also where the window reaches into padding."""
    lost = lambda new, old: np.nan_to_num(new, copy=False)  # noqa: E731
    src, weights = dnn.MemoryDesc((1, 3, 8, 8)), dnn.MemoryDesc((2, 3, 3, 3))
    size = 6 + 2 * padding
    pads = {"padding_l": (padding,) * 2, "padding_r": (padding,) * 2}
    op = dnn.ConvolutionForward("forward_inference", src=src, weights=weights,
                                dst=dnn.MemoryDesc((1, 2, size, size)), **pads)  # fmt: skip
    values = np.ones(src.dims, np.float32)
    values[0, 1, 4, 4] = np.nan
    with planted("cpu", dnn.ConvolutionForward, lambda op: True, lost):
        primitive = dnn.PrimitiveDesc(op, cpu).primitive()
        with dnn.crosscheck("reference", mode="collect") as report:
            launched(primitive, src=dnn.Memory.from_numpy(values, engine=cpu))
    (divergence,) = report.divergences
    assert divergence.comparisons["dst"].misplaced == 18


LARGE = {  # the values, whose partial sums are beyond the range, and the operation
    "average": (3e38, dnn.PoolingForward(
        "forward_inference", "avg_include_padding", src=dnn.MemoryDesc((1, 1, 4, 4)),
        dst=dnn.MemoryDesc((1, 1, 2, 2)), kernel=(2, 2), strides=(2, 2))),
    "mean": (3e38, dnn.Reduction("mean", src=dnn.MemoryDesc((2, 4)), dst=dnn.MemoryDesc((2, 1)))),
    "norm": (3e25, dnn.Reduction(
        "norm_lp_sum", src=dnn.MemoryDesc((2, 4)), dst=dnn.MemoryDesc((2, 1)), p=2.0)),
    "matmul": (1e19, dnn.MatMul(
        src=dnn.MemoryDesc((2, 4)), weights=dnn.MemoryDesc((4, 2)), dst=dnn.MemoryDesc((2, 2)))),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_partial_sums_beyond_the_range_of_f32_are_no_divergence(cpu, name):
    value, op = LARGE[name]
    inputs = {a.name: dnn.Memory.from_numpy(np.full(desc.dims, value, np.float32), engine=cpu)
              for a, desc in op.tensors() if a.direction == "in"}  # fmt: skip
    for pd in dnn.primitive_descs(op, cpu):
        with dnn.crosscheck("reference", mode="collect") as report:
            launched(pd.primitive(), **inputs)
        assert not report.divergences


class Opaque(Implementation):
    """Its dst can be read by itself alone."""

    name = "opaque:matmul"

    def accept(self, op, attr, engine, hint):
        if not op.dst.is_any:
            return backend.Refused("format", f"takes any; got {op.dst}")
        own = dnn.MemoryDesc(op.dst.dims, "f32", "opaque:own", nbytes=4096)
        plain = {name: dnn.MemoryDesc(getattr(op, name).dims) for name in ("src", "weights")}
        op = op.resolve_any(**plain, dst=own)
        return Accepted(op, lambda: HostFunction(lambda *memories: None), efficiency=1)


OPAQUE = [Opaque()]


def test_another_implementation_whose_results_are_opaque_compares_nothing(cpu):
    tables = {("cpu", dnn.MatMul): f"{__name__}:OPAQUE"}
    module = toy.plugin(lambda: backend.Backend("opaque", "1.1", implementations=tables))
    desc = dnn.MemoryDesc((2, 2))
    dnn.register(module)
    try:
        op = dnn.MatMul(src=desc, weights=desc, dst=desc)
        with dnn.crosscheck("opaque:*", mode="collect") as report:
            launched(dnn.PrimitiveDesc(op, cpu, impl="cpu_numba:*").primitive())
    finally:
        dnn.unregister(module)
    assert report.compared == 0
    assert "no output can be read of both" in str(report)


def test_calls_of_two_blocks_have_files_of_their_own(cpu, faulty_relu):
    paths = set()
    for rows in (2, 4):
        with dnn.crosscheck("reference", mode="collect") as report:
            launched(relu(cpu, (rows, 6)))
        paths.add(report.divergences[0].path)
    assert len(paths) == 2
    assert all(path.is_file() for path in paths)


def test_a_folder_that_cannot_be_made_hides_no_divergence(cpu, faulty_relu):
    with dnn.crosscheck("reference", mode="collect", folder="\0") as report:
        launched(relu(cpu))
    (divergence,) = report.divergences
    assert divergence.path is None
    assert "not saved: " in str(divergence)
