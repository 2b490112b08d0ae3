"""Which devices are meant by names of engines, kinds of engines or words such as `pocl`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.errors import BackendNotFound, EngineUnavailable
from dnncore.plugins import DeviceStatus, devices, registry

__all__ = ["choose", "describe_device", "devices_of", "engine_kind", "working_devices"]


def devices_of(backend: str, wanted: str = "") -> list[DeviceStatus]:
    """The devices, each once, that a backend has implementations for; `wanted`: see `choose`.

    Raises `BackendNotFound`, or `EngineUnavailable` where there is none.
    """
    registry.discover()
    if backend not in registry.loaded:
        raise BackendNotFound(
            f"unknown backend {backend!r}; available: {', '.join(sorted(registry.loaded))}"
            f"{registry.excuses()}"
        )
    kinds = {kind for kind, _ in registry.loaded[backend].backend.implementations}
    return choose([row for row in working_devices() if engine_kind(row) in kinds], wanted)


def working_devices() -> list[DeviceStatus]:
    """All devices that can be opened, each once: one whose runtime is registered twice is shown
    twice by it.
    """
    rows = [row for row in devices() if row.device]
    distinct = {describe_device(row) or row.name: row for row in reversed(rows)}
    return list(reversed(distinct.values()))


def choose(rows: Sequence[DeviceStatus], wanted: str) -> list[DeviceStatus]:
    """Those that are meant by names or kinds of engines, or by words of a device's description,
    such as `pocl`, between commas; by default all.

    Raises `EngineUnavailable` where a name means none.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    chosen = [row for row in rows if not names or any(_is_meant(name, row) for name in names)]
    missing = [name for name in names if not any(_is_meant(name, row) for row in chosen)]
    if missing or not chosen:
        there = "; ".join(f"{row.name} ({describe_device(row)})" for row in rows) or "none"
        raise EngineUnavailable(
            f"no engine is meant by {', '.join(missing) or 'default'}; there are: {there}"
            f"{registry.excuses()}"
        )
    return chosen


def engine_kind(row: DeviceStatus) -> str:
    """The kind of its engine."""
    return row.name.partition(":")[0]


def describe_device(row: DeviceStatus) -> str:
    """Its name, vendor and version."""
    assert row.device is not None
    return ", ".join(filter(None, (row.device.name, row.device.vendor, row.device.version)))


def _is_meant(name: str, row: DeviceStatus) -> bool:
    if name in (row.name, engine_kind(row)):
        return True
    return ":" not in name and name.lower() in describe_device(row).lower()
