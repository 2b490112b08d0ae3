"""oneDNN's library, loaded with ctypes: checked calls, names of enumerators, and layouts."""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from typing import Any

import dnncore as dnn
from benchmarks.contestants.onednn_packages import OPENMP, Package

Handle = ctypes.c_void_p
Dims = ctypes.c_int64 * 12

# Enumerators of dnnl_types.h for which the library has no function that returns names.
ANY_TAG, BLOCKED = 1, 2
NDIMS, DIMS, DATA_TYPE, PADDED_DIMS, FORMAT_KIND = 256, 257, 258, 260, 262
INNER_COUNT, INNER_SIZES, INNER_DIMS, STRIDES = 263, 264, 265, 14
# Table -> upper limit of its enumerators. dnnl_<table>2str returns their names.
TABLES = {"alg_kind": 0x30010, "prop_kind": 256, "dt": 16, "fpmath_mode": 8, "scratchpad_mode": 2}


class PeerError(RuntimeError):
    """oneDNN returned a status that is not success."""


class Unsupported(PeerError):
    """The installed oneDNN does not implement the problem or cannot express it."""


class Library:
    """Calls dnnl_... functions. Raises `ModuleNotFoundError` if the package is not installed."""

    def __init__(self, package: Package = OPENMP) -> None:
        self.package = package
        self.functions = _functions(package)

    @property
    def version(self) -> str:
        """The version, such as 3.2.0."""
        return ".".join(map(str, self.functions.dnnl_version()[0:3]))

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call dnnl_<function>. Raises `PeerError` if its status is not success."""
        status = getattr(self.functions, f"dnnl_{function}")(*arguments)
        if status:
            text = self.functions.dnnl_status2str(status).decode()
            kind = Unsupported if text == "unimplemented" else PeerError
            raise kind(f"oneDNN {self.version}: {function}: {text}")

    def made(self, function: str, destroy: str, *arguments: Any) -> tuple[Handle, object]:
        """A new object and its owner. The object is destroyed together with its owner."""
        handle = Handle()
        self(function, ctypes.byref(handle), *arguments)
        owner = _Owner()
        destroyed = getattr(self.functions, f"dnnl_{destroy}")
        weakref.finalize(owner, destroyed, handle).atexit = False
        return handle, owner

    def number(self, table: str, name: str) -> int:
        """The enumerator with a name."""
        try:
            return _numbers(self.package, table)[name]
        except KeyError:
            raise Unsupported(f"oneDNN {self.version} has no {table} {name}") from None

    def name(self, table: str, number: int) -> str:
        """The name of an enumerator."""
        spelled = getattr(self.functions, f"dnnl_{table}2str")(number)
        return str(spelled.decode())


class _Owner:
    """An object whose finalizer destroys an object of oneDNN."""


class Layouts:
    """Converts memory descriptors between dnncore and oneDNN.

    A layout that dnncore cannot express becomes opaque, `onednn:<n>`. This object converts it back.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._known: dict[dnn.MemoryDesc, Handle] = {}
        self._count = itertools.count()

    def md(self, desc: dnn.MemoryDesc | None) -> Handle | None:
        """oneDNN's descriptor, without an offset. NULL for None. It lives as long as this object.

        Raises `Unsupported` for blocked layouts with gaps.
        """
        if desc is None:
            return None
        if desc not in self._known:
            self._known[desc] = self._new(desc)
        return self._known[desc]

    def _new(self, desc: dnn.MemoryDesc) -> Handle:
        md, tag = Handle(), desc.tag
        new = ctypes.byref(md), desc.ndims, Dims(*desc.dims)
        data_type = self.library.number("dt", desc.data_type)
        if desc.is_any:
            self.library("memory_desc_create_with_tag", *new, data_type, ANY_TAG)
        elif desc.is_plain:
            steps = Dims(*desc.strides)
            self.library("memory_desc_create_with_strides", *new, data_type, steps)
        elif desc.format_kind == "blocked" and tag:
            text = ctypes.c_char_p(tag.encode())
            self.library("memory_desc_create_with_string_tag", *new, data_type, text)
        else:
            raise Unsupported(f"oneDNN cannot express {desc}")
        return md

    def desc(self, md: int | None) -> dnn.MemoryDesc | None:
        """dnncore's descriptor. None for NULL and for an absent tensor."""
        ndims = self._query(md, NDIMS, ctypes.c_int).value if md else 0
        if not ndims:
            return None
        dims = self._dims(md, DIMS, ndims)
        data_type = self.library.name("dt", self._query(md, DATA_TYPE, ctypes.c_int).value)
        is_blocked = self._query(md, FORMAT_KIND, ctypes.c_int).value == BLOCKED
        blocked = self._blocked(md, dims, data_type) if is_blocked else None
        return blocked or self._opaque(md, dims, data_type)

    def _blocked(
        self, md: int | None, dims: tuple[int, ...], data_type: str
    ) -> dnn.MemoryDesc | None:
        """The layout of strides and blocks. None if dnncore cannot express it exactly."""
        steps = self._dims(md, STRIDES, len(dims))
        count = self._query(md, INNER_COUNT, ctypes.c_int).value
        sizes, places = (self._dims(md, what, count) for what in (INNER_SIZES, INNER_DIMS))
        blocks = [(dim, size) for dim, size in zip(places, sizes, strict=True) if size > 1]
        if not blocks:
            return dnn.MemoryDesc(dims, data_type, strides=steps)
        desc = dnn.MemoryDesc(dims, data_type, _tag(steps, blocks))
        used = [i for i, number in enumerate(desc.physical_shape[: len(dims)]) if number > 1]
        same = (
            desc.padded_dims == self._dims(md, PADDED_DIMS, len(dims))
            and desc.nbytes == self._nbytes(md)  # else there are data after the values
            and all(desc.strides[i] == steps[i] for i in used)
        )
        return desc if same else None

    def _opaque(self, md: int | None, dims: tuple[int, ...], data_type: str) -> dnn.MemoryDesc:
        for known, same in self._known.items():
            equal = self.library.functions.dnnl_memory_desc_equal
            if known.format_kind == "opaque" and equal(same, Handle(md)):
                return known
        name = f"onednn:{next(self._count)}"
        desc = dnn.MemoryDesc(dims, data_type, name, nbytes=self._nbytes(md))
        self._known[desc] = copy = Handle()
        self.library("memory_desc_clone", ctypes.byref(copy), Handle(md))
        return desc

    def _nbytes(self, md: int | None) -> int:
        return int(self.library.functions.dnnl_memory_desc_get_size(Handle(md)))

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


@functools.cache
def _functions(package: Package) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(package.library))
    functions.dnnl_version.restype = ctypes.POINTER(ctypes.c_int)
    functions.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    functions.dnnl_primitive_desc_query_md.restype = Handle
    for table in ("status", *TABLES):
        getattr(functions, f"dnnl_{table}2str").restype = ctypes.c_char_p
    return functions


@functools.cache
def _numbers(package: Package, table: str) -> dict[str, int]:
    """The enumerators of a table, by name."""
    spell = getattr(_functions(package), f"dnnl_{table}2str")
    return {spell(number).decode(): number for number in range(TABLES[table])}
