"""Copies pixels with up to seven bytes of channels into words of four or eight bytes."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_i32, load_i64, load_s8, store_i32, store_i64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.runtime.program import Param, Step

_GRAIN = 4096  # least pixels of a thread's part


_GROUPS = Record(
    "pixels in groups",
    ("source target", "address"),
    ("planes rows pixels", "count", "of an image, a plane and a row"),
    ("size", "bytes", "of a pixel of the source"),
    ("tail", "count", "pixels at the end of a row from where a word is too much to load"),
    ("mask flip", "count", "bits: the bytes that exist, and what is inverted"),
    ("from_image from_plane from_row", "bytes"),
    ("to_image to_plane to_row", "bytes"),
)


@task(_GROUPS)
def _words_of_4(params, begin, end):
    """Copy the rows [begin, end) of all images to words of four bytes."""
    _copy(load_i32, store_i32, params, begin, end)


@task(_GROUPS)
def _words_of_8(params, begin, end):
    """Copy the rows [begin, end) of all images to words of eight bytes."""
    _copy(load_i64, store_i64, params, begin, end)


@device
def _copy(load, store, params, begin, end):
    pixels, size, mask, flip = params.pixels, params.size, params.mask, params.flip
    for item in range(begin, end):
        row = item % params.rows
        plane = item // params.rows % params.planes
        image = item // params.rows // params.planes
        source = params.source + image * params.from_image + plane * params.from_plane
        source += row * params.from_row
        target = params.target + image * params.to_image + plane * params.to_plane
        target += row * params.to_row
        inner = max(0, pixels - params.tail)
        for i in range(inner):
            store(target, i, (load(source + i * size, 0) & mask) ^ flip)
        for i in range(inner, pixels):
            word = 0
            for byte in range(size):
                word |= (load_s8(source + i * size, byte) & 255) << (8 * byte)
            store(target, i, word ^ flip)


def group_step(
    source: Param, target: Param, size: int, word: int, shape: Sequence[int],
    source_steps: Sequence[int], target_steps: Sequence[int], *, flipped: bool,
) -> Step:  # fmt: skip
    """Return a step that copies contiguous pixels of `size` bytes into words of `word` bytes.

    word: 4 or 8, more than `size`. shape: images, planes, rows and pixels. source_steps,
    target_steps: bytes from image to image, plane to plane and row to row. flipped: as in
    `CopyKernel`, including the added bytes.
    """
    images, planes, rows, pixels = shape
    names = ("image", "plane", "row")
    values = {
        "source": source, "target": target, "planes": planes, "rows": rows, "pixels": pixels,
        "size": size, "tail": -(-(word - size) // size), "mask": (1 << 8 * size) - 1,
        "flip": int.from_bytes(bytes([128 * flipped] * word), "little", signed=True),
        **{f"from_{name}": step for name, step in zip(names, source_steps, strict=True)},
        **{f"to_{name}": step for name, step in zip(names, target_steps, strict=True)},
    }  # fmt: skip
    items = images * planes * rows if pixels else 0
    copy = _words_of_4 if word == 4 else _words_of_8
    return Step(copy, values, items, grain=-(-_GRAIN // max(1, pixels)))
