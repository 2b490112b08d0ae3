"""One problem: an operation, its attributes and what the text says beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dnncore.attributes import Attributes
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem import attributes, options
from dnncore.problem.drivers import driver_of
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DEFAULTS", "Problem"]

DEFAULTS = {**options.COMMON, **attributes.DEFAULTS, "impl": "", "skip-impl": ""}
"""The options of all drivers, and what they are where the text is silent."""


@dataclass(frozen=True)
class Problem:
    """What is to be computed, as one line of text and back: `str(problem)`, `read(text)`.

    impl, skip_impl: name patterns that implementations must match, must not match.
    name: what the shape is called, as in n"resnet_50:conv1*3"; problems may differ in it alone.
    inplace: whether the output is the memory of an input, of the first of the operation's pairs
        whose tensors are alike (`alike`).

    Raises `DescriptorError` where the attributes cannot apply to the operation, where `inplace`
    has no pair, and for words with blanks or quotes, which no text can hold.
    """

    op: Operation
    attr: Attributes = field(default_factory=Attributes)
    impl: str = ""
    skip_impl: str = ""
    name: str = ""
    inplace: bool = False

    def __post_init__(self) -> None:
        if self.inplace and self.alike is None:
            raise DescriptorError("problem: in place needs an input that is like the output")
        self.attr.check(self.op)
        for word in (self.impl, self.skip_impl, self.name):
            if re.search(r'[\s"]', word):
                raise DescriptorError(
                    f"problem: names and patterns are words without blanks or quotes; got {word!r}"
                )

    @property
    def alike(self) -> tuple[str, str] | None:
        """The first input and output that may be one memory, of equal dims, type and format."""
        descs = {row.name: desc for row, desc in self.op.tensors()}
        for source, target in self.op.IN_PLACE:
            if source in descs and target in descs and _may_share(descs[source], descs[target]):
                return source, target
        return None

    def settings(self) -> dict[str, str]:
        """The texts of its options, but for those at their defaults, and of its shape."""
        settings = {**driver_of(type(self.op)).write(self.op), **attributes.write(self.attr)}
        settings |= {"impl": self.impl, "skip-impl": self.skip_impl}
        return settings | ({"inplace": "true"} if self.inplace else {})

    def __str__(self) -> str:
        driver, settings = driver_of(type(self.op)), self.settings()
        defaults = {**driver.defaults, **DEFAULTS}
        texts = {name: settings.get(name, default) for name, default in defaults.items()}
        options = [f"--{name}={text}" for name, text in texts.items() if text != defaults[name]]
        name = f'n"{self.name}"' if self.name else ""
        return " ".join([f"--{driver.name}", *options, settings["shape"] + name])


def _may_share(source: MemoryDesc, target: MemoryDesc) -> bool:
    """Whether the target has, or its implementation may choose, the source's layout."""
    if source.is_any or target.is_any:
        return (source.dims, source.data_type) == (target.dims, target.data_type)
    return source == target
