"""Families with chosen parameters: those that were measured to be best on a device, and knobs.

Such a family chooses among `tiles`, frozen dataclasses of one class, and cuts k into `parts`, 0
being a rule. `tuning/<device>.json` names both for products by the text of `key`. The knobs are
`parts` and the fields of tiles.
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
    """A product in short: type, batch, sizes, the window's steps, what each operand lies along.

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
    """The index, m, n or k, along which neighbours are neighbours in memory."""
    strides = operand.strides
    along = {"m": (strides.m,), "n": strides.n, "k": strides.k}
    return next((name for name, steps in along.items() if 1 in steps), "")


def require(tile: object, holds: bool, rule: str) -> None:
    """Raise `DescriptorError` for a tile that breaks a rule."""
    if not holds:
        raise DescriptorError(f"opencl: {rule}; got {tile}")


def tuned(family: AnyFamily, gemm: Gemm, engine: OpenCLEngine) -> AnyFamily:
    """Return the family with the only choice that the device's table has for a product.

    Without such a choice it is the family itself. Verbose output reports an invalid choice.
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
    """The parameters of a family of one tile."""
    (tile,) = family.tiles
    return {**asdict(tile), "parts": family.parts}


def with_parameters(family: Any, found: Mapping[str, Any]) -> Any:
    """The family of one tile that has these parameters.

    Raises `TypeError` for names that its tiles do not have, and `DescriptorError` for values that
    break a rule of theirs.
    """
    values = dict(found)
    parts = values.pop("parts", 0)
    tile = type(family.tiles[0])(**values)
    return replace(family, tiles=(tile,), parts=parts)


def tile_knob(name: str, values: Sequence[int], description: str) -> Knob:
    """A knob for a field of tiles."""
    return Knob(name, 0, (0, *values), f"{description}; 0: chosen by a rule")


def with_knobs(family: AnyFamily, values: Mapping[str, KnobValue]) -> AnyFamily | Refused:
    """The family of the tiles that have the values other than 0; a refusal if there is none."""
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
