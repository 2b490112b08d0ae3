"""Reads problems from verbose lines of dnncore, and of oneDNN in the syntaxes v0 and v1.

    dnncore_verbose,v1,primitive,exec,cpu,convolution,cpu_numba:brgemm,forward_training,src:f32:...
    onednn_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:abcd::f0 ...

Lines about executions and creations are read. All other lines are ignored. A problem that dnncore
does not compute, for instance with another data type, is left out with a warning, or reported.

Formats are those of the primitive, with `any` resolved. Opaque formats become `any` again.
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
from dnncore.ops import EltwiseBackward, MatMul, Operation, SoftmaxForward
from dnncore.ops.convolution import Convolution
from dnncore.ops.deconvolution import Deconvolution
from dnncore.ops.inner_product import InnerProduct
from dnncore.ops.rnn import INTEGERS
from dnncore.ops.sources import Sources
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

# prop_kind -> value of the option --dir; the memory descriptors show if there is a bias
DIRECTIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
    "backward": "BWD_DW",
}


# -- lines -----------------------------------------------------------------------------------------


def from_verbose(lines: str | Iterable[str]) -> list[Problem]:
    """Return the distinct problems of verbose lines, in the order of their first lines.

    lines: a text, or its lines.

    Raises `DescriptorError` with the line, the field and the expected text. Warns about lines that
    are left out, with the reason.
    """
    return list(executions(lines.splitlines() if isinstance(lines, str) else lines))


def executions(
    lines: Iterable[str], report: Callable[[Unreadable | Unsupported], object] | None = None
) -> dict[Problem, int]:
    """Return the problems of verbose lines with the numbers of executions; 0 if only created.

    report: a function that is called with each distinct line without a problem; reading then
        continues. Without it, the first line that cannot be read raises an error, and lines that
        are left out cause warnings.
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
            command, parsed = found
            if parsed.kind not in KINDS:
                unknown[parsed.kind] += 1
                raise _Refused(parsed.kind, [f"primitive {parsed.kind}"])
            problem = _problem(number, parsed)
        except _Refused as error:
            refused[str(error)] += parsed.kind in KINDS
            if report and parsed not in reported:
                reported.add(parsed)
                text = f"{parsed.kind} {parsed.problem_desc}"
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
    """dnncore does not support the problem of a line. `features` are the missing features."""

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
    """Return the command and the fields of a line about a primitive; None for any other line."""
    mark = _MARK.match(line)
    command, *rest = line[mark.end() :].rstrip("\r\n").split(",") if mark else [""]
    if not _COMMAND.fullmatch(command):
        return None
    names = ["engine", "primitive", "implementation", *(f.name for f in fields(Fields)[1:])]
    names.append("exec_time")
    if len(rest) != len(names):
        raise DescriptorError(
            f"verbose line {number}: expected {len(names)} fields after {command}:"
            f" {', '.join(names)}; got {len(rest)}"
        )
    _engine, kind, _implementation, *texts, _time = rest
    return command, Fields(kind.removesuffix("_v2"), *texts)  # as in oneDNN 2


# setting -> its field in the line; all other settings are words of the auxiliary field
FIELD_OF = {
    **{field.name: field.name for field in fields(Fields)},
    **dict.fromkeys(attributes.DEFAULTS, "attributes"),
    "shape": "problem_desc",
    "dir": "prop_kind",
}


def _problem(number: int, parsed: Fields) -> Problem:
    try:
        return Problem(*_read(parsed))
    except Misread as error:
        field = FIELD_OF.get(error.setting, "auxiliary")
        text = getattr(parsed, field)
        raise DescriptorError(f"verbose line {number}: {field} {text!r}: {error}") from None
    except Unsupported as error:
        raise _Refused(str(error), error.features) from None
    except DataTypeError as error:
        raise _Refused(str(error), [error.feature]) from None
    except DescriptorError as error:
        raise _Refused(str(error)) from None


# -- one primitive ---------------------------------------------------------------------------------


