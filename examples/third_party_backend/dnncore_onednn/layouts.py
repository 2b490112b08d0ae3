"""Memory descriptors: from dnncore's to oneDNN's and back."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from typing import Any

from dnncore.backend import INNERMOST, MemoryDesc, hold_at_fork
from dnncore_onednn.library import Dims, Handle, Library, Owned, Unsupported

__all__ = ["Layouts"]

# Enumerators of dnnl_types.h.
ANY_TAG, BLOCKED = 1, 2
NDIMS, DIMS, DATA_TYPE, PADDED_DIMS, FORMAT_KIND = 256, 257, 258, 260, 262
INNER_COUNT, INNER_SIZES, INNER_DIMS, STRIDES = 263, 264, 265, 14


class Layouts:
    """Converts memory descriptors.

    A layout that dnncore cannot express becomes the opaque format `onednn:PROCESS:N`. This object
    converts it back. The name contains the process, because N is known only there.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._opaque: dict[MemoryDesc, Owned] = {}
        self._lock = threading.RLock()
        hold_at_fork(self._lock, INNERMOST)
        self._made = functools.lru_cache(1024)(self._new)

    def md(self, desc: MemoryDesc | None) -> Owned | None:
        """oneDNN's descriptor, without an offset. NULL for None.

        Raises `Unsupported` for blocked layouts with gaps and for opaque ones of other owners.
        """
        return None if desc is None else self._opaque.get(desc) or self._made(desc)

    def _new(self, desc: MemoryDesc) -> Owned:
        if desc.is_packed and desc.offset0 % 2:
            raise Unsupported(f"oneDNN {self.library.version} cannot begin within a byte: {desc}")
        if desc.is_any:
            return self._create("memory_desc_create_with_tag", desc, ANY_TAG)
        if desc.is_plain:
            return self._create("memory_desc_create_with_strides", desc, Dims(*desc.strides))
        if desc.format_kind == "blocked" and desc.tag:
            text = ctypes.c_char_p(desc.tag.encode())
            return self._create("memory_desc_create_with_string_tag", desc, text)
        raise Unsupported(f"oneDNN {self.library.version} cannot express {desc}")

    def _create(self, function: str, desc: MemoryDesc, layout: object) -> Owned:
        data_type = self.library.number("dt", desc.data_type)
        shape = desc.ndims, Dims(*desc.dims), data_type
        return self.library.made(function, "memory_desc_destroy", *shape, layout)

    def desc(self, md: int | None) -> MemoryDesc | None:
        """dnncore's descriptor. None for NULL and for an absent tensor."""
        if not self.is_present(md):
            return None
        dims = self._dims(md, DIMS, self._query(md, NDIMS, ctypes.c_int).value)
        data_type = self.library.name("dt", self._query(md, DATA_TYPE, ctypes.c_int).value)
        is_blocked = self._query(md, FORMAT_KIND, ctypes.c_int).value == BLOCKED
        blocked = self._blocked(md, dims, data_type) if is_blocked else None
        return blocked or self._named(md, dims, data_type)

    def is_present(self, md: int | None) -> bool:
        """Whether this is neither NULL nor the descriptor of an absent tensor."""
        return bool(md) and self._query(md, NDIMS, ctypes.c_int).value > 0

    def nbytes(self, md: int | None) -> int:
        """The size of a layout in bytes."""
        return int(self.library.functions.dnnl_memory_desc_get_size(Handle(md)))

    def _blocked(self, md: int | None, dims: tuple[int, ...], data_type: str) -> MemoryDesc | None:
        """The layout of strides and blocks. None if dnncore cannot express it exactly."""
        steps = self._dims(md, STRIDES, len(dims))
        count = self._query(md, INNER_COUNT, ctypes.c_int).value
        sizes, places = (self._dims(md, what, count) for what in (INNER_SIZES, INNER_DIMS))
        blocks = [(dim, size) for dim, size in zip(places, sizes, strict=True) if size > 1]
        if not blocks:
            return MemoryDesc(dims, data_type, strides=steps)
        desc = MemoryDesc(dims, data_type, _tag(steps, blocks))
        used = [i for i, number in enumerate(desc.physical_shape[: len(dims)]) if number > 1]
        same = (
            desc.padded_dims == self._dims(md, PADDED_DIMS, len(dims))
            and desc.nbytes == self.nbytes(md)  # otherwise oneDNN stores data after the values
            and all(desc.strides[i] == steps[i] for i in used)
        )
        return desc if same else None

    def _named(self, md: int | None, dims: tuple[int, ...], data_type: str) -> MemoryDesc:
        """The opaque descriptor of a layout. It is kept for the life of the process."""
        with self._lock:
            for known, same in self._opaque.items():
                if self.library.functions.dnnl_memory_desc_equal(same, Handle(md)):
                    return known
            name = f"onednn:{os.getpid()}:{len(self._opaque)}"
            desc = MemoryDesc(dims, data_type, name, nbytes=self.nbytes(md))
            copy = self.library.made("memory_desc_clone", "memory_desc_destroy", Handle(md))
            self._opaque[desc] = copy
            return desc

    def _query(self, md: int | None, what: int, kind: Any) -> Any:
        value = kind()
        self.library("memory_desc_query", Handle(md), what, ctypes.byref(value))
        return value

    def _dims(self, md: int | None, what: int, count: int) -> tuple[int, ...]:
        array = self._query(md, what, ctypes.POINTER(Dims))
        return tuple(array.contents[:count])


def _tag(steps: tuple[int, ...], blocks: list[tuple[int, int]]) -> str:
    """The tag of a dense layout: letters by decreasing stride, then blocks (dim, size)."""
    blocked = {dim for dim, _ in blocks}
    order = sorted(range(len(steps)), key=lambda dim: -steps[dim])
    letters = [chr(ord("A" if dim in blocked else "a") + dim) for dim in order]
    return "".join(letters + [f"{size}{chr(ord('a') + dim)}" for dim, size in blocks])
