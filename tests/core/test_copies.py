"""Copies and pickles of engines, streams, events, memories, primitives and descriptors."""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from toy import ToyEngine, devices

import dnncore as dnn
from dnncore.backend import COMPLETED, Device, Event, TimedEvent

CPU = dnn.engine("cpu")
COPIES = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
each_copy = pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])


def product(**wishes):
    src, weights = dnn.MemoryDesc((4, 8)), dnn.MemoryDesc((8, 3), "f32", "any")
    op = dnn.MatMul(src=src, weights=weights, dst=dnn.MemoryDesc((4, 3)))
    attr = dnn.Attributes(post_ops=[dnn.PostOp.eltwise("relu")])
    return dnn.PrimitiveDesc(op, CPU, attr, **wishes)


def bound():
    primitive = product(impl="reference:*").primitive()
    descs = primitive.pd.descs
    return primitive.bind(**{name: dnn.Memory(desc, CPU) for name, desc in descs.items()})


@each_copy
def test_an_engine_is_its_own_copy(copied):
    assert copied(CPU) is CPU
    with devices("toycopy", Device("a"), Device("b")):
        assert copied(dnn.engine("toycopy:1")) is dnn.engine("toycopy:1")


def test_an_engine_that_the_program_made_cannot_be_pickled():
    with devices("toycopy", Device("a")):
        own = type(dnn.engine("toycopy"))(0)
        assert copy.deepcopy(own) is own
        with pytest.raises(dnn.DescriptorError, match=r"toycopy:0: only engines .* can be pickled"):
            pickle.dumps(own)


def test_an_engine_of_no_backend_cannot_be_pickled():
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'toy:0'"):
        pickle.dumps(ToyEngine(0))


@each_copy
def test_a_copy_of_a_stream_is_another_stream_of_its_engine(copied):
    stream = CPU.stream()
    other = copied(stream)
    assert other is not stream
    assert (type(other), other.engine, other.order) == (type(stream), CPU, "in")


@each_copy
def test_a_completed_event_is_its_own_copy(copied):
    assert copied(COMPLETED) is COMPLETED


def test_other_events_are_their_own_copies_and_cannot_be_pickled():
    class Pending(Event):
        pass

    for event in (TimedEvent(1.0, 2.0), Pending()):
        assert copy.deepcopy(event) is copy.copy(event) is event
        with pytest.raises(dnn.DescriptorError, match="belongs to its process"):
            pickle.dumps(event)


@each_copy
@pytest.mark.parametrize("name", ["cpu", "opencl"])
@pytest.mark.parametrize("tag", ["ab", "ba", "aB8b"])
def test_a_copy_of_a_memory_has_the_same_values_and_other_bytes(copied, name, tag):
    if name not in {row.kind for row in dnn.devices() if row.device}:
        pytest.skip(f"there is no {name} device")
    engine = dnn.engine(name)
    memory = dnn.Memory(dnn.MemoryDesc((5, 7), "f32", tag), engine)
    memory.fill(3)
    other = copied(memory)
    assert (other.desc, other.engine) == (memory.desc, engine)
    memory.fill(4)
    assert (other.numpy() == 3).all()
    assert (memory.numpy() == 4).all()


@each_copy
@pytest.mark.parametrize("dims", [(0, 3), (1,)])
def test_a_copy_of_a_part_or_of_an_empty_memory(copied, dims):
    whole = dnn.Memory.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4), engine=CPU)
    part = whole.submemory((2, 2), (1, 1))
    assert (copied(part).numpy() == [[5, 6], [9, 10]]).all()
    assert copied(dnn.Memory(dnn.MemoryDesc(dims), CPU)).desc.dims == dims


def test_a_deep_copy_of_a_model_copies_each_memory_once():
    weights = dnn.Memory.from_numpy(np.ones(3, np.float32), engine=CPU)
    model = {"engine": CPU, "weights": weights, "again": weights, "primitive": bound().primitive}
    other = copy.deepcopy(model)
    assert other["weights"] is other["again"] is not weights
    assert (other["engine"], other["primitive"]) == (CPU, model["primitive"])


@each_copy
def test_a_copy_of_a_primitive_computes_the_same(copied):
    pd = product()
    other = copied(pd)
    assert other == pd
    assert copied(pd.primitive()).executable is pd.primitive().executable


def test_a_pickled_descriptor_keeps_its_implementation_and_threads():
    pd = product(impl="reference:*")
    dnn.set_num_threads(before + 1 if (before := dnn.get_num_threads()) < 8 else 1)
    try:
        other = pickle.loads(pickle.dumps(pd))
    finally:
        dnn.set_num_threads(before)
    assert other.impl_name == pd.impl_name
    assert other.key == pd.key


@each_copy
def test_bound_calls_and_sequences_are_not_copied(copied):
    call = bound()
    for value in (call, dnn.Sequence([call])):
        with pytest.raises(dnn.DescriptorError, match="cannot be copied or pickled; bind the"):
            copied(value)


PROGRAM = """
import pickle, sys
import dnncore as dnn
op, attr, pd, memory = pickle.load(sys.stdin.buffer)
desc = dnn.MemoryDesc((4, 8))
own = dnn.MatMul(src=desc, weights=dnn.MemoryDesc((8, 3), "f32", "any"), dst=dnn.MemoryDesc((4, 3)))
assert op == own and hash(op) == hash(own)
same = dnn.Attributes(post_ops=[dnn.PostOp.eltwise("relu")])
assert attr == same and hash(attr) == hash(same)
assert pd.engine is memory.engine is dnn.engine("cpu")
print(pd.impl_name, memory.numpy().sum())
"""


def test_another_process_reads_pickles_whatever_its_hashes_of_texts_are():
    pd = product()
    hash(pd.asked)  # a cached hash must not travel
    memory = dnn.Memory.from_numpy(np.ones((3, 4), np.float32), engine=CPU)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps((pd.asked, pd.attr, pd, memory)),
        env={
            **os.environ,
            "PYTHONHASHSEED": "12345",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [pd.impl_name, "12.0"]


def test_texts_of_attributes_are_calls_that_make_them_again():
    attr = dnn.Attributes(
        post_ops=[dnn.PostOp.eltwise("relu", alpha=0.5), dnn.PostOp.sum(zero_point=3)],
        scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=1)},
        deterministic=True,
    )
    assert eval(repr(attr), vars(dnn)) == attr
    assert repr(dnn.Attributes()) == "Attributes()"
    assert repr(attr.post_ops[1]) == "PostOp(kind='sum', zero_point=3)"
