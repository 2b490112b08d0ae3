"""Launches: rendered kernel texts and their arguments.

Kernels follow two rules:

- All extents are integer arguments. A kernel whose integers are all 0 touches no memory and divides
  by nothing. So it can be launched once when it is built: PoCL generates code at the first launch.
- A value that varies between problems of one class is an argument. A define makes another program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnncore.backend import DescriptorError
from dnncore_opencl.runtime.schema import Schema


@dataclass(frozen=True)
class Source:
    """A kernel text: defines, then snippets of code, then `<template>.cl`.

    The kernel has the name of the template. In the template, `$parameters` stands for the list of
    parameters. options: of the compiler, in addition to those of all programs. target: of NVIDIA's
    PTX, if the text hides instructions that only this target has (`runtime/ptx.py`). is_exact:
    whether the compiler must not contract products and sums of its own accord.
    """

    template: str
    parameters: Schema
    defines: Mapping[str, str | int | float] = field(default_factory=dict)
    snippets: Sequence[str] = ()
    options: tuple[str, ...] = ()
    target: str = ""
    is_exact: bool = False

    @property
    def text(self) -> str:
        """The text that the compiler gets."""
        defines = (f"#define {name} {value}" for name, value in self.defines.items())
        before, after = template(self.template).split("$parameters")
        kernel = f"{before}{self.parameters.text}{after}"
        return "\n".join((*defines, *self.snippets, kernel))


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    arguments: by name; `Arg` and `Scratch` for buffers, numbers for the rest. args: the same in the
    kernel's order. Raises `TypeError` for arguments that the kernel's parameters do not permit.

    Sizes are in work-items. Raises `DescriptorError` unless the global ones are multiples of the
    local ones. work: an upper bound on multiply-adds, given for kernels that are made for GPUs. If
    it is small, a CPU compiles them without optimization (`runtime/build.py`).

    instead: a launch with the same result, for drivers that cannot build this one.
    """

    source: Source
    arguments: Mapping[str, Any]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    work: float = math.inf
    instead: Launch | None = None
    args: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = zip(self.global_size, self.local_size, strict=True)
        if not all(size and size % local == 0 for size, local in sizes):
            raise DescriptorError(
                f"opencl: global sizes of {self.kernel} must be multiples of {self.local_size}, and"
                f" above 0; got {self.global_size}"
            )
        args = self.source.parameters.arguments(self.kernel, self.arguments)
        object.__setattr__(self, "args", args)

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.source.template


def padded(size: int, local: int) -> int:
    """Round a number of work-items up to whole work-groups."""
    return math.ceil(size / local) * local


@functools.cache
def template(name: str) -> str:
    """Return the text of `<name>.cl`, which is in the folder of the module that launches it."""
    return _templates()[name].read_text(encoding="utf-8")


@functools.cache
def _templates() -> dict[str, Path]:
    """Return the path of each kernel text of this backend; no two have one name."""
    paths = list(Path(__file__).parents[1].rglob("*.cl"))
    found = {path.stem: path for path in paths}
    assert len(found) == len(paths), sorted(path.name for path in paths)
    return found
