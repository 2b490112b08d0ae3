"""Saved calls: a problem, its implementation, and the values of its inputs, in one file.

The file is an archive of numpy (`.npz`) with one array per input and a text, `call`, in JSON:
problem, engine, src_engine, implementation, and the name of what it was compared with. Types that
numpy lacks are stored as bytes.
"""

from __future__ import annotations

import glob
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.crosschecking.call import Call
from dnncore.crosschecking.hidden import has_private_workspace
from dnncore.errors import DescriptorError, NoImplementation
from dnncore.problem import Problem, read
from dnncore.selection.host_fallback import PREFIX
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["SavedCall", "is_savable", "load", "problem_of", "saved_files"]

Array = np.ndarray[Any, Any]

ABOUT = "call"
"""The name of the text in the file."""


@dataclass(frozen=True)
class SavedCall:
    """A call that can be repeated. Opaque formats are `any` in the problem.

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
    def of(cls, call: Call, compared_with: str) -> SavedCall:
        """Return a call of the program as a saved one, with copies of its inputs."""
        pd = call.pd
        inputs = {name: np.array(values) for name, values in call.inputs.items()}
        return cls(
            str(problem_of(call)), pd.engine.name, pd.src_engine.name, pd.impl_name,
            compared_with, inputs,
        )  # fmt: skip

    @property
    def parsed(self) -> Problem:
        """The problem. Raises `DescriptorError` if its text is not that of one problem."""
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
            "impl": glob.escape(self.implementation), "skip_impl": "", "host_fallback": is_host,
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
        """The call, without outputs. Raises `DescriptorError` if an input does not fit."""
        problem = self.parsed
        old = problem.op.result_name if problem.attr.reads_dst else None
        inputs: dict[str, Array] = {}
        for argument, desc in pd.arguments:
            if argument.direction == "in" or argument.name == old:
                inputs[argument.name] = self._input(argument.name, desc)
        alias = problem.alike if problem.inplace else None
        return Call(0, pd, {}, inputs, alias=alias)

    def save(self, path: Path) -> None:
        """Write the file; its folder is made. Raises `OSError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {name: value for name, value in asdict(self).items() if name != "inputs"}
        arrays: dict[str, Any] = {name: _storable(array) for name, array in self.inputs.items()}
        arrays[ABOUT] = np.array(json.dumps(about))
        np.savez_compressed(path, **arrays)

    def _input(self, name: str, desc: MemoryDesc) -> Array:
        values = self.inputs.get(name)
        if values is None:
            raise DescriptorError(f"saved call: there are no values of {name}; record it again")
        if values.dtype.kind == "V" and values.dtype.itemsize == desc.itemsize:
            values = values.view(desc.dtype)
        if values.shape != desc.dims or values.dtype != desc.dtype:
            raise DescriptorError(
                f"saved call: {name} must be {desc.data_type} of {desc.dims}; got {values.dtype} of"
                f" {values.shape}; the problem and the inputs do not belong together"
            )
        return values


def problem_of(call: Call) -> Problem:
    """The call's problem, with `any` in place of opaque formats, which have no text."""
    pd = call.pd
    op = pd.op.with_each(lambda desc: desc.with_format("any") if _is_opaque(desc) else desc)
    alias = call.alias
    problem = Problem(op, pd.attr, impl=pd.impl_name)
    return replace(problem, inplace=alias is not None and problem.alike == alias)


def load(path: Path) -> SavedCall:
    """Read a file. Raises `DescriptorError` if it is not one of a saved call."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop(ABOUT)[()]))
        return SavedCall(**about, inputs=arrays)
    except OSError as error:
        raise DescriptorError(f"saved call: {path} cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError, EOFError, AttributeError,
            zipfile.BadZipFile) as error:  # fmt: skip
        raise DescriptorError(
            f"saved call: {path} must be a file that a cross-check has written; {error}"
        ) from error


def saved_files(folder: Path) -> Iterator[Path]:
    """The files of saved calls in a folder and in the folders within it, in order."""
    if not folder.is_dir():
        raise DescriptorError(f"saved calls: there is no folder {folder}; make it first")
    yield from sorted(folder.rglob("*.npz"))


def is_savable(call: Call) -> bool:
    """Whether the inputs determine the call: a private workspace has no values."""
    reads_workspace = "workspace" in call.inputs
    return not (reads_workspace and has_private_workspace(call.pd))


def _storable(array: Array) -> Array:
    """The array, or its bytes if numpy lacks its type."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")


def _is_opaque(desc: MemoryDesc) -> bool:
    return desc.format_kind == "opaque"
