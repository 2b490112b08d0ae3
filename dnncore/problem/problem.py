"""One problem: an operation, its attributes and what the text says beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dnncore.attributes import Attributes
from dnncore.ops import Operation
from dnncore.problem import attributes
from dnncore.problem.drivers import driver_of

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """What is to be computed, as one line of text and back: `str(problem)`, `read(text)`.

    impl, skip_impl: name patterns that implementations must match, must not match.
    name: what the shape is called, as in n"resnet_50:conv1"; two problems may differ in it alone.
    """

    op: Operation
    attr: Attributes = field(default_factory=Attributes)
    impl: str = ""
    skip_impl: str = ""
    name: str = ""

    def __str__(self) -> str:
        driver = driver_of(type(self.op))
        settings = {**driver.write(self.op), **attributes.write(self.attr)}
        settings |= {"impl": self.impl, "skip-impl": self.skip_impl}
        shape = settings.pop("shape")
        defaults = {**driver.defaults, **attributes.DEFAULTS, "impl": "", "skip-impl": ""}
        options = [f"--{name}={text}" for name, text in settings.items() if text != defaults[name]]
        name = f'n"{self.name}"' if self.name else ""
        return " ".join([f"--{driver.name}", *options, shape + name])
