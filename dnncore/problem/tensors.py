"""Types and formats of tensors: `--dt=f32 --stag=acdb --wtag=any --dtag=ab@8x1@3`.

An option applies to one role: src, weights, bias, dst, statistics (mean and variance) or factors
(scale and shift). A role has one or several tensors (src0,
src1, ...) and their gradients. One value applies to all of them. Several values, separated by
colons, apply to one tensor each, in the order of the operation's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from string import digits
from typing import TypeAlias

from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem.settings import Dims, Misread, Settings, Unsupported, misread, read_list
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["ONE_TAG", "format_text", "joined", "read_desc", "read_tensors", "read_type", "role_of",
           "write_tensors"]  # fmt: skip

ROLES = (
    "src", "weights", "queries", "keys", "values", "bias", "mask", "dst", "statistics", "factors",
)  # fmt: skip
FORMAT_OPTIONS = {
    "src": "stag", "weights": "wtag", "queries": "qtag", "keys": "ktag", "values": "vtag",
    "bias": "btag", "mask": "mtag", "dst": "dtag", "statistics": "stat_tag", "factors": "ss_tag",
}  # fmt: skip
MISSING_TYPES = ("f4_e3m0",)  # some releases of oneDNN have it
TYPE_OPTIONS = {
    "src": "sdt", "weights": "wdt", "bias": "bia-dt", "mask": "mdt", "dst": "ddt",
    "factors": "ss_dt",
}  # fmt: skip
BESIDE = ("bias", "mask", "statistics", "factors")  # --dt and --strides do not apply to these roles
OTHER_NAMES = {
    "mean": "statistics", "variance": "statistics", "scale": "factors", "shift": "factors",
    "src_layer": "src", "src_iter": "src", "src_iter_c": "src", "attention": "src",
    "weights_layer": "weights", "weights_iter": "weights", "weights_peephole": "weights",
    "weights_projection": "weights", "dst_layer": "dst", "dst_iter": "dst", "dst_iter_c": "dst",
}  # fmt: skip

ONE_TAG: Settings = {"tag": "abx", "stag": "", "dtag": ""}
"""Defaults of drivers whose stag and dtag default to tag."""


@cache  # there are few names
def role_of(name: str) -> str:
    """Return the role of an argument in the forward operation: src for src, src1 and diff_src, and
    factors for scale.
    """
    name = name.removeprefix("diff_").rstrip(digits)
    return OTHER_NAMES.get(name, name)


Roles: TypeAlias = dict[str, list[str]]  # role -> names of its tensors
Formats: TypeAlias = dict[str, tuple[str, str]]  # name -> (option, its text)


def _roles(names: Iterable[str]) -> Roles:
    named = list(names)
    players = {role: [name for name in named if role_of(name) == role] for role in ROLES}
    return {role: group for role, group in players.items() if group}


# -- one format ------------------------------------------------------------------------------------

_FORMAT = re.compile(r"([A-Za-z0-9]+)(?:@([0-9]{1,18}(?:x[0-9]{1,18})*)(?:@([0-9]{1,18}))?)?")


def format_text(desc: MemoryDesc) -> str:
    """Return TAG[@STRIDES[@OFFSET]]: `acdb`, `any`; `ab@8x1` with gaps; `ab@8x1@3` at element 3.

    Row-major is `abx` at any rank. Raises `DescriptorError` for an opaque format, which has no
    text.
    """
    if desc.format_kind == "opaque":
        raise DescriptorError(
            f"problem text: an opaque format has no text; got {desc.tag!r}; write the operation"
            " with 'any', as before an implementation resolved it"
        )
    if not desc.offset0 and desc.tag is not None:
        return "abx" if desc == desc.with_format(None) else desc.tag
    strides = "x".join(map(str, desc.strides))
    return f"{desc.order_tag}@{strides}" + (f"@{desc.offset0}" if desc.offset0 else "")


def read_desc(
    settings: Settings, setting: str, dims: Dims, data_type: str, text: str | None = None
) -> MemoryDesc:
    """Return a descriptor with the format in a setting, or in `text`, a part of the setting."""
    layout = settings[setting] if text is None else text
    try:
        desc = _desc(layout, dims, data_type)
    except DescriptorError as error:
        raise Misread(setting, str(error)) from None
    if desc is None:
        misread(settings, setting, "a format, TAG[@STRIDES[@OFFSET]], such as ab@8x1@3")
    return desc


@lru_cache(maxsize=1024)  # most problems of a list share formats and dims
def _desc(text: str, dims: Dims, data_type: str) -> MemoryDesc | None:
    match = _FORMAT.fullmatch(text)
    if match is None:
        return None
    tag, strides, offset0 = match.groups()
    layout = None if tag == "abx" else tag
    steps = tuple(map(int, strides.split("x"))) if strides else None
    return MemoryDesc(dims, data_type, layout, strides=steps, offset0=int(offset0 or 0))


# -- all tensors of an operation -------------------------------------------------------------------


def read_tensors(settings: Settings, dims: Mapping[str, Dims]) -> dict[str, MemoryDesc]:
    """Return the descriptors of tensors with these names and dims, from the options."""
    roles = _roles(dims)
    types = _read_types(settings, roles)
    formats = _read_formats(settings, roles)
    return {
        name: read_desc(settings, option, dims[name], types[name], text)
        for name, (option, text) in (formats | _read_strides(settings, formats)).items()
    }


def _read_types(settings: Settings, roles: Roles) -> dict[str, str]:
    """Read `dt`, which has one type, or one per role. Without dt, each role has its own option."""
    types: dict[str, str] = {}
    shared = [role for role in roles if role not in BESIDE and settings.get("dt")]
    for role, names in roles.items():
        if role in shared:
            data_type = _read_type_list(settings, "dt", len(shared))[shared.index(role)]
            types |= dict.fromkeys(names, data_type)
        elif role in BESIDE and TYPE_OPTIONS.get(role) not in settings:
            types |= dict.fromkeys(names, "f32")
        else:
            own = _read_type_list(settings, TYPE_OPTIONS[role], len(names))
            types |= zip(names, own, strict=True)
    return types


def _read_type_list(settings: Settings, option: str, count: int) -> list[str]:
    return [read_type(settings, option, text) for text in read_list(settings, option, count)]


def read_type(settings: Settings, option: str, text: str) -> str:
    """Return the data type named by `text`, the setting or a part of it. Case does not matter.

    Raises `Unsupported` for types that only oneDNN has.
    """
    name = text.lower()
    if name in MISSING_TYPES:
        raise Unsupported([f"data type {name}"])
    if name not in DATA_TYPES:
        misread(settings, option, f"types among {', '.join(DATA_TYPES)}")
    return name


def _read_formats(settings: Settings, roles: Roles) -> Formats:
    """Return the format of each tensor: one text for all tensors of a role, or one for each."""
    formats: Formats = {}
    for role, names in roles.items():
        option = FORMAT_OPTIONS[role]
        option = "tag" if "tag" in settings and not settings[option] else option
        texts = read_list(settings, option, len(names))
        formats |= {name: (option, text) for name, text in zip(names, texts, strict=True)}
    return formats


def _read_strides(settings: Settings, formats: Formats) -> Formats:
    """Return formats with the strides of `--strides=8x1::4x1`, which has a part per tensor."""
    names = [name for name in formats if role_of(name) not in BESIDE]
    parts = settings.get("strides", "").split(":")
    if not any(parts):
        return {}
    if len(parts) != len(names):
        misread(settings, "strides", f"strides of {', '.join(names)}, with colons between them")
    return {
        name: ("strides", _with_strides(settings, formats[name][1], strides))
        for name, strides in zip(names, parts, strict=True)
        if strides
    }


def _with_strides(settings: Settings, tag: str, strides: str) -> str:
    if "@" in tag:
        misread(settings, "strides", f"nothing for a tensor whose format, {tag}, has strides")
    return f"{'abx' if tag == 'any' else tag}@{strides}"


def write_tensors(op: Operation, defaults: Settings) -> dict[str, str]:
    """Return the texts of tensors, for the options in `defaults`: the inverse of `read_tensors`."""
    descs = {row.name: desc for row, desc in op.tensors()}
    roles = {role: [descs[name] for name in names] for role, names in _roles(descs).items()}
    types = {role: joined(desc.data_type for desc in group) for role, group in roles.items()}
    written = {FORMAT_OPTIONS[role]: joined(map(format_text, g)) for role, g in roles.items()}
    if "tag" in defaults and written["stag"] == written["dtag"]:
        written = {**written, "tag": written["stag"]}
        del written["stag"], written["dtag"]
    written["dt"] = joined(text for role, text in types.items() if role not in BESIDE)
    written |= {TYPE_OPTIONS[role]: types[role] for role in types if role in TYPE_OPTIONS}
    return {option: text for option, text in written.items() if option in defaults}


def joined(texts: Iterable[str]) -> str:
    """Return texts joined by colons; a single text if all are equal."""
    parts = list(texts)
    return parts[0] if len(set(parts)) == 1 else ":".join(parts)