def _read(parsed: Fields) -> tuple[Operation, Attributes]:
    """Read the operation from the shape, then its tensors from the memory descriptors."""
    operation = BY_NAMES.get((parsed.kind, parsed.prop_kind))
    if operation is None:
        known = ", ".join(prop_kind for kind, prop_kind in BY_NAMES if kind == parsed.kind)
        raise Misread("prop_kind", f"expected one of {known} of {parsed.kind}")
    words = _words(parsed.auxiliary)
    tensors = [_read_desc(text) for text in parsed.memory_descriptors.split()]
    driver_of(operation).verbose.adapt(words, [tensor.word for tensor in tensors])
    offsets = _read_offsets(words.pop("offsets", None), len(tensors))
    op = _read_shape(parsed, operation, words, tensors)
    op = _with_descs(op, dict(_descs(op, tensors, offsets)))
    return op, _read_attributes(parsed.attributes, op)


def _words(text: str) -> dict[str, str]:
    """Return word -> value of a text such as `alg:eltwise_relu alpha:0`. Values may have colons."""
    pairs = [word.partition(":") for word in text.split()]
    return {name: value for name, _, value in pairs}


def _read_shape(
    parsed: Fields, operation: type[Operation], words: dict[str, str], tensors: list[_Tensor]
) -> Operation:
    """Return the operation of the shape and the auxiliary words, with default types and formats."""
    driver = driver_of(operation)
    letters = [name for name in words if re.fullmatch(driver.verbose.letters, name)]
    formats = {name: "abx" for name in ("stag", "wtag", "dtag") if name in driver.defaults}
    settings = {**driver.defaults, **formats, "shape": parsed.problem_desc}
    settings["shape"] += "".join(f"_{name}{words.pop(name)}" for name in letters)
    for name, value in words.items():
        if name not in driver.defaults:
            known = ", ".join([*driver.defaults, *driver.verbose.letters.strip("$").split("|")])
            raise Misread("auxiliary", f"expected words such as {known}; got {name!r}")
        settings[name] = value
    if "dir" in settings:
        settings["dir"] = DIRECTIONS[parsed.prop_kind]
    if issubclass(operation, Sources):  # the number of types is the number of sources
        settings["sdt"] = ":".join(["f32"] * (len(tensors) - 1))
    return driver.read(settings)


# -- memory descriptors ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """One memory descriptor of a line, without dims. mask: the mask of a matmul's bias."""

    text: str
    word: str
    data_type: str
    kind: str
    tag: str
    strides: str
    mask: int

    def desc(self, dims: Dims, offset0: int) -> MemoryDesc:
        """Return the descriptor of a tensor with these dims."""
        if self.kind not in ("blocked", "any"):
            return MemoryDesc(dims, self.data_type, "any")
        strides = tuple(map(int, self.strides.split("x"))) if self.strides else None
        tag = re.sub("(?<=[A-Za-z])1[a-l]", "", self.tag)  # remove blocks of 1, as in Ab16a1b
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
    """Return the number of elements before each tensor of the line."""
    if text is None:
        return [0] * count
    parts = text.split(":")
    if len(parts) != count or not all(part.isdecimal() for part in parts):
        raise Misread("auxiliary", f"expected offsets of {count} tensors, with colons between them")
    return [int(part) for part in parts]


# Tensors that may be undefined in a line, or that lines of other versions do not list.
_MAY_LACK = re.compile("|workspace|(diff_)?bias")


def _descs(
    op: Operation, tensors: list[_Tensor], offsets: list[int]
) -> Iterator[tuple[str, MemoryDesc]]:
    """Return pairs of argument and descriptor, for the tensors of an operation."""
    if not _is_own(op, tensors):
        yield from _descs_of_onednn(op, tensors)
        return
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


