"""Memory descriptors against worked vectors and a formula that goes element by element."""

import copy
import itertools
import math
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dnncore.errors import DescriptorError
from dnncore.tensors.memory_desc import MemoryDesc


def spelled_offset(tag, dims, index):
    """The place of an element by reading a letter tag from right to left, digit by digit.

    Independent of the library: it knows no strides, only the order in which memory is walked.
    """
    outer, blocks = re.fullmatch("([A-Za-z]+?)((?:[0-9]+[a-z])*)", tag).groups()
    position, size = list(index), list(dims)
    offset, step = 0, 1
    for count, letter in reversed(re.findall("([0-9]+)([a-z])", blocks)):
        dim, block = ord(letter) - ord("a"), int(count)
        offset += position[dim] % block * step
        step *= block
        position[dim] //= block
        size[dim] = -(-size[dim] // block)
    for letter in reversed(outer.lower()):
        dim = ord(letter) - ord("a")
        offset += position[dim] * step
        step *= size[dim]
    return offset


def indices(dims):
    return itertools.product(*map(range, dims))


def counted(dims, dtype=np.float32):
    """An array whose elements are all different (as far as the type can tell them apart)."""
    return np.arange(1, math.prod(dims) + 1).reshape(dims).astype(dtype)


def filled(desc, array=None):
    """A buffer of garbage with `array` packed into it."""
    buffer = np.full(desc.nbytes, 0xA5, np.uint8)
    desc.pack(counted(desc.dims, desc.dtype) if array is None else array, buffer)
    return buffer


@st.composite
def tags_and_dims(draw, max_ndims=4, min_size=1):
    """A letter tag with up to three inner blocks, and dims for it."""
    ndims = draw(st.integers(1, max_ndims))
    order = draw(st.permutations("abcdefghijkl"[:ndims]))
    block = st.tuples(st.sampled_from([2, 3, 4]), st.sampled_from(order))
    blocks = draw(st.lists(block, max_size=3))
    upper = {letter for _, letter in blocks}
    tag = "".join(c.upper() if c in upper else c for c in order)
    tag += "".join(f"{size}{letter}" for size, letter in blocks)
    dims = draw(st.lists(st.integers(min_size, 6), min_size=ndims, max_size=ndims))
    return tag, tuple(dims)


TAGS = [
    ("abcd", (2, 3, 4, 5)),
    ("acdb", (2, 3, 4, 5)),
    ("aBcd16b", (2, 20, 3, 4)),
    ("ABcd8a16b2a", (20, 3, 2, 1)),
    ("BAcd4b8a8b4a", (33, 5, 1, 2)),
    ("aBdeC16c16b4c", (2, 17, 5, 1, 2)),
    ("a", (7,)),
]


class TestLayout:
    def test_blocked_by_16(self):
        desc = MemoryDesc((2, 20, 3, 4), "f32", "aBcd16b")
        assert desc.padded_dims == (2, 32, 3, 4)
        assert desc.has_padding
        assert desc.inner_blocks == ((1, 16),)
        assert desc.strides == (384, 192, 64, 16)
        assert desc.nelems == 480
        assert desc.nbytes == 768 * 4
        assert desc.offset((1, 17, 2, 3)) == 753
        assert desc.physical_shape == (2, 2, 3, 4, 16)
        assert desc.physical_strides == (384, 192, 64, 16, 1)

    def test_blocked_thrice(self):
        desc = MemoryDesc((20, 3, 1, 1), "f32", "ABcd8a16b2a")
        assert desc.padded_dims == (32, 16, 1, 1)
        assert desc.inner_blocks == ((0, 8), (1, 16), (0, 2))
        assert desc.strides == (256, 256, 256, 256)
        assert desc.nbytes == 512 * 4
        assert desc.offset((17, 2, 0, 0)) == 261
        assert desc.physical_shape == (2, 1, 1, 1, 8, 16, 2)

    def test_plain(self):
        assert MemoryDesc((2, 3, 4, 5), "f32", "acdb").strides == (60, 1, 15, 3)
        assert MemoryDesc((2, 3, 4, 5), "f32", "nhwc").strides == (60, 1, 15, 3)
        assert MemoryDesc((2, 3, 4, 5)).strides == (60, 20, 5, 1)
        assert MemoryDesc((2, 3, 4, 5)).tag == "abcd"

    @pytest.mark.parametrize(("tag", "dims"), TAGS)
    def test_every_element_is_where_the_tag_spells_it(self, tag, dims):
        desc = MemoryDesc(dims, "f32", tag)
        places = [desc.offset(index) for index in indices(dims)]
        assert places == [spelled_offset(tag, dims, index) for index in indices(dims)]
        padded = {desc.offset(index) for index in indices(desc.padded_dims)}
        assert padded == set(range(desc.nbytes // 4))

    @given(tags_and_dims())
    def test_any_tag_is_dense_and_known_by_its_name(self, case):
        tag, dims = case
        desc = MemoryDesc(dims, "f32", tag)
        assert desc.is_dense
        assert desc.matches(tag)
        assert MemoryDesc(dims, "f32", desc.tag) == desc
        assert desc.nbytes == 4 * math.prod(desc.padded_dims)
        last = tuple(n - 1 for n in dims)
        assert desc.offset(last) == spelled_offset(tag, dims, last)

    def test_a_tag_is_recovered_where_dims_of_size_1_leave_a_choice(self):
        for dims in [(2, 1, 4, 4), (2, 3, 1, 1), (1, 3, 1, 4), (1, 1, 2, 2)]:
            assert MemoryDesc(dims, "f32", "nchw").tag == "abcd"
            assert MemoryDesc(dims, "f32", "nhwc").tag == "acdb"

    def test_strides_with_gaps_have_no_tag(self):
        desc = MemoryDesc((2, 3), "f32", strides=(5, 1))
        assert not desc.is_dense
        assert desc.tag is None
        assert desc.nbytes == 4 * 8
        assert MemoryDesc((2, 3), "f32", strides=(1, 2)).tag == "ba"

    def test_stride_0_repeats(self):
        desc = MemoryDesc((4, 3), "f32", strides=(0, 1))
        assert desc.nbytes == 12
        assert not desc.is_dense
        assert desc.offset((3, 2)) == 2
        assert not MemoryDesc((2, 2), "f32", strides=(0, 3)).is_dense

    def test_a_buffer_has_neighbours_before_and_between_elements(self):
        assert not MemoryDesc((2, 3)).has_neighbours
        assert not MemoryDesc((3, 5), "f32", "aB8b").has_neighbours  # padding belongs to the tensor
        assert MemoryDesc((2, 3), "f32", strides=(4, 1)).has_neighbours
        assert MemoryDesc((2, 3), "f32", offset0=1).has_neighbours

    def test_offset0_counts_from_the_start_of_the_buffer(self):
        desc = MemoryDesc((2, 3), "f16", "ab", offset0=10)
        assert desc.offset((1, 2)) == 15
        assert desc.nbytes == 32
        assert desc.is_dense
        assert desc.tag == "ab"
        assert desc.matches("ab")

    def test_4_bit_types_take_half_a_byte(self):
        assert MemoryDesc((5,), "s4").nbytes == 3
        assert MemoryDesc((5,), "u4", offset0=1).nbytes == 3
        assert MemoryDesc((3, 5), "f4_e2m1", "aB8b").nbytes == 12

    @pytest.mark.parametrize("tag", ["abc", "acb", "aBc16b"])
    def test_a_tensor_without_elements_takes_no_bytes(self, tag):
        desc = MemoryDesc((2, 0, 3), "f32", tag, offset0=8)
        assert desc.nelems == desc.nbytes == 0
        assert desc.is_dense
        assert desc.unpack(np.empty(0, np.uint8)).shape == (2, 0, 3)
        desc.pack(np.empty((2, 0, 3), np.float32), np.empty(0, np.uint8))

    def test_twelve_dims(self):
        assert MemoryDesc((2,) * 12, "u8", "abcdefghijlk").nbytes == 4096

    @pytest.mark.parametrize("name", ["f32", "bf16", "f8_e4m3", "s4", "boolean"])
    def test_numpy_dtype(self, name):
        desc = MemoryDesc((3,), name)
        assert desc.dtype.itemsize == desc.itemsize

    def test_an_index_outside_is_refused_but_padding_has_a_place(self):
        desc = MemoryDesc((2, 20), "f32", "aB16b")
        assert desc.offset((1, 31)) == 63
        for index in [(2, 0), (0, 32), (-1, 0), (0,), (0, 0, 0)]:
            with pytest.raises(DescriptorError, match=r"inside padded dims \(2, 32\)"):
                desc.offset(index)


class TestFormatKinds:
    def test_any(self):
        desc = MemoryDesc((2, 3), "bf16", "any")
        assert desc.is_any
        assert not desc.is_plain
        assert not desc.is_dense
        assert (desc.format_kind, desc.tag, desc.nbytes) == ("any", "any", 0)
        assert desc.strides == desc.inner_blocks == ()
        assert desc.padded_dims == (2, 3)
        assert not desc.matches("ab")

    def test_zero_stands_for_an_absent_tensor(self):
        zero = MemoryDesc.zero()
        assert zero.is_zero
        assert (zero.ndims, zero.nelems, zero.nbytes) == (0, 0, 0)
        assert zero.format_kind == "undef"
        assert zero == MemoryDesc((), "f32", "undef")
        assert not MemoryDesc((1,)).is_zero

    def test_opaque(self):
        desc = MemoryDesc((64, 64, 3, 3), "f32", "owner:wino:4x3", nbytes=1000)
        assert (desc.format_kind, desc.tag, desc.nbytes) == ("opaque", "owner:wino:4x3", 1000)
        assert desc != MemoryDesc((64, 64, 3, 3), "f32", "owner:wino:2x3", nbytes=1000)
        assert desc != MemoryDesc((64, 64, 3, 3), "f32", "owner:wino:4x3", nbytes=1001)
        for use in (lambda: desc.offset((0, 0, 0, 0)), lambda: desc.physical_shape):
            with pytest.raises(DescriptorError, match="needs a blocked layout"):
                use()

    def test_plain_and_blocked(self):
        assert MemoryDesc((2, 16), "f32", "ba").is_plain
        blocked = MemoryDesc((2, 16), "f32", "aB16b")
        assert not blocked.is_plain
        assert not blocked.has_padding


class TestIdentity:
    def test_aliases_make_equal_descriptors(self):
        a = MemoryDesc((2, 3, 4, 5), "f32", "nhwc")
        for b in (
            MemoryDesc([np.int64(2), 3, 4, 5], "f32", "acdb"),
            MemoryDesc((2, 3, 4, 5), "f32", "axb"),
            MemoryDesc((2, 3, 4, 5), strides=(60, 1, 15, 3)),
        ):
            assert a == b
            assert hash(a) == hash(b)

    @pytest.mark.parametrize(
        "other",
        [
            MemoryDesc((2, 3, 4, 6), "f32", "nchw"),
            MemoryDesc((2, 3, 4, 5), "s32", "nchw"),
            MemoryDesc((2, 3, 4, 5), "f32", "nhwc"),
            MemoryDesc((2, 3, 4, 5), "f32", "nChw4c"),
            MemoryDesc((2, 3, 4, 5), "f32", "nchw", offset0=1),
            MemoryDesc((2, 3, 4, 5), "f32", "any"),
            MemoryDesc((2, 3, 4, 5), "f32", "undef"),
            "nchw",
        ],
    )
    def test_everything_counts(self, other):
        assert MemoryDesc((2, 3, 4, 5), "f32", "nchw") != other

    def test_strides_that_are_never_stepped_do_not_count(self):
        a = MemoryDesc((2, 1, 3), strides=(3, 3, 1))
        b = MemoryDesc((2, 1, 3), strides=(3, 99, 1))
        assert a == b
        assert hash(a) == hash(b)
        assert MemoryDesc((2, 16, 1, 1), "f32", "nchw") == MemoryDesc((2, 16, 1, 1), "f32", "nhwc")
        assert MemoryDesc((0, 3, 2), "f32", "abc") == MemoryDesc((0, 3, 2), "f32", "acb")

    @pytest.mark.parametrize(
        "desc",
        [
            MemoryDesc((2, 20, 3, 4), "bf16", "aBcd16b"),
            MemoryDesc((2, 3), "s4", strides=(5, 1), offset0=7),
            MemoryDesc((2, 3), "f32", "any"),
            MemoryDesc((2, 3), "f32", "owner:packed:1", nbytes=99),
            MemoryDesc.zero(),
        ],
    )
    def test_pickled_and_copied(self, desc):
        for twin in (pickle.loads(pickle.dumps(desc)), copy.copy(desc), copy.deepcopy(desc)):
            assert twin == desc
            assert hash(twin) == hash(desc)
            assert twin.strides == desc.strides
            assert twin.nbytes == desc.nbytes

    def test_immutable(self):
        desc = MemoryDesc((2, 3))
        with pytest.raises(AttributeError, match="dims cannot be set"):
            desc.dims = (3, 2)
        with pytest.raises(AttributeError, match="dims cannot be deleted"):
            del desc.dims

    @pytest.mark.parametrize(
        "desc",
        [
            MemoryDesc((2, 3), "f32", "ba"),
            MemoryDesc((2, 20), "bf16", "aB16b", offset0=4),
            MemoryDesc((2, 3), "f32", strides=(5, 1)),
            MemoryDesc((2, 3), "f32", "any"),
            MemoryDesc((2, 3), "f32", "owner:packed", nbytes=99),
            MemoryDesc.zero(),
        ],
    )
    def test_repr_can_be_read_back(self, desc):
        assert eval(repr(desc), {"MemoryDesc": MemoryDesc}) == desc


class TestMistakes:
    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda: MemoryDesc((2, -3)), r"a dim is at least 0; got \(2, -3\)"),
            (lambda: MemoryDesc((2, 3.0)), "dims must be a sequence of integers"),
            (lambda: MemoryDesc(3), "dims must be a sequence of integers; got 3"),
            (lambda: MemoryDesc(()), r"use \(1,\) for a scalar"),
            (lambda: MemoryDesc((), "f32", "any"), r"use \(1,\) for a scalar"),
            (lambda: MemoryDesc((1,) * 13), "at most 12 dims; got 13"),
            (lambda: MemoryDesc((2, 3), "float"), "no such type; got 'float'"),
            (lambda: MemoryDesc((2, 3), "f32", "nchw"), "2 dims need 2 letters"),
            (lambda: MemoryDesc((2, 3), "f32", 3), "a format is a string"),
            (
                lambda: MemoryDesc((2, 3), "f32", "any", strides=(3, 1)),
                "strides go only with a format",
            ),
            (lambda: MemoryDesc((2, 8), "f32", "aB8b", strides=(4, 8)), "less than the 8 elements"),
            (lambda: MemoryDesc((2, 3), strides=(1,)), "one stride per dim"),
            (lambda: MemoryDesc((2, 3), strides=(-3, 1)), "a stride is at least 0"),
            (lambda: MemoryDesc((2, 3), strides=(2, 1)), "elements must not overlap"),
            (lambda: MemoryDesc((2, 3), strides=(1, 1)), "elements must not overlap"),
            (lambda: MemoryDesc((2, 3), offset0=-1), "offset0 is at least 0"),
            (lambda: MemoryDesc((2, 3), offset0=1.5), "offset0 must be"),
            (lambda: MemoryDesc((2, 3), "f32", "any", offset0=1), "offset0 .* format 'any'"),
            (lambda: MemoryDesc((2, 3), "f32", "owner:x"), "needs its size"),
            (lambda: MemoryDesc((2, 3), "f32", "owner:x", nbytes=-1), "needs its size"),
            (lambda: MemoryDesc((2, 3), "f32", ":x", nbytes=1), "is owner:name"),
            (lambda: MemoryDesc((2, 3), "f32", "ab", nbytes=24), "nbytes is for opaque formats"),
            (lambda: MemoryDesc((2, 3)).with_offset0(-1), "offset0 is at least 0"),
            (lambda: MemoryDesc((2, 3), "f32", "any").with_offset0(1), "needs a blocked layout"),
            (lambda: MemoryDesc((2, 3)).permute_axes((0, 0)), "each of 2 dims once"),
            (lambda: MemoryDesc((2, 3)).like(MemoryDesc((6,))), "ranks must be equal"),
        ],
    )
    def test_refused_with_the_rule(self, make, reason):
        with pytest.raises(DescriptorError, match=reason):
            make()

    @given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3))
    def test_strides_are_accepted_only_without_overlap(self, pairs):
        dims, strides = zip(*pairs, strict=True)
        assume(all(s > 0 for n, s in pairs if n > 1))
        places = [
            sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices(dims)
        ]
        try:
            MemoryDesc(dims, strides=strides)
        except DescriptorError:
            return
        assert len(set(places)) == len(places)

    @given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
    def test_any_numpy_slice_with_positive_steps_is_accepted(self, pairs):
        whole = np.empty([(n - 1) * step + 1 for n, step in pairs], np.uint8)
        part = whole[tuple(slice(None, None, step) for _, step in pairs)].T
        desc = MemoryDesc(part.shape, "u8", strides=part.strides)
        assert desc.nbytes <= whole.size


