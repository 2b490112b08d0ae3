"""Families with chosen parameters: from measurements on a device, or from knobs.

Such a family chooses one of `tiles`, frozen dataclasses of one class, and splits k into `parts`; 0
lets a rule choose. `tuning/<device>.json` lists both for products by the text of `key`. The knobs
are `parts` and the fields of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from dnncore.backend import DescriptorError, Knob, KnobValue, Refused, remark
from dnncore_opencl.gemm.product import Gemm, Matrix
from dnncore_opencl.runtime.engine import OpenCLEngine

AnyFamily = TypeVar("AnyFamily")
PARTS = Knob(
    "parts", 0, (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "parts of the sum that are computed at once; 0: chosen by a rule",
)  # fmt: skip


def key(gemm: Gemm) -> str:
    """Return a product's key: type, batch, sizes, strides of the window, layouts of the operands.

    `f32 b1 m64 n64x56x56 k64x3x3 s1x1 ak bk cm`
    """
    words = [gemm.a.data_type, f"b{gemm.batches}", f"m{gemm.m}"]
    words += [f"n{_sizes(gemm.n)}", f"k{_sizes(gemm.k)}"]
    if gemm.window:
        words.append(f"s{_sizes(gemm.window.n)}")
    if gemm.fpmath != "strict":
        words.insert(1, gemm.fpmath)
    operands = ("a", gemm.a), ("b", gemm.b), ("c", gemm.c)
    return " ".join([*words, *(name + _along(operand) for name, operand in operands)])


def _sizes(digits: Sequence[int]) -> str:
    return "x".join(map(str, digits))


def _along(operand: Matrix) -> str:
    """Return the index (m, n or k) along which the operand is contiguous; empty if none."""
    strides = operand.strides
    along = {"m": (strides.m,), "n": strides.n, "k": strides.k}
    return next((name for name, steps in along.items() if 1 in steps), "")


def require(tile: object, holds: bool, rule: str) -> None:
    """Raise `DescriptorError` for a tile that breaks a rule."""
    if not holds:
        raise DescriptorError(f"opencl: {rule}; got {tile}")


def tuned(family: AnyFamily, gemm: Gemm, engine: OpenCLEngine) -> AnyFamily:
    """Return the family restricted to the choice in the device's table for a product.

    Returns the family itself without such a choice. Verbose output reports an invalid choice.
    """
    name = getattr(family, "name", "")
    found = engine.tuning_table(name).get(key(gemm)) if hasattr(family, "tiles") else None
    if found is None:
        return family
    try:
        chosen: AnyFamily = with_parameters(family, found)
        return chosen
    except (TypeError, DescriptorError) as error:
        remark(engine, f"tuning: {name} cannot have {dict(found)} for {key(gemm)}: {error}")
        return family


def parameters(family: Any) -> dict[str, Any]:
    """Return the parameters of a family with one tile."""
    (tile,) = family.tiles
    return {**asdict(tile), "parts": family.parts}


def with_parameters(family: Any, found: Mapping[str, Any]) -> Any:
    """Return the family of the one tile with these parameters.

    Raises `TypeError` for names that its tiles do not have, and `DescriptorError` for values that
    break a rule of its tiles.
    """
    values = dict(found)
    parts = values.pop("parts", 0)
    tile = type(family.tiles[0])(**values)
    return replace(family, tiles=(tile,), parts=parts)


def tile_knob(name: str, values: Sequence[int], description: str) -> Knob:
    """Return a knob for a field of tiles."""
    return Knob(name, 0, (0, *values), f"{description}; 0: chosen by a rule")


def with_knobs(family: AnyFamily, values: Mapping[str, KnobValue]) -> AnyFamily | Refused:
    """Return the family of the tiles with these nonzero values, or a refusal if there is none."""
    fixed: dict[str, Any] = {name: value for name, value in values.items() if value}
    parts = fixed.pop("parts", 0)
    own: Any = family
    tiles, broken = [], ""
    for tile in own.tiles:
        try:
            tiles.append(replace(tile, **fixed))
        except DescriptorError as error:
            broken = str(error)
    if not tiles:
        return Refused("attribute", broken)
    chosen: AnyFamily = replace(own, tiles=tuple(dict.fromkeys(tiles)), parts=parts)
    return chosen
