"""Concat and shuffle: sources that lie in dst, places, algebra."""

import numpy as np
import pytest

import dnncore as dnn
from dnncore import functional as F


def primitive(op, attr=None):
    return dnn.PrimitiveDesc(op, dnn.engine("cpu"), attr or dnn.Attributes()).primitive()


def test_places_are_parts_of_dst():
    srcs = [dnn.MemoryDesc((2, n, 3)) for n in (2, 0, 5)]
    op = dnn.Concat(srcs=srcs, dst=dnn.MemoryDesc((2, 7, 3)), axis=1)
    assert op.starts == (0, 2, 2)
    assert [place.offset0 for place in op.places] == [0, 6, 6]
    assert {place.strides for place in op.places} == {(21, 3, 1)}


def test_a_part_inside_a_block_has_no_place():
    srcs = [dnn.MemoryDesc((2, n)) for n in (8, 3, 5)]
    op = dnn.Concat(srcs=srcs, dst=dnn.MemoryDesc((2, 16), "f32", "aB8b"), axis=1)
    assert [place is None for place in op.places] == [False, True, True]


def test_sources_that_lie_in_dst_stay():
    cpu = dnn.engine("cpu")
    whole = dnn.MemoryDesc((2, 7))
    parts = [whole.submemory((2, 3), (0, 0)), whole.submemory((2, 4), (0, 3))]
    dst = dnn.Memory(whole, cpu)
    dst.numpy()[...] = np.arange(14).reshape(2, 7)
    op = dnn.Concat(srcs=parts, dst=whole, axis=1)
    inside = [dnn.Memory(part, cpu, dst.buffer) for part in parts]
    primitive(op).execute(cpu.stream(), src0=inside[0], src1=inside[1], dst=dst).wait()
    assert (dst.numpy() == np.arange(14).reshape(2, 7)).all()
    other = dnn.Memory(parts[1], cpu)
    other.numpy()[...] = -1
    primitive(op).execute(cpu.stream(), src0=inside[0], src1=other, dst=dst).wait()
    assert (dst.numpy()[:, 3:] == -1).all()
    assert (dst.numpy()[:, :3] == [[0, 1, 2], [7, 8, 9]]).all()


def test_a_source_elsewhere_in_dst_is_refused():
    cpu = dnn.engine("cpu")
    whole = dnn.MemoryDesc((2, 6))
    parts = [whole.submemory((2, 3), (0, first)) for first in (0, 3)]
    dst = dnn.Memory(whole, cpu)
    first, second = (dnn.Memory(part, cpu, dst.buffer) for part in parts)
    op = dnn.Concat(srcs=[parts[1], parts[0]], dst=whole, axis=1)
    with pytest.raises(dnn.DescriptorError, match="concat: dst overlaps src"):
        primitive(op).execute(cpu.stream(), src0=second, src1=first, dst=dst)


def test_many_sources_take_one_look_at_dst_each(monkeypatch):
    looks = []
    original = dnn.MemoryDesc.submemory

    def look(*args):
        looks.append(args)
        return original(*args)

    monkeypatch.setattr(dnn.MemoryDesc, "submemory", look)
    op = dnn.Concat(srcs=[dnn.MemoryDesc((2, 1))] * 50, dst=dnn.MemoryDesc((2, 50)), axis=1)
    assert all(op.place_of(name) is None for name in op.source_names)
    assert len(looks) == 50


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_is_that_of_numpy(axis):
    arrays = [np.arange(24, dtype=np.float32).reshape(2, 3, 4) + 100 * i for i in range(3)]
    assert (F.concat(arrays, axis) == np.concatenate(arrays, axis)).all()


@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_the_gradient_of_shuffle_is_its_inverse(group):
    cpu, desc = dnn.engine("cpu"), dnn.MemoryDesc((2, 6, 3))
    values = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
    shuffled = F.shuffle(values, group)
    assert (F.shuffle(shuffled, 6 // group) == values).all()
    op = dnn.ShuffleBackward(diff_src=desc, diff_dst=desc, axis=1, group_size=group)
    diff_dst, diff_src = dnn.Memory(desc, cpu), dnn.Memory(desc, cpu)
    diff_dst.numpy()[...] = shuffled
    primitive(op).execute(cpu.stream(), diff_dst=diff_dst, diff_src=diff_src).wait()
    assert (diff_src.numpy() == values).all()


def test_factors_are_rounded_down():
    image = np.ones((1, 2, 3, 5), np.float32)
    assert F.resample(image, factors=1.5).shape == (1, 2, 4, 7)
    assert F.resample(image, factors=(2, 0.5), algorithm="linear").shape == (1, 2, 6, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.concat([]), "concat: srcs must be a sequence of one or more arrays"),
        (lambda: F.concat([[1], [[2]]]), "concat: all arrays must have one rank"),
        (lambda: F.concat([1, 2]), "concat: src0 must have at least one dim; got a number"),
        (lambda: F.concat([[1], [2]], 1), "concat: axis must be an integer from -1 to 0"),
        (
            lambda: F.concat(np.ones((2, 3)), np.ones((2, 3))),
            r"axis must be an integer from -1 to 0; got an array of shape \(2, 3\)$",
        ),
        (lambda: F.concat([[1], [2]], [7] * 99), r"got \[7, 7, 7, 7, 7, 7, \.\.\.\]$"),
        (lambda: F.shuffle([1, 2, 3], 2, 0), "shuffle: group_size must be a positive divisor"),
        (lambda: F.resample([[[1]]]), "resample: give either size or factors"),
        (lambda: F.resample([[[1]]], factors="a"), "resample: factors must be one number"),
        (lambda: F.resample([[[1]]], -1), "resample: size must"),
    ],
)
def test_messages(call, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        call()
