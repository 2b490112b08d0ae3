"""Memory descriptors: the dims and type of a tensor, and the place of each element in a buffer.

A layout is a stride per logical dim, counted in elements, plus a list of inner blocks. A dim of
size n that is split into blocks of B elements takes ceil(n / B) blocks. Its stride is the step from
block to block. Its last block may be incomplete. The missing elements are padding, which is zero
after every primitive. The inner blocks are packed, last one fastest, innermost in memory:

    offset(i) = offset0 + sum over d of (i_d // B_d) * stride_d + position inside the inner blocks
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np

from dnncore.tensors.datatypes import DATA_TYPES, data_type
from dnncore.tensors.format_tags import canonical_tag, parse_tag
from dnncore.tensors.layout_rules import check_dims, check_range, integers, layout_of, refuse
from dnncore.tensors.strides import (
    block_sizes,
    dense_strides,
    outer_counts,
    reshaped_strides,
    row_major,
    used_strides,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dnncore.tensors.layout_rules import Opaque
    from dnncore.tensors.strides import Blocks, Dims

    Array = NDArray[Any]
    Buffer = NDArray[np.uint8]

__all__ = ["MemoryDesc"]


class MemoryDesc:
    """The dims, data type and layout of a tensor; immutable and hashable.

    `dims` are logical: the operation that uses the tensor determines their order, for any layout.
    There are up to 12, and a size may be 0. `data_type` is a name such as `"bf16"`. The layout is
    given in one of these ways:

    - a format tag (`"nchw"`, `"aBcd16b"`; see `dnncore.tensors.format_tags`);
    - `strides`, in elements, one per dim: 0 repeats a dim, otherwise elements must not overlap;
    - a tag and `strides`: the tag gives the inner blocks, the strides step from block to block;
    - neither: row-major;
    - `"any"`: an implementation selects the layout when a primitive descriptor is created;
    - `"undef"`: there is no layout; with `dims=()` the tensor is absent, `MemoryDesc.zero()`;
    - `"owner:name:params"` with `nbytes`, the size in bytes: opaque, known only to its owner.

    `offset0` is the place of the first element, in elements from the buffer's start. Invalid
    arguments raise `DescriptorError`.

    Attributes: `dims`; `data_type`; `format_kind`, one of "any", "undef", "blocked", "opaque";
    `strides` from block to block, in elements; `inner_blocks`, (dim, size) each, outermost first;
    `padded_dims`, the dims rounded up to whole blocks; `offset0`. Strides and inner blocks are
    empty unless the kind is "blocked".
    """

    __slots__ = (
        "_hash",
        "_key",
        "_nbytes",
        "_opaque",
        "data_type",
        "dims",
        "format_kind",
        "inner_blocks",
        "offset0",
        "padded_dims",
        "strides",
    )

    dims: Dims
    data_type: str
    format_kind: str
    strides: Dims
    inner_blocks: Blocks
    padded_dims: Dims
    offset0: int
    _opaque: Opaque | None
    _key: tuple[object, ...]
    _hash: int
    _nbytes: int

    def __init__(
        self,
        dims: Iterable[SupportsIndex],
        data_type: str = "f32",
        format: str | None = None,  # noqa: A002 - the name of the field
        *,
        strides: Iterable[SupportsIndex] | None = None,
        offset0: int = 0,
        nbytes: int | None = None,
    ) -> None:
        sizes = integers("dims", dims)
        check_dims(sizes, data_type, format)
        kind, steps, blocks, opaque = layout_of(sizes, format, strides, nbytes)
        if nbytes is not None and opaque is None:
            refuse(f"nbytes is for opaque formats only; got format {format!r}; leave nbytes out")
        if type(offset0) is not int or offset0 != 0:
            (offset0,) = integers("offset0", (offset0,))
            if offset0 < 0 or (offset0 and kind != "blocked"):
                refuse(
                    f"offset0 is at least 0, only with strides; got {offset0}, format {format!r}"
                )
        self._fill(sizes, data_type, kind, steps, blocks, offset0, opaque)

    @classmethod
    def zero(cls) -> MemoryDesc:
        """Return the descriptor of an absent tensor: no dims, format "undef"."""
        return cls((), "f32", "undef")

    @classmethod
    def _make(cls, *fields: Any) -> MemoryDesc:
        """Build a descriptor from fields known to be valid, in the order of `_fill`."""
        made = object.__new__(cls)
        made._fill(*fields)
        return made

    def _fill(
        self,
        dims: Dims,
        data_type: str,
        format_kind: str,
        strides: Dims,
        inner_blocks: Blocks,
        offset0: int,
        opaque: Opaque | None,
    ) -> None:
        outer = outer_counts(dims, inner_blocks)
        padded = dims
        if inner_blocks:
            padded = tuple(map(operator.mul, outer, block_sizes(len(dims), inner_blocks)))
        used = used_strides(outer, strides)
        check_range(padded, outer, strides, offset0)
        key = (dims, data_type, format_kind, used, inner_blocks, offset0, opaque)
        put = object.__setattr__
        put(self, "dims", dims)
        put(self, "data_type", data_type)
        put(self, "format_kind", format_kind)
        put(self, "strides", strides)
        put(self, "inner_blocks", inner_blocks)
        put(self, "padded_dims", padded)
        put(self, "offset0", offset0)
        put(self, "_opaque", opaque)
        put(self, "_key", key)
        put(self, "_hash", hash(key))

    # -- identity ----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, MemoryDesc):
            return NotImplemented
        return self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"MemoryDesc is immutable; {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"MemoryDesc is immutable; {name} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryDesc._make, (
            self.dims,
            self.data_type,
            self.format_kind,
            self.strides,
            self.inner_blocks,
            self.offset0,
            self._opaque,
        )

    def __repr__(self) -> str:
        if self.is_zero:
            return "MemoryDesc.zero()"
        layout = repr(self.tag)
        if self.tag is None:
            layout = f"{self.order_tag!r}, strides={self.strides}"
        offset = f", offset0={self.offset0}" if self.offset0 else ""
        size = f", nbytes={self.nbytes}" if self._opaque else ""
        return f"MemoryDesc({self.dims}, {self.data_type!r}, {layout}{offset}{size})"

    # -- properties of the layout ------------------------------------------------------------------

    @property
    def ndims(self) -> int:
        """The number of logical dims."""
        return len(self.dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of one unpacked element."""
        return DATA_TYPES[self.data_type].dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one unpacked element; two 4-bit elements share a byte of a buffer."""
        return DATA_TYPES[self.data_type].itemsize

    @property
    def nelems(self) -> int:
        """The number of logical elements, padding not counted."""
        return math.prod(self.dims) if self.dims else 0

    @property
    def nbytes(self) -> int:
        """Bytes from a buffer's start to the end of the last element, offset0 and padding included.

        0 when there is no element, and for the formats "any" and "undef".
        """
        try:
            return self._nbytes
        except AttributeError:  # not computed yet
            object.__setattr__(self, "_nbytes", self._count_bytes())
            return self._nbytes

    def _count_bytes(self) -> int:
        if self._opaque:
            return self._opaque[1]
        span = self._span
        return DATA_TYPES[self.data_type].nbytes(self.offset0 + span) if span else 0

    @property
    def padded_offsets(self) -> Dims:
        """Padding before each dim: always 0, since `submemory` refuses other parts."""
        return (0,) * len(self.dims)

    @property
    def is_packed(self) -> bool:
        """Whether two elements share a byte of a buffer."""
        return DATA_TYPES[self.data_type].is_packed

    @property
    def is_zero(self) -> bool:
        """Whether this describes an absent tensor."""
        return not self.dims

    @property
    def is_any(self) -> bool:
        """Whether an implementation selects the layout."""
        return self.format_kind == "any"

    @property
    def is_plain(self) -> bool:
        """Whether the layout has only strides, without inner blocks."""
        return self.format_kind == "blocked" and not self.inner_blocks

    @property
    def is_dense(self) -> bool:
        """Whether elements and padding fill one range of memory without gap or repeat."""
        if self.format_kind != "blocked":
            return False
        return not self.has_repeats and self._span == math.prod(self.padded_dims)

    @property
    def has_neighbours(self) -> bool:
        """Whether some of a buffer's first `nbytes` bytes are neither elements nor padding."""
        return self.offset0 > 0 or not self.is_dense

    @property
    def has_repeats(self) -> bool:
        """Whether elements share a place because of stride 0; such a tensor can only be read."""
        if not self.strides or 0 in self.dims:
            return False
        return any(s == 0 and n > 1 for s, n in zip(self.strides, self._outer, strict=True))

    @property
    def has_padding(self) -> bool:
        """Whether blocks reach past the end of a dim."""
        return self.padded_dims != self.dims

    @property
    def tag(self) -> str | None:
        """The format as text: a letter tag, "any", "undef" or the opaque format.

        None if the layout is blocked but not dense. The place of a dim of size 1 has no meaning, so
        equal descriptors can have different tags. `matches` compares a layout with a tag.
        """
        dense = self.format_kind != "blocked" or self.is_dense
        return self.order_tag if dense else None

    @property
    def order_tag(self) -> str:
        """The order of dims and the inner blocks as a tag, also for layouts with gaps or repeats.

        Together with `strides` and `offset0` it determines an equal descriptor.
        """
        if self._opaque:
            return self._opaque[0]
        if self.format_kind != "blocked":
            return self.format_kind
        return canonical_tag(self._order, self.inner_blocks)

    @property
    def physical_shape(self) -> Dims:
        """The shape as a plain array of ndims + k dims: blocks per dim, then the k inner blocks."""
        self._require_blocked("physical_shape")
        return self._outer + tuple(size for _, size in self.inner_blocks)

    @property
    def physical_strides(self) -> Dims:
        """The strides of `physical_shape`, in elements."""
        self._require_blocked("physical_strides")
        return self.strides + row_major(tuple(size for _, size in self.inner_blocks))

    @property
    def _outer(self) -> Dims:
        """The number of blocks per dim."""
        return outer_counts(self.dims, self.inner_blocks)

    @property
    def _span(self) -> int:
        """Elements from the first to the end of the last one; 0 if there is none."""
        if self.format_kind != "blocked" or 0 in self.dims:
            return 0
        steps = sum((n - 1) * s for n, s in zip(self._outer, self.strides, strict=True))
        return steps + math.prod(size for _, size in self.inner_blocks)

    @property
    def _order(self) -> Dims:
        """The dims from outermost to innermost; repeated dims (stride 0) are outermost."""
        outer, strides = self._outer, self.strides

        def place(dim: int) -> tuple[bool, int, int]:
            # A dim of one block may have the stride of the next outer dim. It counts as inner.
            return strides[dim] != 0, -strides[dim], -outer[dim] if strides[dim] else dim

        return tuple(sorted(range(len(outer)), key=place))

    def matches(self, tag: str) -> bool:
        """Return whether the layout is that of `tag` for these dims, with any `offset0`.

        Raises `DescriptorError` for a text that is not a tag, or a tag of another rank.
        """
        if not isinstance(tag, str):
            refuse(f"matches: a format tag is a string; got {tag!r}")
        order, blocks = parse_tag(tag, len(self.dims))
        strides = dense_strides(self.dims, order, blocks)
        fields = (self.dims, self.data_type, "blocked", strides, blocks, self.offset0, None)
        return self == MemoryDesc._make(*fields)

    def offset(self, index: Iterable[SupportsIndex]) -> int:
        """Return the place of the element `index`, in elements from the buffer's start.

        `index` has one entry per dim, 0 <= entry < `padded_dims`, so padding has places as well.
        """
        self._require_blocked("offset")
        position = list(integers("index", index))
        inside = len(position) == len(self.dims) and all(
            0 <= i < n for i, n in zip(position, self.padded_dims, strict=True)
        )
        if not inside:
            refuse(f"an index lies inside padded dims {self.padded_dims}; got {tuple(position)}")
        offset, step = self.offset0, 1
        for dim, size in reversed(self.inner_blocks):
            position[dim], within = divmod(position[dim], size)
            offset += within * step
            step *= size
        return offset + sum(i * s for i, s in zip(position, self.strides, strict=True))

    # -- descriptors made from this one ------------------------------------------------------------

    def broadcasts_to(self, dims: tuple[int, ...]) -> bool:
        """Whether the rank is that of `dims`, and each dim is 1 or that of `dims`."""
        target = integers("dims", dims)
        return self.ndims == len(target) and all(
            own in (1, there) for own, there in zip(self.dims, target, strict=True)
        )

    def with_format(self, format: str | None, *, nbytes: int | None = None) -> MemoryDesc:  # noqa: A002
        """Return the same dims and data type in another format, starting at 0."""
        return MemoryDesc(self.dims, self.data_type, format, nbytes=nbytes)

    def with_data_type(self, name: str) -> MemoryDesc:
        """Return the same layout with the data type `name`; an opaque layout has only its own."""
        data_type(name)
        if self._opaque and name != self.data_type:
            refuse(f"the data type of an opaque layout is fixed; got {name} for {self!r}")
        return self._replace(data_type=name)

    def with_offset0(self, offset0: int) -> MemoryDesc:
        """Return the same layout starting at element `offset0` of the buffer."""
        self._require_blocked("with_offset0")
        (start,) = integers("offset0", (offset0,))
        if start < 0:
            refuse(f"offset0 is at least 0; got {start}")
        return self._replace(offset0=start)

    def like(self, other: MemoryDesc) -> MemoryDesc:
        """Return these dims and data type in the format of `other`: its order and inner blocks.

        The result is dense, from offset 0, even if `other` has gaps or repeats. The formats "any"
        and "undef" are copied. An opaque format is copied if the dims and data types are equal;
        otherwise the result has the format "any". Raises `DescriptorError` if `other` has a layout
        of another rank.
        """
        if not isinstance(other, MemoryDesc):
            refuse(f"like: other is a MemoryDesc; got {type(other).__name__}")
        if other.format_kind == "opaque":
            same = self.dims == other.dims and self.data_type == other.data_type
            return other if same else self.with_format("any")
        if other.format_kind != "blocked":
            return self.with_format(other.format_kind)
        if other.ndims != self.ndims:
            refuse(f"like: ranks must be equal; got format of {other!r} for dims {self.dims}")
        strides = dense_strides(self.dims, other._order, other.inner_blocks)
        fields = (self.dims, self.data_type, "blocked", strides, other.inner_blocks, 0, None)
        return MemoryDesc._make(*fields)

    def submemory(
        self, dims: Sequence[SupportsIndex], offsets: Sequence[SupportsIndex]
    ) -> MemoryDesc:
        """Return the part of this tensor that has `dims` and starts at logical index `offsets`.

        In a blocked dim, the part must begin at the start of a block. It must end at the end of a
        block or of the dim. Otherwise its padding would contain elements of the tensor.
        """
        self._require_blocked("submemory")
        lengths, starts = integers("dims", dims), integers("offsets", offsets)
        if not len(lengths) == len(starts) == len(self.dims):
            refuse(f"submemory needs {self.ndims} dims and offsets; got {lengths} and {starts}")
        sizes = block_sizes(self.ndims, self.inner_blocks)
        offset0 = self.offset0
        for dim, (start, length, size) in enumerate(zip(starts, lengths, sizes, strict=True)):
            end, whole = start + length, self.dims[dim]
            if start < 0 or length < 0 or end > whole:
                refuse(f"submemory: dim {dim} has {whole} elements; got {start} to {end}")
            if start % size or (end % size and end != whole):
                refuse(
                    f"submemory: dim {dim} can be cut only between blocks of {size}; got {start} "
                    f"to {end} of {whole}; reorder to a plain format first"
                )
            offset0 += start // size * self.strides[dim]
        return self._replace(dims=lengths, offset0=offset0)

    def every(self, dim: int, start: int, step: int) -> MemoryDesc:
        """Return the elements with the indices start, start + step and so on along one dim.

        Raises `DescriptorError` if the dim has blocks, or if `start` is not an index of it.
        """
        self._require_blocked("every")
        if dim in (blocked for blocked, _ in self.inner_blocks):
            refuse(f"every: dim {dim} must have no blocks; got {self!r}; reorder it first")
        if not (0 <= start < self.dims[dim] and step >= 1):
            refuse(f"every: start must be an index of {self.dims[dim]} and step be at least 1;"
                   f" got {start} and {step}")  # fmt: skip
        count = len(range(start, self.dims[dim], step))
        return self._replace(
            dims=(*self.dims[:dim], count, *self.dims[dim + 1 :]),
            strides=(*self.strides[:dim], self.strides[dim] * step, *self.strides[dim + 1 :]),
            offset0=self.offset0 + start * self.strides[dim],
        )

    def permute_axes(self, perm: Sequence[SupportsIndex]) -> MemoryDesc:
        """Renumber the logical dims of the same memory: dim d becomes dim `perm[d]`."""
        target = integers("perm", perm)
        if sorted(target) != list(range(self.ndims)):
            refuse(f"permute_axes: perm names each of {self.ndims} dims once; got {target}")
        if self.format_kind == "opaque":
            self._require_blocked("permute_axes")
        source = sorted(range(self.ndims), key=target.__getitem__)
        return self._replace(
            dims=tuple(self.dims[d] for d in source),
            strides=tuple(self.strides[d] for d in source) if self.strides else (),
            inner_blocks=tuple((target[dim], size) for dim, size in self.inner_blocks),
        )

    def reshape(self, dims: Iterable[SupportsIndex]) -> MemoryDesc:
        """Describe the same memory with other logical `dims` with as many elements.

        Dims of size 1 may be added and removed. Adjacent dims may be joined or split if they have
        no blocks and no gap lies between them. Raises `DescriptorError` if a copy would be needed.
        """
        target = integers("dims", dims)
        if target == self.dims:
            return self
        check_dims(target, self.data_type, None)
        if math.prod(target) != self.nelems:
            refuse(f"reshape keeps the {self.nelems} elements of {self.dims}; got {target}")
        if self.format_kind in ("any", "undef"):
            return self._replace(dims=target)
        self._require_blocked("reshape")
        try:
            strides, place_of = self._reshaped(target)
        except ValueError:
            refuse(
                f"reshape: only dims without blocks that follow each other in memory can be joined "
                f"or split; got {target} from {self!r}; reorder to row-major first"
            )
        blocks = tuple((place_of[dim], size) for dim, size in self.inner_blocks)
        return self._replace(dims=target, strides=strides, inner_blocks=blocks)

    def _reshaped(self, target: Dims) -> tuple[Dims, dict[int, int]]:
        """Return the strides of `target` on this memory, and the places of the blocked dims in
        `target`.

        A blocked dim does not change. numpy decides whether the plain dims between two blocked dims
        can be reshaped. Raises ValueError if this is impossible.
        """
        strides: Dims = ()
        place_of: dict[int, int] = {}
        start = 0
        for dim in sorted({dim for dim, _ in self.inner_blocks}):
            before = math.prod(self.dims[start:dim])
            place = len(strides)
            while math.prod(target[len(strides) : place]) != before or (
                target[place : place + 1] != (self.dims[dim],)
            ):
                place += 1
                if place >= len(target):
                    raise ValueError
            plain = reshaped_strides(
                self.dims[start:dim], self.strides[start:dim], target[len(strides) : place]
            )
            strides += (*plain, self.strides[dim])
            place_of[dim], start = place, dim + 1
        rest = target[len(strides) :]
        return strides + reshaped_strides(self.dims[start:], self.strides[start:], rest), place_of

    def _replace(self, **changes: Any) -> MemoryDesc:
        """Return a copy with some fields changed to values known to be valid."""
        fields = {
            "dims": self.dims,
            "data_type": self.data_type,
            "format_kind": self.format_kind,
            "strides": self.strides,
            "inner_blocks": self.inner_blocks,
            "offset0": self.offset0,
            "opaque": self._opaque,
        }
        return MemoryDesc._make(*(fields | changes).values())

    # -- buffers -----------------------------------------------------------------------------------

    def view(self, buffer: Buffer) -> Array:
        """Return the elements in `buffer` as a view of shape `physical_shape`.

        `buffer` is one-dimensional, of uint8, and has at least `nbytes`. Raises an error for data
        types of 4 bits, because numpy cannot address half a byte.
        """
        if DATA_TYPES[self.data_type].is_packed:
            refuse(f"view: elements must be whole bytes; got {self.data_type}; use unpack and pack")
        self._check_buffer(buffer)
        return self._strided(buffer)

    def unpack(self, buffer: Buffer) -> Array:
        """Return the logical array of shape `dims` that `buffer` holds in this layout.

        The result is a view if the layout is plain and elements are whole bytes, else a copy.
        """
        self._check_buffer(buffer)
        if DATA_TYPES[self.data_type].is_packed:
            buffer = _nibbles_to_bytes(buffer[: self.nbytes])
        array = self._strided(buffer)
        if not self.inner_blocks:
            return array
        grouped = np.array(array.transpose(self._grouping), order="C")
        return grouped.reshape(self.padded_dims)[self._logical]

    def pack(self, array: Array, buffer: Buffer) -> None:
        """Write a logical array of shape `dims` into `buffer` in this layout; padding becomes zero.

        The array has this descriptor's numpy dtype. Bytes outside the layout do not change.
        """
        self._check_buffer(buffer)
        if not isinstance(array, np.ndarray):
            refuse(f"pack: the values are a numpy array; got {type(array).__name__}")
        if array.shape != self.dims or array.dtype != self.dtype:
            refuse(
                f"pack: the array must have shape {self.dims} and dtype {self.dtype}; got "
                f"{array.shape} and {array.dtype}; reshape it or convert it with astype"
            )
        if self.has_repeats:
            refuse(f"pack: elements must not share a place; got {self!r}; use another format")
        packed = DATA_TYPES[self.data_type].is_packed
        part = buffer[: self.nbytes]
        room = _nibbles_to_bytes(part) if packed else part
        target = self._strided(room).transpose(self._grouping)
        if self.has_padding:
            padded = np.zeros(self.padded_dims, self.dtype)
            padded[self._logical] = array
            array = padded
        target[...] = array.reshape(target.shape)
        if packed:
            part[...] = room[0::2] & 0xF | room[1::2] << 4

    def _strided(self, buffer: Buffer) -> Array:
        """Return `buffer`, whose elements are whole bytes, as a view of `physical_shape`."""
        if 0 in self.dims:
            return np.empty(self.physical_shape, self.dtype)
        width = self.itemsize
        strides = tuple(stride * width for stride in self.physical_strides)
        offset = self.offset0 * width
        return np.ndarray(self.physical_shape, self.dtype, buffer, offset, strides)

    @property
    def _grouping(self) -> Dims:
        """Return the physical axes, each dim followed by its inner blocks, outermost first."""
        dim_of_axis = [*range(self.ndims), *(dim for dim, _ in self.inner_blocks)]
        return tuple(sorted(range(len(dim_of_axis)), key=dim_of_axis.__getitem__))

    @property
    def _logical(self) -> tuple[slice, ...]:
        """Return the slices that remove the padding from an array of `padded_dims`."""
        return tuple(slice(size) for size in self.dims)

    def _check_buffer(self, buffer: Buffer) -> None:
        self._require_blocked("a buffer")
        if not isinstance(buffer, np.ndarray):
            refuse(f"a buffer is a contiguous 1-D uint8 array; got {type(buffer).__name__}")
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
            refuse(f"a buffer is a contiguous 1-D uint8 array; got {buffer.ndim}-D {buffer.dtype}")
        if buffer.size < self.nbytes:
            refuse(f"{self!r} needs a buffer of {self.nbytes} bytes; got {buffer.size}")

    def _require_blocked(self, what: str) -> None:
        if self.format_kind != "blocked":
            refuse(f"{what} needs a blocked layout; got {self!r}")


def _nibbles_to_bytes(buffer: Buffer) -> Buffer:
    """Return a byte per 4-bit element of `buffer`, the low nibble first."""
    return np.stack([buffer & 0xF, buffer >> 4], axis=-1).reshape(-1)
