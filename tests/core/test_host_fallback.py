"""An engine that lacks an operation may be served by the CPU, announced and only if allowed."""

from contextlib import contextmanager

import numpy as np
import pytest
from combinations import every_second
from toy import Relu, ToyEngine, registered, relu_op

import dnncore as dnn
from dnncore.backend import Refused
from dnncore.comparison.compare import consistent_inputs
from dnncore.comparison.fills import fill_integers
from dnncore.problem import read
from dnncore.testing.problems.cases import cases


class RemoteEngine(ToyEngine):
    """A toy engine whose memory is not the host's, as far as the core can tell."""

    kind = "remote"
    is_host = False


@contextmanager
def opened(kind):
    """An engine whose backend has one implementation of one operation."""
    engines = {kind: {"toy": "toy:ToyEngine", "remote": f"{__name__}:RemoteEngine"}[kind]}
    with registered(Relu("toybackend:relu", 9.0), kind=kind, engines=engines):
        yield dnn.engine(kind)


@pytest.fixture(params=["toy", "remote"])
def engine(request):
    with opened(request.param) as engine:
        yield engine


def log_softmax():
    desc = dnn.MemoryDesc((3, 7))
    return dnn.SoftmaxForward("forward_inference", "log", src=desc, dst=desc, axis=1)


def test_without_leave_the_error_names_the_way_out(engine):
    with pytest.raises(dnn.NoImplementation, match="host_fallback=True") as caught:
        dnn.PrimitiveDesc(log_softmax(), engine)
    assert any(r.impl_name.startswith("host:cpu_numba:") for r in caught.value.refusals)
    assert str(caught.value).count("host_fallback=True") == 1
    assert "host:" not in str(caught.value)


def test_the_way_out_of_a_one_line_function_is_the_variable(engine, monkeypatch):
    x = np.ones((3, 7), np.float32)
    with pytest.raises(dnn.NoImplementation, match="set DNNCORE_HOST_FALLBACK=1, or pass"):
        dnn.functional.log_softmax(x, engine=engine)
    monkeypatch.setenv("DNNCORE_HOST_FALLBACK", "1")
    assert dnn.functional.log_softmax(x, engine=engine).shape == (3, 7)


def test_a_fallback_has_the_note_host_and_no_knobs(engine):
    descs = {name: dnn.MemoryDesc((4, 4)) for name in ("src", "weights", "dst")}
    pd = dnn.PrimitiveDesc(dnn.MatMul(**descs), engine, host_fallback=True)
    assert {"compiles", "host"} <= set(pd.notes)
    assert not pd.knobs
    with pytest.raises(dnn.NoImplementation, match="has no knob 'vectors'"):
        dnn.PrimitiveDesc(dnn.MatMul(**descs), engine, host_fallback=True, knobs={"vectors": 1})
    with pytest.raises(dnn.NoImplementation, match="skip_impl=note:host"):
        dnn.PrimitiveDesc(dnn.MatMul(**descs), engine, host_fallback=True, skip_impl="note:host")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_with_leave_the_cpu_serves(engine, how, monkeypatch):
    wishes = {"host_fallback": True} if how == "argument" else {}
    if how == "environment":
        monkeypatch.setenv("DNNCORE_HOST_FALLBACK", "1")
    pd = dnn.PrimitiveDesc(log_softmax(), engine, **wishes)
    assert pd.impl_name.startswith("host:cpu_numba:")
    assert pd.is_host_fallback
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    src, dst = dnn.Memory.from_numpy(x, engine=engine), dnn.Memory(pd.dst_desc, engine)
    bound = pd.primitive().bind(src=src, dst=dst)
    for _ in range(2):
        bound(engine.stream()).wait()
        expected = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(dst.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_native_implementations_come_first(engine):
    found = [pd.impl_name for pd in dnn.primitive_descs(relu_op(), engine, host_fallback=True)]
    assert found[0] == "toybackend:relu"
    assert all(name.startswith("host:") for name in found[1:])
    assert len(found) > 1


def test_in_place_and_sum_post_ops_read_the_old_values(engine):
    desc = dnn.MemoryDesc((2, 3))
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    attr = dnn.Attributes(post_ops=[dnn.PostOp.sum(2.0)])
    pd = dnn.PrimitiveDesc(op, engine, attr, host_fallback=True)
    src = dnn.Memory.from_numpy(np.full((2, 3), 5, np.float32), engine=engine)
    dst = dnn.Memory.from_numpy(np.full((2, 3), 10, np.float32), engine=engine)
    pd.primitive().execute(engine.stream(), src=src, dst=dst)
    assert (dst.numpy() == 25).all()


@pytest.mark.parametrize(("dims", "start"), [((4, 2), (0, 1)), ((2, 4), (1, 0))])
def test_results_written_to_a_part_leave_the_rest(engine, dims, start):
    """Columns have gaps; rows are dense, but begin behind others."""
    whole = dnn.Memory.from_numpy(np.full((4, 4), 9, np.float32), engine=engine)
    part = whole.submemory(dims, start)
    src = dnn.Memory.from_numpy(np.full(dims, -1, np.float32), engine=engine)
    op = dnn.EltwiseForward("forward_inference", "tanh", src=src.desc, dst=part.desc)
    pd = dnn.PrimitiveDesc(op, engine, host_fallback=True)
    pd.primitive().execute(engine.stream(), src=src, dst=part)
    expected = np.full((4, 4), 9, np.float32)
    expected[start[0] :, start[1] :][: dims[0], : dims[1]] = np.tanh(np.float32(-1))
    np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-6)


