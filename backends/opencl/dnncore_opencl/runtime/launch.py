"""Launches: rendered kernel sources and their arguments.

Kernels follow two rules:

- All extents are integer arguments. If all integers are 0, a kernel accesses no memory and divides
  by nothing. So it can be launched once when it is built: PoCL generates code at the first launch.
- A value that differs between problems of one class is an argument. A define would need another
  program for each value.
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
    """A kernel source: defines, then snippets of code, then `<template>.cl`.

    The kernel has the name of the template. In the template, `$parameters` stands for the list of
    parameters. options: compiler options in addition to those of all programs. target: NVIDIA's
    PTX target, if the source contains hidden instructions of that target (`runtime/ptx.py`).
    is_exact: whether the compiler must not contract products and sums.
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
        """The source that the compiler reads."""
        defines = (f"#define {name} {value}" for name, value in self.defines.items())
        before, after = template(self.template).split("$parameters")
        kernel = f"{before}{self.parameters.text}{after}"
        return "\n".join((*defines, *self.snippets, kernel))


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    arguments: by name; `Arg` and `Scratch` for buffers, numbers for the rest. args: the arguments
    in the kernel's order. Raises `TypeError` for arguments that do not match the kernel's
    parameters.

    Sizes are in work-items. Raises `DescriptorError` unless the global sizes are multiples of the
    local sizes. work: an upper bound of the multiply-adds, given for GPU kernels. If it is small, a
    CPU compiles the kernel without optimization (`runtime/build.py`).

    instead: a launch with the same result, for drivers that cannot build this one.

    is_persistent: whether work-groups wait for each other. All of them must be able to run at once.
    Two such launches never run at once (`runtime/turns.py`).
    """

    source: Source
    arguments: Mapping[str, Any]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    work: float = math.inf
    instead: Launch | None = None
    is_persistent: bool = False
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
    """Return the path of each kernel text of this backend. Names are unique."""
    paths = list(Path(__file__).parents[1].rglob("*.cl"))
    found = {path.stem: path for path in paths}
    assert len(found) == len(paths), sorted(path.name for path in paths)
    return found