class TestDerived:
    def test_with(self):
        desc = MemoryDesc((2, 20), "f32", "aB16b", offset0=4)
        assert desc.with_data_type("bf16") == MemoryDesc((2, 20), "bf16", "aB16b", offset0=4)
        assert desc.with_format("ba") == MemoryDesc((2, 20), "f32", "ba")
        assert desc.with_format("any").is_any
        assert desc.with_offset0(0) == MemoryDesc((2, 20), "f32", "aB16b")
        assert desc.with_format("owner:x", nbytes=3).nbytes == 3
        with pytest.raises(DescriptorError, match="data type of an opaque layout is fixed"):
            desc.with_format("owner:x", nbytes=3).with_data_type("s8")
        with pytest.raises(DescriptorError, match="no such type"):
            desc.with_data_type("float")

    def test_like_takes_the_format_only(self):
        dst = MemoryDesc((8, 96, 55, 55), "f32", "any")
        for tag in ("nchw", "nhwc", "nChw16c"):
            src = MemoryDesc((8, 3, 227, 227), "bf16", tag, offset0=8)
            assert dst.like(src) == MemoryDesc((8, 96, 55, 55), "f32", tag)
        gaps = MemoryDesc((2, 3), strides=(1, 5))
        assert MemoryDesc((4, 6), "s8").like(gaps) == MemoryDesc((4, 6), "s8", "ba")
        repeated = MemoryDesc((2, 3, 4), strides=(0, 1, 0))
        assert MemoryDesc((4, 5, 6)).like(repeated) == MemoryDesc((4, 5, 6), "f32", "acb")

    def test_like_passes_open_formats_on(self):
        desc = MemoryDesc((2, 3), "bf16", "ba")
        assert desc.like(MemoryDesc((4,), "f32", "any")) == MemoryDesc((2, 3), "bf16", "any")
        assert desc.like(MemoryDesc.zero()) == MemoryDesc((2, 3), "bf16", "undef")

    def test_like_keeps_an_opaque_format_for_its_own_shape_and_type(self):
        opaque = MemoryDesc((2, 3), "f32", "owner:packed", nbytes=24)
        assert MemoryDesc((2, 3), "f32").like(opaque) == opaque
        assert MemoryDesc((2, 4), "f32").like(opaque).is_any
        assert MemoryDesc((2, 3), "s8").like(opaque).is_any

    @pytest.mark.parametrize(("tag", "offset0"), [("nchw", 20), ("nhwc", 1)])
    def test_submemory_moves_the_start(self, tag, offset0):
        part = MemoryDesc((2, 3, 4, 5), "f32", tag).submemory((2, 2, 4, 5), (0, 1, 0, 0))
        assert part.offset0 == offset0
        assert part.dims == (2, 2, 4, 5)

    @pytest.mark.parametrize(
        ("tag", "dims", "offsets"),
        [
            ("abc", (1, 20, 2), (1, 0, 1)),
            ("cab", (2, 3, 1), (0, 5, 2)),
            ("aBc8b", (2, 8, 3), (0, 8, 0)),
            ("aBc8b", (1, 4, 3), (1, 16, 0)),
            ("aBc8b", (1, 0, 3), (1, 8, 0)),
            ("ABc2a4b2a", (2, 16, 1), (0, 4, 2)),
        ],
    )
    def test_submemory_is_a_slice(self, tag, dims, offsets):
        desc = MemoryDesc((2, 20, 3), "f32", tag)
        buffer = filled(desc)
        part = desc.submemory(dims, offsets)
        where = tuple(slice(o, o + n) for o, n in zip(offsets, dims, strict=True))
        np.testing.assert_array_equal(part.unpack(buffer), counted((2, 20, 3))[where])
        assert part.nbytes <= desc.nbytes
        part.pack(np.zeros(dims, np.float32), buffer)
        expected = counted((2, 20, 3))
        expected[where] = 0
        np.testing.assert_array_equal(desc.unpack(buffer), expected)

    @pytest.mark.parametrize("offsets", [(16, 0), (48, 8), (32, 8)])
    def test_submemory_of_a_dim_with_two_blocks_is_a_slice(self, offsets):
        """Rows have blocks of 8 and of 2, so a part begins at a multiple of 16."""
        desc = MemoryDesc((64, 16), "f32", "AB8a8b2a")
        part = desc.submemory((16, 8), offsets)
        where = tuple(slice(o, o + n) for o, n in zip(offsets, (16, 8), strict=True))
        np.testing.assert_array_equal(part.unpack(filled(desc)), counted((64, 16))[where])
        with pytest.raises(DescriptorError, match="only between blocks of 16; got 8 to 24 of 64"):
            desc.submemory((16, 8), (8, 0))

    @pytest.mark.parametrize(
        ("dims", "offsets", "reason"),
        [
            ((2, 4), (0, 4), "only between blocks of 8; got 4 to 8 of 20"),
            ((2, 16), (0, 4), "only between blocks of 8; got 4 to 20 of 20"),
            ((2, 8), (0, 4), "only between blocks of 8; got 4 to 12 of 20"),
            ((2, 4), (0, 0), "only between blocks of 8; got 0 to 4 of 20"),
            ((2, 8), (0, 16), "dim 1 has 20 elements; got 16 to 24"),
            ((2, 8), (-1, 0), "dim 0 has 2 elements; got -1 to 1"),
            ((2, 8, 1), (0, 0, 0), "needs 2 dims and offsets"),
        ],
    )
    def test_submemory_refuses_what_blocks_cannot_give(self, dims, offsets, reason):
        with pytest.raises(DescriptorError, match=reason):
            MemoryDesc((2, 20), "f32", "aB8b").submemory(dims, offsets)

    @given(tags_and_dims(), st.randoms(use_true_random=False))
    def test_permute_axes_renumbers(self, case, random):
        tag, dims = case
        desc = MemoryDesc(dims, "f32", tag)
        perm = list(range(len(dims)))
        random.shuffle(perm)
        permuted = desc.permute_axes(perm)
        for index in itertools.islice(indices(dims), 50):
            moved = [0] * len(dims)
            for dim, place in enumerate(perm):
                moved[place] = index[dim]
            assert permuted.offset(moved) == desc.offset(index)
        assert permuted.nbytes == desc.nbytes

    def test_permute_axes_by_hand(self):
        blocked = MemoryDesc((2, 20, 3), "f32", "aBc16b")
        assert blocked.permute_axes((1, 2, 0)) == MemoryDesc((3, 2, 20), "f32", "bCa16c")
        assert MemoryDesc((2, 3), "f32", "any").permute_axes((1, 0)).dims == (3, 2)
        with pytest.raises(DescriptorError, match="needs a blocked layout"):
            MemoryDesc((2, 3), "f32", "owner:x", nbytes=1).permute_axes((1, 0))

    @pytest.mark.parametrize(
        ("dims", "tag", "target", "expected"),
        [
            ((2, 3, 4, 5), "abcd", (6, 20), "ab"),
            ((2, 3, 4, 5), "abcd", (120,), "a"),
            ((2, 3, 4, 5), "acdb", (2, 3, 20), "acb"),
            ((8, 6), "ba", (2, 4, 3, 2), "cdab"),
            ((2, 3), "ba", (2, 1, 3, 1), "cdab"),
            ((1, 2, 1, 3), "abcd", (2, 3), "ab"),
            ((2, 20, 3, 4), "aBcd16b", (2, 20, 12), "aBc16b"),
            ((2, 20, 3, 4), "aBcd16b", (1, 2, 1, 20, 12, 1), "abcDef16d"),
            ((12, 20), "aB16b", (3, 4, 20), "abC16c"),
            ((1, 2, 20), "abC16c", (2, 20), "aB16b"),
            ((32, 1, 9), "ABc16a4b", (32, 1, 3, 3), "ABcd16a4b"),
            ((2, 20), "AB2a16b", (2, 20), "AB2a16b"),
            ((2, 3), "any", (6,), "any"),
            ((2, 0, 3), "abc", (0, 5), "ab"),
        ],
    )
    def test_reshape(self, dims, tag, target, expected):
        assert MemoryDesc(dims, "f32", tag).reshape(target) == MemoryDesc(target, "f32", expected)

    def test_reshape_keeps_gaps_and_offset(self):
        desc = MemoryDesc((2, 3, 4), strides=(100, 4, 1), offset0=5)
        assert desc.reshape((2, 12)) == MemoryDesc((2, 12), strides=(100, 1), offset0=5)
        assert desc.reshape((1, 2, 12)).reshape((2, 3, 4)) == desc

    @pytest.mark.parametrize(
        ("desc", "target", "reason"),
        [
            (MemoryDesc((2, 3)), (7,), r"keeps the 6 elements of \(2, 3\); got \(7,\)"),
            (MemoryDesc((2, 3)), (), r"use \(1,\) for a scalar"),
            (MemoryDesc((2, 3), "f32", "ba"), (6,), "reorder to row-major first"),
            (MemoryDesc((2, 3), strides=(5, 1)), (6,), "reorder to row-major first"),
            (MemoryDesc((2, 16), "f32", "aB16b"), (32,), "reorder to row-major first"),
            (MemoryDesc((2, 16), "f32", "aB16b"), (2, 4, 4), "reorder to row-major first"),
            (MemoryDesc((2, 1), "f32", "aB16b"), (2,), "reorder to row-major first"),
            (MemoryDesc((2, 3), "f32", "owner:x", nbytes=1), (6,), "needs a blocked layout"),
        ],
    )
    def test_reshape_refuses_to_move(self, desc, target, reason):
        with pytest.raises(DescriptorError, match=reason):
            desc.reshape(target)

    @given(tags_and_dims(), st.data())
    def test_reshape_reads_the_same_elements_in_order(self, case, data):
        tag, dims = case
        desc = MemoryDesc(dims, "f32", tag)
        joined = data.draw(st.integers(0, len(dims) - 1))
        merged = math.prod(dims[joined : joined + 2])
        target = (*dims[:joined], merged, *dims[joined + 2 :], 1)
        try:
            reshaped = desc.reshape(target)
        except DescriptorError:
            return
        buffer = filled(desc)
        np.testing.assert_array_equal(reshaped.unpack(buffer), counted(target))


