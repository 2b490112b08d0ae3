"""The devices that a list of names means; see `dnncore.selection.device_names`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from dnncore.errors import BackendNotFound, EngineUnavailable
from dnncore.selection.plugins import DeviceStatus, devices, registry

__all__ = ["choose", "claimed_devices", "devices_of", "names_for_claims"]


def devices_of(backend: str, wanted: str = "") -> list[DeviceStatus]:
    """Return the devices for which a backend has implementations; `wanted`: see `choose`.

    Each device is listed once. Raises `BackendNotFound`, and `EngineUnavailable` if there is none.
    """
    registry.discover()
    if backend not in registry.loaded:
        raise BackendNotFound(
            f"unknown backend {backend!r}; available: {', '.join(sorted(registry.loaded))}"
            f"{registry.excuses()}"
        )
    return choose(wanted, {kind for kind, _ in registry.loaded[backend].backend.implementations})


def choose(wanted: str, kinds: Collection[str] | None = None) -> list[DeviceStatus]:
    """Return all devices that these names mean, in the order of `dnncore devices`.

    wanted: names separated by commas; "" for all devices.
    kinds: the engine kinds to choose from, by default all.

    Of devices with equal descriptions, a name means only the first, because a runtime that is
    registered twice lists its devices twice.

    Raises the errors of `dnncore.engine`, and `EngineUnavailable` if a name means no device of
    these kinds.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    rows = devices()
    chosen: list[DeviceStatus] = []
    for name, meant in {n: registry.meant(n) for n in names}.items() if names else [("", rows)]:
        found = [row for row in meant if row.device and (kinds is None or row.kind in kinds)]
        if not found:
            raise EngineUnavailable(
                f"engine {name or 'default'}: there is no such device of kind"
                f" {' or '.join(sorted(kinds or ()))}; {registry.listing()}"
            )
        chosen += _distinct(found)
    return [row for row in rows if row in chosen]


def claimed_devices(backend: str, name: str) -> list[str]:
    """Return the devices that the name in a claim means; none if this machine lacks them.

    Raises `EngineUnavailable` if the backend itself provides these engines and has no device.
    """
    try:
        return [row.name for row in choose(name)]
    except (BackendNotFound, EngineUnavailable):
        kind = name.partition(":")[0].strip()
        is_own = kind in registry.loaded[backend].backend.engines
        if is_own and not any(row.device for row in devices() if row.kind == kind):
            raise
        return []


def names_for_claims(rows: Sequence[DeviceStatus], wanted: str = "") -> dict[str, str]:
    """Return the name of each device in claims: the first of `wanted` that means it.

    Without `wanted`, this is the engine kind, or "" if the kind has several devices.
    """
    counts = Counter(row.kind for row in rows)
    names = {row.name: row.kind if counts[row.kind] == 1 else "" for row in rows}
    for name in reversed([name.strip() for name in wanted.split(",") if name.strip()]):
        names |= {row.name: name for row in registry.meant(name) if row.name in names}
    return names


def _distinct(rows: Iterable[DeviceStatus]) -> list[DeviceStatus]:
    """Return the first device of each description."""
    first: dict[str, DeviceStatus] = {}
    for row in rows:
        first.setdefault(row.description, row)
    return list(first.values())
