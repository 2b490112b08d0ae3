"""Problems read from verbose lines: dnncore's own, and oneDNN's of the syntaxes v0 and v1.

    dnncore_verbose,v1,primitive,exec,cpu,convolution,cpu_numba:brgemm,forward_training,src:f32:...
    onednn_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:abcd::f0 ...

Lines of executions and creations are read, all other lines are passed over. What can be read but is
nothing that dnncore computes, of another data type for instance, is left out with a warning, or
reported.
Formats are those that the primitive had, `any` resolved; formats that are their owner's secret
become `any` again.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from dnncore.attributes import Attributes
from dnncore.errors import DataTypeError, DescriptorError
from dnncore.ops import MatMul, Operation, Sum
from dnncore.problem import attributes
from dnncore.problem.drivers import driver_of
from dnncore.problem.options import feature_name
from dnncore.problem.problem import Problem
from dnncore.problem.settings import Dims, Misread, Unreadable, Unsupported
from dnncore.problem.shapes import masked
from dnncore.problem.verbose_fields import (
    KINDS,
    OPERATIONS,
    Fields,
    Row,
    kind_of,
    prop_kinds_of,
    rows_of,
)
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["executions", "from_verbose"]

BY_NAMES = {
    (kind_of(operation), prop_kind): operation
    for operation in OPERATIONS
    for prop_kind in prop_kinds_of(operation)
}

# prop_kind -> what the option --dir says; a bias is told by its memory descriptor
DIRECTIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
}


# -- lines -----------------------------------------------------------------------------------------


def from_verbose(lines: Iterable[str]) -> list[Problem]:
    """The problems of verbose lines, each once, in the order in which they first come.

    Raises `DescriptorError`, which names the line, the field and what was expected there. Warns of
    lines left out, and says why.
    """
    return list(executions(lines))


def executions(
    lines: Iterable[str], report: Callable[[Unreadable | Unsupported], object] | None = None
) -> dict[Problem, int]:
    """The problems of verbose lines, and how often each was executed; 0 if only created.

    report: is called with each distinct line that is no problem; reading goes on behind it. Without
    it, the first line that cannot be read is raised, and of those left out there are warnings.
    """
    counts: dict[Problem, int] = {}
    reported: set[Fields] = set()
    unknown: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        try:
            found = _split(number, line)
            if found is None:
                continue
            command, told = found
            if told.kind not in KINDS:
                unknown[told.kind] += 1
                raise _Refused(told.kind, [f"primitive {told.kind}"])
            problem = _problem(number, told)
        except _Refused as error:
            refused[str(error)] += told.kind in KINDS
            if report and told not in reported:
                reported.add(told)
                text = f"{told.kind} {told.problem_desc}"
                report(Unsupported(error.features, text, f"verbose line {number}"))
            continue
        except DescriptorError as error:
            if report is None:
                raise
            unreadable = Unreadable(str(error))
            unreadable.line = f"verbose line {number}"
            report(unreadable)
            continue
        counts[problem] = counts.get(problem, 0) + (command == "exec")
    if report:
        return counts
    if unknown:
        _warn(f"left out {_listed(unknown, 'of')}, which dnncore does not have")
    if +refused:
        _warn(f"left out {_listed(refused, 'with')}")
    return counts


class _Refused(Exception):
    """A line can be read, but dnncore has no such problem; `features` names what is missing."""

    def __init__(self, message: str, features: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.features = tuple(features) or (message,)


def _warn(text: str) -> None:
    warnings.warn(f"verbose lines: {text}", stacklevel=4)


def _listed(counts: Counter[str], word: str) -> str:
    return ", ".join(f"{count} {word} {what}" for what, count in counts.items() if count)


_MARK = re.compile(r"(dnncore|onednn|dnnl)_verbose,(v[01],)?([0-9.]+,)?(primitive,)?")
_COMMAND = re.compile(r"exec|create:(cache_hit|cache_miss|from_disk|from_cache_blob)")


def _split(number: int, line: str) -> tuple[str, Fields] | None:
    """The command of a line about one primitive, and its fields; None of any other line."""
    mark = _MARK.match(line)
    command, *rest = line[mark.end() :].rstrip("\r\n").split(",") if mark else [""]
    if not _COMMAND.fullmatch(command):
        return None
    names = ["engine", "primitive", "implementation", *(f.name for f in fields(Fields)[1:])]
    names.append("exec_time")
    if len(rest) != len(names):
        raise DescriptorError(
            f"verbose line {number}: expected {len(names)} fields behind {command}:"
            f" {', '.join(names)}; got {len(rest)}"
        )
    _engine, kind, _implementation, *texts, _time = rest
    return command, Fields(kind.removesuffix("_v2"), *texts)  # as in oneDNN 2


# setting -> the field that it is read from; all others are words of the auxiliary field
FIELD_OF = {
    **{field.name: field.name for field in fields(Fields)},
    **dict.fromkeys(attributes.DEFAULTS, "attributes"),
    "shape": "problem_desc",
    "dir": "prop_kind",
}


def _problem(number: int, told: Fields) -> Problem:
    try:
        return Problem(*_read(told))
    except Misread as error:
        field = FIELD_OF.get(error.setting, "auxiliary")
        text = getattr(told, field)
        raise DescriptorError(f"verbose line {number}: {field} {text!r}: {error}") from None
    except Unsupported as error:
        raise _Refused(str(error), error.features) from None
    except DataTypeError as error:
        raise _Refused(str(error), [error.feature]) from None
    except DescriptorError as error:
        raise _Refused(str(error)) from None


# -- one primitive ---------------------------------------------------------------------------------


def _read(told: Fields) -> tuple[Operation, Attributes]:
    """The operation of the shape, then its tensors as the memory descriptors tell them."""
    operation = BY_NAMES.get((told.kind, told.prop_kind))
    if operation is None:
        known = ", ".join(prop_kind for kind, prop_kind in BY_NAMES if kind == told.kind)
        raise Misread("prop_kind", f"expected one of {known} of {told.kind}")
    words = _words(told.auxiliary)
    tensors = [_read_desc(text) for text in told.memory_descriptors.split()]
    offsets = _read_offsets(words.pop("offsets", None), len(tensors))
    op = _read_shape(told, operation, words, tensors)
    op = _with_descs(op, dict(_descs(op, tensors, offsets)))
    return op, _read_attributes(told.attributes, op)


def _words(text: str) -> dict[str, str]:
    """`alg:eltwise_relu alpha:0` by word; the value of a word may have colons."""
    pairs = [word.partition(":") for word in text.split()]
    return {name: value for name, _, value in pairs}


def _read_shape(
    told: Fields, operation: type[Operation], words: dict[str, str], tensors: list[_Tensor]
) -> Operation:
    """The operation of the shape and the auxiliary words; types, formats and bias are to come."""
    driver = driver_of(operation)
    letters = [name for name in words if re.fullmatch(driver.verbose.letters, name)]
    formats = {name: "abx" for name in ("stag", "wtag", "dtag") if name in driver.defaults}
    settings = {**driver.defaults, **formats, "shape": told.problem_desc}
    settings["shape"] += "".join(f"_{name}{words.pop(name)}" for name in letters)
    for name, value in words.items():
        if name not in driver.defaults:
            known = ", ".join([*driver.defaults, *driver.verbose.letters.strip("$").split("|")])
            raise Misread("auxiliary", f"expected words such as {known}; got {name!r}")
        settings[name] = value
    if "dir" in settings:
        settings["dir"] = DIRECTIONS[told.prop_kind]
    if operation is Sum:  # whose number of sources its types tell
        settings["sdt"] = ":".join(["f32"] * (len(tensors) - 1))
    return driver.read(settings)


# -- memory descriptors ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """One memory descriptor of a line; its dims are the problem's. mask: of a matmul's bias."""

    text: str
    word: str
    data_type: str
    kind: str
    tag: str
    strides: str
    mask: int

    def desc(self, dims: Dims, offset0: int) -> MemoryDesc:
        """The descriptor of a tensor of these dims."""
        if self.kind not in ("blocked", "any"):
            return MemoryDesc(dims, self.data_type, "any")
        strides = tuple(map(int, self.strides.split("x"))) if self.strides else None
        tag = re.sub("(?<=[A-Za-z])1[a-l]", "", self.tag)  # a block of 1, as in Ab16a1b
        try:
            return MemoryDesc(dims, self.data_type, tag, strides=strides, offset0=offset0)
        except DescriptorError as error:
            raise Misread("memory_descriptors", f"at {self.text!r}: {error}") from None


_DESC = re.compile(
    rf"([a-z_]+?)[_:]({'|'.join(DATA_TYPES)}|undef):[apo0]*:(\w*):([\w/]*)"
    r"(?::((?:[0-9]{1,18}(?:x[0-9]{1,18})*)?))?:(?:f0(?:_mask([0-9]{1,4}))?)?"
)


def _read_desc(text: str) -> _Tensor:
    match = _DESC.fullmatch(text)
    if match is None:
        raise Misread(
            "memory_descriptors",
            f"at {text!r}: expected NAME:TYPE:MARKS:KIND:TAG:STRIDES:f0,"
            " as in src:f32::blocked:ab::f0",
        )
    word, data_type, kind, tag, strides, mask = match.groups()
    return _Tensor(text, word, data_type, kind, tag, strides or "", int(mask or 0))


def _read_offsets(text: str | None, count: int) -> list[int]:
    """Elements before each tensor of the line."""
    if text is None:
        return [0] * count
    parts = text.split(":")
    if len(parts) != count or not all(part.isdecimal() for part in parts):
        raise Misread("auxiliary", f"expected offsets of {count} tensors, with colons between them")
    return [int(part) for part in parts]


# Tensors that a line may call undefined, and those of other versions leave out.
_MAY_LACK = re.compile("|workspace|(diff_)?bias")


def _descs(op: Any, tensors: list[_Tensor], offsets: list[int]) -> Iterator[tuple[str, MemoryDesc]]:
    """Argument -> descriptor, of the tensors that an operation takes."""
    found: dict[str, MemoryDesc] = {}
    rest = list(zip(tensors, offsets, strict=True))
    for row in rows_of(op):
        if not rest or rest[0][0].word != row.word:
            if row.twin:
                yield row.argument, found[row.twin]
            elif not (row.is_optional or _MAY_LACK.fullmatch(row.argument)):
                got = repr(rest[0][0].text) if rest else "the end of the list"
                raise Misread("memory_descriptors", f"expected {row.word} next; got {got}")
            continue
        tensor, offset0 = rest.pop(0)
        _check_presence(row, tensor)
        if tensor.data_type == "undef" or row.argument == "workspace":
            continue
        argument = _argument(op, row.argument)
        found[row.argument] = tensor.desc(_dims(op, argument, tensor), offset0)
        yield argument, found[row.argument]
    if rest:
        raise Misread(
            "memory_descriptors", f"expected the end of the list; got {rest[0][0].text!r}"
        )


def _check_presence(row: Row, tensor: _Tensor) -> None:
    absent = tensor.data_type == "undef"
    if absent and not _MAY_LACK.fullmatch(row.argument):
        raise Misread("memory_descriptors", f"at {tensor.text!r}: expected a tensor, not none")
    if not absent and not row.argument:
        raise Misread(
            "memory_descriptors", f"at {tensor.text!r}: expected {row.word}:undef::undef:::"
        )


def _argument(op: Any, name: str) -> str:
    """The name; of what an eltwise gradient keeps, whichever of src and dst it is."""
    if name != "kept":
        return name
    return "dst" if op.uses_dst else "src"


def _dims(op: Any, argument: str, tensor: _Tensor) -> Dims:
    """The dims that the shape gave, or those of a bias, which it did not."""
    desc: MemoryDesc | None = getattr(op, argument, None)
    if desc is not None:
        return desc.dims
    if isinstance(op, MatMul):
        told = {"memory_descriptors": tensor.text}
        return masked(told, "memory_descriptors", tensor.mask, op.dst.dims)
    channels: int = op.dst_role.dims[1]
    return (channels,)


def _with_descs(op: Operation, descs: dict[str, Any]) -> Operation:
    """The operation, validated anew with its tensors described."""
    if isinstance(op, Sum):
        descs["srcs"] = tuple(descs.pop(f"src{i}") for i in range(len(op.srcs)))
    return replace(op, **descs)


# -- attributes ------------------------------------------------------------------------------------


def _read_attributes(text: str, op: Operation) -> Attributes:
    settings = dict(attributes.DEFAULTS)
    missing = []
    for word in text.split():
        name, _, value = word.partition(":")
        if name not in settings and not name.startswith("attr-"):
            raise Misread("attributes", f"expected one of {', '.join(settings)}; got {name!r}")
        if name not in settings:
            missing.append(name)
        settings[name] = value
    if missing:
        told = f"attributes that dnncore does not have: {', '.join(missing)}"
        raise _Refused(told, map(feature_name, missing))
    return attributes.read(settings, op.result)
