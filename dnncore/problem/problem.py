"""One problem: an operation, its attributes and what the text says beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dnncore.attributes import Attributes
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem import attributes
from dnncore.problem.drivers import driver_of

__all__ = ["DEFAULTS", "Problem"]

DEFAULTS = {**attributes.DEFAULTS, "impl": "", "skip-impl": ""}
"""The options of all drivers, and what they are where the text is silent."""


@dataclass(frozen=True)
class Problem:
    """What is to be computed, as one line of text and back: `str(problem)`, `read(text)`.

    impl, skip_impl: name patterns that implementations must match, must not match.
    name: what the shape is called, as in n"resnet_50:conv1*3"; problems may differ in it alone.

    Raises `DescriptorError` where the attributes cannot apply to the operation, and for words with
    blanks or quotes, which no text can hold.
    """

    op: Operation
    attr: Attributes = field(default_factory=Attributes)
    impl: str = ""
    skip_impl: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        self.attr.check(self.op)
        for word in (self.impl, self.skip_impl, self.name):
            if re.search(r'[\s"]', word):
                raise DescriptorError(
                    f"problem: names and patterns are words without blanks or quotes; got {word!r}"
                )

    def __str__(self) -> str:
        driver = driver_of(type(self.op))
        settings = {**driver.write(self.op), **attributes.write(self.attr)}
        settings |= {"impl": self.impl, "skip-impl": self.skip_impl}
        defaults = {**driver.defaults, **DEFAULTS}
        texts = {name: settings.get(name, default) for name, default in defaults.items()}
        options = [f"--{name}={text}" for name, text in texts.items() if text != defaults[name]]
        name = f'n"{self.name}"' if self.name else ""
        return " ".join([f"--{driver.name}", *options, settings["shape"] + name])
