"""Names of engines: an engine kind, a type of device or words of a description.

    cpu, opencl, opencl:1        an engine kind, and an index among its devices
    gpu, gpu:1                   a type of device, of any engine kind
    opencl:nvidia h200, gpu:amd  words of the description of a device of this kind or type
    nvidia, pocl                 words of the description of any device

Case is ignored. A description contains the device's type, name, vendor and version; each word must
be a whole word of the description. A number after the colon is always an index. If a name has
several meanings, the first in this list is used. If it means several devices, the first in the
order of `dnncore devices` is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from dnncore.engines.device import DEVICE_TYPES, Device
from dnncore.errors import BackendNotFound, DnnError, EngineUnavailable

__all__ = ["DeviceStatus", "Status", "matching", "no_match"]

Status = Literal["ok", "unavailable", "failed", "blocked"]


@dataclass(frozen=True)
class DeviceStatus:
    """One row of `dnncore devices`. `dnncore.engine` accepts `name`."""

    name: str
    status: Status
    reason: str = ""
    device: Device | None = None

    @property
    def kind(self) -> str:
        """The engine kind."""
        return self.name.partition(":")[0]

    @property
    def index(self) -> int:
        """The device's index among the devices of its kind."""
        return int(self.name.partition(":")[2] or 0)

    @property
    def type(self) -> str:
        """The device's type; "" if there is no device."""
        return self.device.type if self.device else ""

    @property
    def description(self) -> str:
        """The device's type, name, vendor and version; "" if there is no device."""
        if self.device is None:
            return ""
        parts = (self.device.type, self.device.name, self.device.vendor, self.device.version)
        return ", ".join(filter(None, parts))


def matching(name: str, rows: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    """Return the rows with devices that `name` means, in their order.

    rows: all or none of the devices of each engine kind, because an index counts these devices.
    """
    rows = [row for row in rows if row.device]
    head, colon, tail = _parts(name)
    candidates = _of_kind_or_type(head, rows)
    if not candidates:
        return [] if colon else _described(head, rows)
    if not colon:
        return candidates
    if tail.isdecimal():
        place = tail.lstrip("0") or "0"
        return [row for i, row in enumerate(candidates) if str(i) == place]
    return _described(tail, candidates)


def no_match(
    name: str, rows: Sequence[DeviceStatus], there: str, backends: Collection[str] = ()
) -> DnnError:
    """Return the error for a name that means none of these rows. `there` lists all devices.

    `EngineUnavailable` for a kind or type without such a device, else `BackendNotFound`.
    """
    head, _, tail = _parts(name)
    count = len(_of_kind_or_type(head, [row for row in rows if row.device]))
    if not count and head in backends:
        return BackendNotFound(
            f"unknown engine {name!r}, which is a backend; {there}; use one of these names, and"
            f" impl='{head}:*' or DNNCORE_IMPL={head}:* for the backend's implementations"
        )
    if not count and head not in DEVICE_TYPES:
        return BackendNotFound(
            f"unknown engine {name!r}; {there}; use one of these names, a type such as 'gpu', or"
            " words of a description such as 'opencl:nvidia'"
        )
    if not count:
        return EngineUnavailable(
            f"engine {name!r}: there is no device of type {head!r}; {there}; install the driver of"
            " such a device, or use one of these names"
        )
    if tail.isdecimal():
        return EngineUnavailable(
            f"engine {name!r}: indices begin with 0, and the number of {head!r} devices is {count};"
            f" {there}"
        )
    if _has_letters(tail):
        return EngineUnavailable(
            f"engine {name!r}: no {head!r} device has all of these words in its description;"
            f" {there}; use one of these names"
        )
    return BackendNotFound(
        f"engine {name!r}: write kind, kind:index or kind:words, as in 'opencl:1' or"
        f" 'opencl:nvidia'; {there}"
    )


def _parts(name: str) -> tuple[str, str, str]:
    head, colon, tail = name.casefold().partition(":")
    return head.strip(), colon, tail.strip()


def _of_kind_or_type(head: str, rows: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    of_kind = [row for row in rows if row.kind.casefold() == head]
    return of_kind or [row for row in rows if row.type and row.type.casefold() == head]


def _described(words: str, rows: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    """Return the rows whose description contains each word; one word must contain a letter."""
    if not _has_letters(words):
        return []
    wanted = [re.compile(rf"(?<!\w){re.escape(word)}(?!\w)") for word in words.split()]
    return [row for row in rows if all(w.search(row.description.casefold()) for w in wanted)]


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text)
