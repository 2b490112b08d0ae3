"""Saved calls: a problem, its implementation, and the values of its inputs, in one file.

The file is an archive of numpy (`.npz`) with one array per input and a text, `call`, in JSON:
problem, engine, src_engine, implementation, and the name with which it was compared. Types that
numpy lacks are stored as bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.crosschecking.call import Call
from dnncore.errors import DescriptorError, NoImplementation, describe
from dnncore.interrupts import pass_on
from dnncore.knobs import write_knobs
from dnncore.problem import Problem, read
from dnncore.selection.host_fallback import PREFIX
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.datatypes import from_numpy_dtype, numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["SavedCall", "load", "problem_of", "read_arrays", "saved_files", "write_arrays"]

Array = np.ndarray[Any, Any]

ABOUT = "call"
"""The name of the text in the file."""


@dataclass(frozen=True)
class SavedCall:
    """A call that can be repeated. Opaque formats are `any` in the problem.

    implementation: name patterns, usually one name.
    compared_with: the name that was passed to `crosscheck`.
    inputs: by argument name, with logical dims.
    """

    problem: str
    engine: str
    src_engine: str
    implementation: str
    compared_with: str
    inputs: dict[str, Array] = field(repr=False)

    @classmethod
    def of(cls, call: Call, pd: PrimitiveDesc, compared_with: str) -> SavedCall:
        """Return a call of the program, to be repeated by `pd`, with copies of its inputs."""
        inputs = {name: np.array(values) for name, values in call.inputs.items()}
        return cls(
            str(problem_of(pd, call.alias)), pd.engine.name, pd.src_engine.name, pd.impl_name,
            compared_with, inputs,
        )  # fmt: skip

    def on(self, engine: str) -> SavedCall:
        """Return the same call on another engine; the call itself if this is its engine."""
        if engine == self.engine:
            return self
        return replace(self, engine=engine, src_engine=engine)

    @property
    def parsed(self) -> Problem:
        """The problem. Raises `DescriptorError` if the text is not one problem."""
        if "--batch" in self.problem or "--from-verbose" in self.problem:
            raise DescriptorError("saved call: a problem must not name a file; record it again")
        problems = list(read(self.problem))
        if len(problems) != 1:
            raise DescriptorError(f"saved call: expected one problem; got {self.problem!r}")
        return problems[0]

    def descriptors(self) -> list[PrimitiveDesc]:
        """The implementations that the call names, best first. Raises `NoImplementation`."""
        problem, engine = self.parsed, open_engine(self.engine)
        is_host = self.implementation.startswith(PREFIX)
        crosses = self.src_engine != self.engine
        wishes: dict[str, Any] = {
            **problem.wishes, "impl": self.implementation, "skip_impl": "",
            "host_fallback": is_host,
            "src_engine": open_engine(self.src_engine) if crosses else None,
        }  # fmt: skip
        found = list(primitive_descs(problem.op, engine, problem.attr, **wishes))
        if not found:
            raise NoImplementation(
                f"saved call: {self.implementation} does not accept {self.problem} on"
                f" {self.engine}; is its backend installed? register it with --plugin=MODULE"
            )
        return found

    def call(self, pd: PrimitiveDesc) -> Call:
        """Return the call without outputs. Raises `DescriptorError` if an input does not fit."""
        problem = self.parsed
        old = problem.op.result_name if problem.attr.reads_dst else None
        inputs: dict[str, Array] = {}
        for argument, desc in pd.arguments:
            if argument.direction == "in" or argument.name == old:
                inputs[argument.name] = self._input(argument.name, desc)
        alias = problem.alike if problem.inplace else None
        return Call(0, pd, {}, inputs, alias=alias)

    def save(self, path: Path) -> None:
        """Write the file; its folder is created. Raises `OSError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {name: getattr(self, name) for name in self.__dataclass_fields__}
        write_arrays(path, about, about.pop("inputs"))

    def _input(self, name: str, desc: MemoryDesc) -> Array:
        values = self.inputs.get(name)
        if values is None:
            raise DescriptorError(f"saved call: there are no values of {name}; record it again")
        if values.shape != desc.dims or values.dtype != desc.dtype:
            raise DescriptorError(
                f"saved call: {name} must be {desc.data_type} of {desc.dims}; got {values.dtype} of"
                f" {values.shape}; the problem and the inputs do not belong together"
            )
        return values


def problem_of(pd: PrimitiveDesc, alias: tuple[str, str] | None = None) -> Problem:
    """The problem, with `any` in place of opaque formats, which have no text.

    alias: the input and the output in one memory, or None.
    """
    op = pd.op.with_each(lambda desc: desc.with_format("any") if _is_opaque(desc) else desc)
    problem = Problem(op, pd.attr, impl=pd.impl_name, knobs=write_knobs(pd.requested_knobs))
    return replace(problem, inplace=alias is not None and problem.alike == alias)


def load(path: Path) -> SavedCall:
    """Read a file. Raises `DescriptorError` if it does not contain a saved call."""
    try:
        about, inputs = read_arrays(path)
        if not all(isinstance(text, str) for text in about.values()):
            raise TypeError(f"texts expected; got {about}")
        return SavedCall(**about, inputs=inputs)
    except FileNotFoundError:
        raise DescriptorError(f"saved call: there is no file {path}") from None
    except Exception as error:  # a damaged file may raise anything
        pass_on(error)
        raise DescriptorError(
            f"saved call: {path} must be a file that a cross-check has written; got"
            f" {describe(error)}"
        ) from error


def write_arrays(
    path: Path, about: Mapping[str, Any], arrays: Mapping[str, Array], *, compressed: bool = True
) -> None:
    """Write named arrays and a text about them as one file."""
    types = {name: from_numpy_dtype(array.dtype) for name, array in arrays.items()}
    stored: dict[str, Any] = {name: _storable(array) for name, array in arrays.items()}
    stored[ABOUT] = np.array(json.dumps({**about, "types": types}))
    (np.savez_compressed if compressed else np.savez)(path, **stored)


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what `write_arrays` wrote. A damaged file raises any exception."""
    content = io.BytesIO(path.read_bytes())  # numpy does not close damaged files
    with np.load(content, allow_pickle=False) as archive:
        stored = {name: archive[name] for name in archive.files}
    about = json.loads(str(stored.pop(ABOUT)[()]))
    types = about.pop("types")
    arrays = {name: array.view(numpy_dtype(types[name])) for name, array in stored.items()}
    return about, arrays


def saved_files(folder: Path) -> Iterator[Path]:
    """The files of saved calls in a folder and in the folders within it, in order."""
    if not folder.is_dir():
        raise DescriptorError(f"saved calls: there is no folder {folder}; make it first")
    yield from sorted(folder.rglob("*.npz"))


def _storable(array: Array) -> Array:
    """The array, or its bytes if numpy lacks its type."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")


def _is_opaque(desc: MemoryDesc) -> bool:
    return desc.format_kind == "opaque"
