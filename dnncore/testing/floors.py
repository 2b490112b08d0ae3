"""Floors: the least numbers of cases that a run must execute, for each backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dnncore.errors import DescriptorError

__all__ = ["Floors"]


@dataclass(frozen=True)
class Floors:
    """The floors of a text such as "30" or "cpu_numba:300,opencl:30".

    common: the floor of each backend without its own floor; None means the floor of the size.
    own: the floors of backends by name. These backends must take part in the run.
    """

    common: int | None = None
    own: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Floors:
        """Read a text; "" sets no floor. Raises `DescriptorError` if it is invalid."""
        numbers = dict(_part(text, part) for part in text.split(",") if text)
        common = numbers.pop("", None)
        return cls(common, numbers)

    def of(self, backend: str, default: int) -> int:
        """Return the floor of a backend; `default` if the text has none."""
        common = default if self.common is None else self.common
        return self.own.get(backend, common)

    def missing(self, executed: dict[str, int], defaults: dict[str, int]) -> Iterator[str]:
        """Yield a line for each backend below its floor.

        executed: the number of executed cases of each backend.
        defaults: the floors of backends for which the text has none.
        """
        for backend in dict.fromkeys([*executed, *defaults, *self.own]):
            count, floor = executed.get(backend, 0), self.of(backend, defaults.get(backend, 1))
            if count < floor:
                yield f"{backend}: {count} cases were executed, fewer than the floor of {floor}"


def _part(text: str, part: str) -> tuple[str, int]:
    name, colon, number = part.strip().rpartition(":")
    if not number.isdecimal() or bool(colon) != bool(name):
        raise DescriptorError(
            f"--dnncore-floor: expected N or BACKEND:N, separated by commas; got {text!r}"
        )
    return name, int(number)