class TestBuffers:
    @given(tags_and_dims(min_size=0), st.sampled_from(["f32", "bf16", "u8", "f64", "s4", "u4"]))
    def test_pack_and_unpack_are_inverse(self, case, name):
        tag, dims = case
        desc = MemoryDesc(dims, name, tag, offset0=3)
        array = (counted(dims, np.int64) % 7).astype(desc.dtype)
        np.testing.assert_array_equal(desc.unpack(filled(desc, array)), array)

    @pytest.mark.parametrize(("tag", "dims"), TAGS)
    def test_pack_puts_each_element_in_its_place_and_zeros_in_the_padding(self, tag, dims):
        desc = MemoryDesc(dims, "f32", tag)
        array = counted(dims)
        stored = filled(desc, array).view(np.float32)
        expected = np.zeros_like(stored)
        for index in indices(dims):
            expected[spelled_offset(tag, dims, index)] = array[index]
        np.testing.assert_array_equal(stored, expected)

    @pytest.mark.parametrize(("tag", "dims"), TAGS)
    def test_view_is_the_physical_array_without_a_copy(self, tag, dims):
        desc = MemoryDesc(dims, "f32", tag)
        buffer = filled(desc)
        view = desc.view(buffer)
        assert view.shape == desc.physical_shape
        assert np.shares_memory(view, buffer)
        assert sorted(view.ravel()) == sorted(buffer.view(np.float32))
        view[...] = 0
        assert not buffer.any()

    def test_view_by_hand(self):
        desc = MemoryDesc((3, 2), "s8", "Ab2a", offset0=1)
        buffer = np.arange(9, dtype=np.uint8)
        assert desc.view(buffer).tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        assert desc.unpack(buffer).tolist() == [[1, 3], [2, 4], [5, 7]]

    def test_unpack_shares_a_plain_layout_and_copies_a_blocked_one(self):
        for tag, shared in [("abc", True), ("bca", True), ("aBc4b", False), ("aBc2b2b", False)]:
            desc = MemoryDesc((2, 4, 3), "f32", tag)
            buffer = filled(desc)
            assert np.shares_memory(desc.unpack(buffer), buffer) == shared
        blocked = MemoryDesc((16,), "f32", "A16a")  # a copy even where a view would do
        buffer = filled(blocked)
        assert not np.shares_memory(blocked.unpack(buffer), buffer)

    def test_gaps_keep_their_bytes(self):
        desc = MemoryDesc((2, 2), "u8", strides=(4, 1), offset0=1)
        buffer = np.full(8, 9, np.uint8)
        desc.pack(np.zeros((2, 2), np.uint8), buffer)
        assert buffer.tolist() == [9, 0, 0, 9, 9, 0, 0, 9]

    def test_repeated_elements_are_read_but_not_written(self):
        desc = MemoryDesc((2, 3), "u8", strides=(0, 1))
        buffer = np.array([1, 2, 3], np.uint8)
        assert desc.unpack(buffer).tolist() == [[1, 2, 3], [1, 2, 3]]
        with pytest.raises(DescriptorError, match="must not share a place"):
            desc.pack(np.zeros((2, 3), np.uint8), buffer)

    def test_the_first_4_bit_element_is_in_the_low_nibble(self):
        desc = MemoryDesc((3,), "s4")
        buffer = np.full(2, 0xA5, np.uint8)
        desc.pack(np.array([1, -1, 3], ml_dtypes.int4), buffer)
        assert buffer.tolist() == [0xF1, 0xA3]  # the last high nibble is no element of ours
        assert desc.unpack(buffer).astype(int).tolist() == [1, -1, 3]
        with pytest.raises(DescriptorError, match="use unpack and pack"):
            desc.view(buffer)

    def test_a_buffer_may_be_longer_and_misaligned(self):
        desc = MemoryDesc((2, 3), "f64", "ba")
        buffer = np.zeros(100, np.uint8)[3:]
        desc.pack(counted((2, 3), np.float64), buffer)
        np.testing.assert_array_equal(desc.unpack(buffer), counted((2, 3)))

    @pytest.mark.parametrize(
        ("buffer", "reason"),
        [
            (np.zeros(23, np.uint8), "needs a buffer of 24 bytes; got 23"),
            (np.zeros(6, np.float32), "got 1-D float32"),
            (np.zeros((4, 6), np.uint8), "got 2-D uint8"),
            (np.zeros(48, np.uint8)[::2], "contiguous"),
        ],
    )
    def test_other_buffers_are_refused(self, buffer, reason):
        desc = MemoryDesc((2, 3))
        for use in (desc.view, desc.unpack, lambda b: desc.pack(counted((2, 3)), b)):
            with pytest.raises(DescriptorError, match=reason):
                use(buffer)

    @pytest.mark.parametrize("array", [counted((3, 2)), counted((2, 3), np.float64)])
    def test_other_arrays_are_refused(self, array):
        with pytest.raises(DescriptorError, match=r"must have shape \(2, 3\) and dtype float32"):
            MemoryDesc((2, 3)).pack(array, np.zeros(24, np.uint8))

    def test_a_layout_that_is_still_open_has_no_buffer(self):
        with pytest.raises(DescriptorError, match="a buffer needs a blocked layout"):
            MemoryDesc((2, 3), "f32", "any").unpack(np.zeros(24, np.uint8))
