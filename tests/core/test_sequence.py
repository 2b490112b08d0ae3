"""Sequences replay bound calls in order, on whatever implements them."""

import gc
import weakref

import numpy as np
import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.backend import HostFunction

CPU = dnn.engine("cpu")


def chain_of_sums(steps):
    """x = x + 1, `steps` times, each a primitive of its own."""
    desc = dnn.MemoryDesc((33,))
    x = dnn.Memory.from_numpy(np.zeros(33, np.float32), engine=CPU)
    one = dnn.Memory.from_numpy(np.ones(33, np.float32), engine=CPU)
    add = dnn.PrimitiveDesc(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc), CPU).primitive()
    return x, [add.bind(src0=x, src1=one, dst=x) for _ in range(steps)]


def test_calls_run_in_order_every_time():
    x, calls = chain_of_sums(7)
    net, stream = dnn.Sequence(calls), CPU.stream()
    assert len(net) == 7
    for times in (1, 2):
        net(stream).wait()
        assert (x.numpy() == 7 * times).all()


def test_sequences_nest_and_run_on_any_stream():
    x, calls = chain_of_sums(4)
    net = dnn.Sequence([dnn.Sequence(calls[:2]), *calls[2:]])
    net(CPU.stream())
    net(CPU.stream())
    assert (x.numpy() == 8).all()


def test_mixed_implementations_keep_their_order():
    desc = dnn.MemoryDesc((8,))
    x = dnn.Memory.from_numpy(np.full(8, 3, np.float32), engine=CPU)
    double = dnn.Sum((2,), srcs=(desc,), dst=desc)
    square = dnn.Binary("mul", src0=desc, src1=desc, dst=desc)
    fast = dnn.PrimitiveDesc(double, CPU).primitive().bind(src0=x, dst=x)
    other = dnn.Memory.from_numpy(np.full(8, 3, np.float32), engine=CPU)
    reference = dnn.PrimitiveDesc(square, CPU, impl="reference:*").primitive()
    slow = reference.bind(src0=x, src1=other, dst=x)
    dnn.Sequence([fast, slow, fast, slow])(CPU.stream())
    assert (x.numpy() == 3 * 2 * 3 * 2 * 3).all()


@pytest.mark.parametrize("kinds", ["sum", "bin", "elt", "sum,bin", "sum,elt", "bin,elt"])
def test_calls_that_an_observer_wraps_are_told_of_beside_others(kinds, capsys):
    """Whichever of them come first and last."""
    desc = dnn.MemoryDesc((8,))
    x, y = (dnn.Memory.from_numpy(np.ones(8, np.float32), engine=CPU) for _ in range(2))
    ops = {
        "sum": (dnn.Sum((2,), srcs=(desc,), dst=desc), {"src0": x, "dst": y}),
        "bin": (
            dnn.Binary("add", src0=desc, src1=desc, dst=desc),
            {"src0": x, "src1": x, "dst": y},
        ),
        "elt": (
            dnn.EltwiseForward("forward_inference", "abs", src=desc, dst=desc),
            {"src": x, "dst": y},
        ),
    }
    bound = {n: dnn.PrimitiveDesc(op, CPU).primitive().bind(**m) for n, (op, m) in ops.items()}
    order = ["sum", "bin", "elt", "bin", "sum"]
    with dnn.set_verbose(f"profile_exec,filter={kinds.replace(',', '|')}"):
        dnn.Sequence([bound[name] for name in order])(CPU.stream()).wait()
    lines = capsys.readouterr().out.splitlines()
    told = [line.split(",")[5][:3] for line in lines if ",exec," in line]
    assert told == [name for name in order if name in kinds.split(",")]


class Bursting(Relu):
    """An implementation that fails whenever it runs."""

    def build(self):
        return HostFunction(self.burst)

    def burst(self, src, dst):
        raise ZeroDivisionError("so much for that")


@pytest.mark.parametrize("words", ["none", "profile_exec"])
def test_a_failure_tells_which_call_it_was(words):
    _, sums = chain_of_sums(2)
    with registered(Bursting("toybackend:bursting")), dnn.set_verbose(words):
        pd = dnn.PrimitiveDesc(relu_op((8,)), CPU, impl="toybackend:*")
        src, dst = (dnn.Memory(desc, CPU) for desc in (pd.src_desc, pd.dst_desc))
        net = dnn.Sequence([*sums, pd.primitive().bind(src=src, dst=dst), *sums])
        message = "sequence: eltwise by toybackend:bursting failed: ZeroDivisionError: so much"
        with pytest.raises(dnn.ExecutionError, match=message):
            net(CPU.stream())


def test_an_empty_sequence_is_done():
    assert dnn.Sequence([])(CPU.stream()).done


def test_only_bound_calls_are_taken():
    with pytest.raises(dnn.DescriptorError, match=r"got function.*primitive\.bind"):
        dnn.Sequence([lambda stream: None])


@pytest.mark.parametrize("name", [device.name for device in dnn.devices() if device.status == "ok"])
def test_a_sequence_that_is_gone_keeps_no_memory(name):
    engine, desc = dnn.engine(name), dnn.MemoryDesc((7, 33))
    stream = engine.stream()
    add = dnn.PrimitiveDesc(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc), engine).primitive()
    kept: list[weakref.ref] = []
    for _ in range(3):
        x, y = (dnn.Memory.from_numpy(np.ones((7, 33), np.float32), engine=engine) for _ in "xy")
        net = dnn.Sequence([add.bind(src0=x, src1=y, dst=x), add.bind(src0=y, src1=x, dst=y)])
        net(stream).wait()
        kept += [weakref.ref(x), weakref.ref(y), weakref.ref(net)]
        del x, y, net
    stream.wait()
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]