def test_operands_follow_an_absent_workspace(engine):
    """Inference keeps no workspace: what comes behind it in the table moves up."""
    src_desc, dst_desc = dnn.MemoryDesc((1, 1, 2, 2)), dnn.MemoryDesc((1, 1, 1, 1))
    op = dnn.PoolingForward("forward_inference", "max", src=src_desc, dst=dst_desc, kernel=2)
    attr = dnn.Attributes([dnn.PostOp.binary("mul", dst_desc)])
    pd = dnn.PrimitiveDesc(op, engine, attr, host_fallback=True)
    values = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 2, 2)
    src = dnn.Memory.from_numpy(values, engine=engine)
    factor = dnn.Memory.from_numpy(np.full((1, 1, 1, 1), 10, np.float32), engine=engine)
    dst = dnn.Memory(dst_desc, engine)
    pd.primitive().execute(engine.stream(), src=src, dst=dst, post_op_0_src=factor)
    assert dst.numpy().item() == 40
    assert factor.numpy().item() == 10


@every_second(("kind", ["toy", "remote"]), ("text", map(str, cases("tiny"))))
def test_all_outputs_of_all_operations_are_right(kind, text):
    """Also workspaces, and operations that read them."""
    with opened(kind) as engine:
        _check_outputs(engine, *read(text))


def _check_outputs(engine, problem):
    op, attr = problem.op, problem.attr
    pd = dnn.PrimitiveDesc(op, engine, attr, impl="host:*", host_fallback=True)
    inputs = consistent_inputs(op, attr, fill_integers, 0)
    memories = {argument.name: dnn.Memory(desc, engine) for argument, desc in pd.arguments}
    for name, memory in memories.items():
        if name in inputs:
            with memory.map(mode="w") as buffer:
                memory.desc.pack(inputs[name], buffer)
    found = dnn.against_reference(pd, memories, engine.stream())
    outputs = {a.name for a, _ in pd.arguments if a.direction == "out"}
    assert outputs == set(found)
    assert all(comparison.ok for comparison in found.values()), found