def _is_own(op: Operation, tensors: list[_Tensor]) -> bool:
    """Whether a line has the tensors that dnncore writes, or oneDNN writes the same ones."""
    if type(op) not in driver_of(type(op)).verbose.onednn:
        return True
    rows, words = list(rows_of(op)), {tensor.word for tensor in tensors}
    needed = {row.word for row in rows if not row.twin and getattr(op, row.argument, None)}
    return needed <= words <= {row.word for row in rows}


def _descs_of_onednn(op: Operation, tensors: list[_Tensor]) -> Iterator[tuple[str, MemoryDesc]]:
    """Return pairs of argument and descriptor, for the tensors of oneDNN's line.

    A descriptor of several tensors gives all of them its type, and its format if dims are equal.
    """
    listed = driver_of(type(op)).verbose.onednn[type(op)].split()
    arguments = {word: names or word for word, _, names in (text.partition(":") for text in listed)}
    for tensor in tensors:
        if tensor.word not in arguments:
            known = ", ".join(arguments)
            text = f"at {tensor.text!r}: expected one of {known} of {op.KIND}"
            raise Misread("memory_descriptors", text)
        first: MemoryDesc | None = None
        for name in arguments[tensor.word].split("+"):
            own: MemoryDesc | None = getattr(op, name, None)
            is_c = name.endswith("_c") and tensor.data_type in INTEGERS  # f32, and not listed
            if own is None or tensor.data_type == "undef" or is_c:
                continue
            first = tensor.desc(own.dims, 0) if first is None else first
            yield name, first if first.dims == own.dims else own.with_data_type(first.data_type)


def _check_presence(row: Row, tensor: _Tensor) -> None:
    absent = tensor.data_type == "undef"
    if absent and not _MAY_LACK.fullmatch(row.argument):
        raise Misread("memory_descriptors", f"at {tensor.text!r}: expected a tensor, not none")
    if not absent and not row.argument:
        raise Misread(
            "memory_descriptors", f"at {tensor.text!r}: expected {row.word}:undef::undef:::"
        )


def _argument(op: Operation, name: str) -> str:
    """Return the name of the argument: src or dst for `kept` of an eltwise gradient."""
    if name != "kept":
        return name
    return "dst" if isinstance(op, EltwiseBackward) and op.uses_dst else "src"


def _dims(op: Operation, argument: str, tensor: _Tensor) -> Dims:
    """Return the dims from the shape. The shape omits the bias, so its dims are derived."""
    desc: MemoryDesc | None = getattr(op, argument, None)
    if desc is not None:
        return desc.dims
    if isinstance(op, MatMul):
        settings = {"memory_descriptors": tensor.text}
        return masked(settings, "memory_descriptors", tensor.mask, op.dst.dims)
    if isinstance(op, SoftmaxForward) and argument == "lse":
        return tuple(1 if d == op.axis else n for d, n in enumerate(op.src.dims))
    assert isinstance(
        op, Convolution | Deconvolution | InnerProduct
    )  # no other operation has a bias
    return (op.dst_role.dims[1],)


def _with_descs(op: Operation, descs: dict[str, Any]) -> Operation:
    """Return the operation with these descriptors, validated again."""
    if isinstance(op, Sources):
        descs["srcs"] = tuple(descs.pop(f"src{i}") for i in range(len(op.srcs)))
    return replace(op, **descs)


# -- attributes ------------------------------------------------------------------------------------


def _read_attributes(text: str, op: Operation) -> Attributes:
    settings = dict(attributes.DEFAULTS)
    missing = []
    for word in text.split():
        name, _, value = word.partition(":")
        if name == "rnn_data_qparams":  # oneDNN's, with a semicolon at the end
            name, value = "attr-rnn-data-qparams", value.rstrip(";")
        if name not in settings and not name.startswith("attr-"):
            raise Misread("attributes", f"expected one of {', '.join(settings)}; got {name!r}")
        if name not in settings:
            missing.append(name)
        settings[name] = value
    if missing:
        message = f"attributes that dnncore does not have: {', '.join(missing)}"
        raise _Refused(message, map(feature_name, missing))
    return attributes.read(settings, op)
