"""A problem: an operation, its attributes and other settings of the text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from dnncore.attributes import Attributes
from dnncore.errors import DescriptorError
from dnncore.knobs import read_knobs
from dnncore.ops import Operation
from dnncore.problem import attributes, options
from dnncore.problem.drivers import driver_of
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DEFAULTS", "Problem"]

DEFAULTS = {**options.COMMON, **attributes.DEFAULTS, "impl": "", "skip-impl": "", "knobs": ""}
"""The options that all drivers have, and their default texts."""


@dataclass(frozen=True)
class Problem:
    """A problem. `str(problem)` writes it as one line of text, and `read(text)` reads it.

    impl: name patterns that implementations must match.
    skip_impl: name patterns that implementations must not match.
    name: the name of the shape, such as n"resnet_50:conv1*3". Problems may differ only in the name.
    inplace: whether the output is the memory of an input. `alike` is the pair.
    knobs: values of parameters of implementations, such as group:128+unroll:4.

    Raises `DescriptorError` if the attributes do not apply to the operation, if `inplace` has no
    pair, if a name or pattern contains blanks or quotes, or if `knobs` cannot be read.
    """

    op: Operation
    attr: Attributes = field(default_factory=Attributes)
    impl: str = ""
    skip_impl: str = ""
    name: str = ""
    inplace: bool = False
    knobs: str = ""

    def __post_init__(self) -> None:
        if self.inplace and self.alike is None:
            raise DescriptorError(
                "problem: in place needs an input with the dims, type and format of the output"
            )
        self.attr.check(self.op)
        read_knobs(self.knobs)
        for word in (self.impl, self.skip_impl, self.name):
            if re.search(r'[\s"]', word):
                raise DescriptorError(
                    f"problem: names and patterns are words without blanks or quotes; got {word!r}"
                )

    @property
    def wishes(self) -> dict[str, Any]:
        """Return the keyword arguments of `PrimitiveDesc` that restrict the implementations."""
        impl, skip_impl = self.impl or None, self.skip_impl or None
        return {"impl": impl, "skip_impl": skip_impl, "knobs": read_knobs(self.knobs)}

    @property
    def alike(self) -> tuple[str, str] | None:
        """Return the first pair of input and output that may share a memory, or None."""
        descs = {row.name: desc for row, desc in self.op.tensors()}
        for source, target in self.op.IN_PLACE:
            if source in descs and target in descs and _may_share(descs[source], descs[target]):
                return source, target
        return None

    def settings(self) -> dict[str, str]:
        """Return the texts of the shape and of options that differ from their defaults."""
        settings = {
            **driver_of(type(self.op)).write(self.op),
            **attributes.write(self.attr, self.op.result_name),
        }
        settings |= {"impl": self.impl, "skip-impl": self.skip_impl, "knobs": self.knobs}
        return settings | ({"inplace": "true"} if self.inplace else {})

    def __str__(self) -> str:
        driver, settings = driver_of(type(self.op)), self.settings()
        defaults = {**driver.defaults, **DEFAULTS}
        texts = {name: settings.get(name, default) for name, default in defaults.items()}
        options = [f"--{name}={text}" for name, text in texts.items() if text != defaults[name]]
        name = f'n"{self.name}"' if self.name else ""
        return " ".join([f"--{driver.name}", *options, settings["shape"] + name])


def _may_share(source: MemoryDesc, target: MemoryDesc) -> bool:
    """Whether the target has the layout of the source, or can get it because it is `any`."""
    if source.is_any or target.is_any:
        return (source.dims, source.data_type) == (target.dims, target.data_type)
    return source == target