@pytest.mark.parametrize("name", [d.name for d in dnn.devices() if d.kind == "opencl" and d.device])
@pytest.mark.parametrize("order", ["in", "out"])
def test_the_event_of_a_fallback_is_that_of_its_last_copy(name, order):
    device = dnn.engine(name)
    pd = dnn.PrimitiveDesc(log_softmax(), device, host_fallback=True, impl="host:*")
    assert pd.is_host_fallback
    values = np.linspace(-3, 3, 21, dtype=np.float32).reshape(3, 7)
    src, dst = dnn.Memory.from_numpy(values, engine=device), dnn.Memory(pd.dst_desc, device)
    pd.primitive().execute(device.stream(order), src=src, dst=dst).wait()
    expected = values - np.log(np.exp(values).sum(1, keepdims=True))
    np.testing.assert_allclose(dst.numpy(), expected, rtol=1e-5)


ANY_CONVOLUTIONS = [
    "--conv --dir=FWD_D --stag=any --wtag=any --dtag=any mb2ic16ih9oc32oh7kh3ph0",
    "--conv --dir=FWD_D --wtag=any --dtag=any mb2ic3ih9oc17oh9kh3ph1",
    "--conv --dir=FWD_D --wtag=any --dtag=any g32mb2ic32ih9oc32oh9kh3ph1",
    "--conv --dir=BWD_D --stag=any --wtag=any mb2ic16ih9oc32oh7kh3ph0",
    "--conv --dir=BWD_W --stag=any --wtag=any --dtag=any mb2ic16ih9oc32oh7kh3ph0",
    "--ip --dir=FWD_D --stag=any --wtag=any --dtag=any mb4ic16ih3oc32",
    "--matmul --stag=any --wtag=any --dtag=any 33x65:65x17",
]


@pytest.mark.parametrize("text", ANY_CONVOLUTIONS)
def test_a_fallback_has_plain_formats_which_the_devices_own_implementations_take(engine, text):
    """On the CPU itself, the same problem gets blocked or opaque formats."""
    (problem,) = read(text)
    descs = dnn.primitive_descs(problem.op, engine, impl="host:*", host_fallback=True)
    own = [pd for pd in descs if not pd.is_reference]
    assert own
    assert all(desc.is_plain for pd in own for desc in pd.descs.values())


def test_a_fallback_keeps_plain_formats_that_the_cpu_chooses(engine):
    src = dnn.MemoryDesc((2, 3, 4, 5), "f32", "nhwc")
    op = dnn.EltwiseForward(
        "forward_inference", "tanh", src=src, dst=dnn.MemoryDesc(src.dims, "f32", "any")
    )
    assert dnn.PrimitiveDesc(op, engine, host_fallback=True).dst_desc == src


class PlainRelu(Relu):
    """Relu of a device that takes plain formats alone."""

    def accept(self, op, attr, engine, hint):
        if not op.src.is_plain:
            return Refused("format", f"only plain formats; got {op.src}")
        return super().accept(op, attr, engine, hint)


def test_the_devices_relu_takes_what_a_convolution_by_fallback_gives():
    (problem,) = read("--conv --dir=FWD_D --wtag=any --dtag=any mb2ic16ih9oc32oh7kh3ph0")
    cpu = dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"))
    assert not cpu.dst_desc.is_plain  # otherwise this test shows nothing
    engines = {"remote": f"{__name__}:RemoteEngine"}
    with registered(PlainRelu("toybackend:relu", 9.0), kind="remote", engines=engines):
        device = dnn.engine("remote")
        dst = dnn.PrimitiveDesc(problem.op, device, host_fallback=True).dst_desc
        op = dnn.EltwiseForward("forward_inference", "relu", src=dst, dst=dst)
        assert dnn.PrimitiveDesc(op, device, host_fallback=True).impl_name == "toybackend:relu"


def test_half_types_of_a_fallback_are_computed_in_f32(monkeypatch):
    monkeypatch.setenv("DNNCORE_HOST_FALLBACK", "1")
    values = np.linspace(-3, 3, 21, dtype=np.float16).reshape(3, 7)
    engines = {"remote": f"{__name__}:RemoteEngine"}
    with registered(Relu("toybackend:relu", 9.0), kind="remote", engines=engines):
        got = dnn.functional.softmax(values, engine=dnn.engine("remote"))
    wide = np.exp(values.astype(np.float32))
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, (wide / wide.sum(1, keepdims=True)).astype(np.float16))
