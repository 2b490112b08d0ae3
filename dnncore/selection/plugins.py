"""Plugins: discovery, validation, isolation of failures, and opening of engines."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pluggy

from dnncore import hookspecs
from dnncore.backend import Backend, Implementation
from dnncore.cache import MemoryCache, primitives
from dnncore.engines.engine import CpuEngine, Engine
from dnncore.environment import warn_of_misspelled
from dnncore.errors import (
    BackendNotFound,
    DnnError,
    EngineUnavailable,
    PluginError,
    PluginWarning,
    describe,
    shortened,
)
from dnncore.forking import PLUGINS, hold_at_fork
from dnncore.interrupts import pass_on, uninterrupted
from dnncore.ops import Operation
from dnncore.selection import answers
from dnncore.selection.device_names import DeviceStatus, Status, matching, no_match

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BackendStatus",
    "DeviceStatus",
    "backends",
    "devices",
    "engine",
    "register",
    "registry",
    "unregister",
    "warn_of_unknown",
]

GROUP = "dnncore.backends"
WILD = set("*?[")  # characters of patterns of names
MOST_REASONS = 1000  # characters of the reasons of one backend


@dataclass(frozen=True)
class BackendStatus:
    """One row of `dnncore backends`: a backend of a plugin, or the plugin if it failed to load."""

    name: str
    status: Status
    reason: str = ""
    version: str = ""
    distribution: str = ""


@dataclass
class _Loaded:
    """A validated backend and its origin."""

    backend: Backend
    status: BackendStatus
    plugin: object


class Registry:
    """Everything that plugins provide: backends by name, engines by kind, tables by kind and
    operation.

    `generation` changes when the set of backends changes, so that selections can be cached.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.failures: dict[str, BackendStatus] = {}
        self.loaded: dict[str, _Loaded] = {}
        self._objects: dict[str, Any] = {}
        self._tables: dict[tuple[str, type], list[tuple[Backend, Implementation[Any]]]] = {}
        self._engines: MemoryCache[Engine] = MemoryCache(sys.maxsize)  # by kind, index, losses
        self._losses: dict[tuple[str, int], int] = {}  # number of lost engines, by kind and index
        self._names: dict[str, tuple[str, int]] = {}
        self._discovered = False
        self._is_discovering = False
        self._known: set[tuple[str, str]] = set()  # entry points that were loaded or failed to load
        self._lock = threading.RLock()
        hold_at_fork(self._lock, PLUGINS)
        self._manager = pluggy.PluginManager("dnncore")
        self._manager.add_hookspecs(hookspecs)

    # -- loading ------------------------------------------------------------------------------

    def discover(self) -> None:
        """Load the plugins of all installed distributions, once."""
        if not self._discovered:
            uninterrupted(self._discover)

    def _discover(self) -> None:
        with self._lock:
            if self._discovered or self._is_discovering:  # a plugin may call dnncore
                return
            self._is_discovering = True
            try:
                from importlib.metadata import entry_points  # a third of `import dnncore`'s time

                entries = sorted(entry_points(group=GROUP), key=_by_name)
                for entry in entries:
                    self._load_entry(entry)
                self._discovered = True
            finally:
                self._is_discovering = False
        warn_of_misspelled()
        names = [entry.name for entry in entries]
        distributions = {entry.dist.name for entry in entries if entry.dist}
        for variable in ("DNNCORE_BACKENDS", "DNNCORE_DISABLE_BACKENDS"):
            warn_of_unknown(variable, names, sorted(distributions))

    def _load_entry(self, entry: EntryPoint) -> None:
        """Load a plugin, unless it was loaded before another plugin ended the discovery by an
        error.
        """
        key = entry.name, entry.value
        if key not in self._known:
            self._load_new_entry(entry)
            self._known.add(key)

    def _load_new_entry(self, entry: EntryPoint) -> None:
        origin = BackendStatus(
            entry.name,
            "ok",
            version=entry.dist.version if entry.dist else "",
            distribution=entry.dist.name if entry.dist else "",
        )
        blocked = _blocked({origin.name, origin.distribution})
        if blocked:
            row = self._row_of(origin)
            self.failures[row] = replace(origin, name=row, status="blocked", reason=blocked)
            return
        try:
            self.add(answers.guarded(entry.load), origin)
        except Exception as error:  # one broken plugin must not stop another
            self._fail(origin, error)

    def add(self, plugin: object, origin: BackendStatus) -> list[Backend]:
        """Register one plugin. If this fails, none of its backends is registered."""
        with self._lock:
            if self._manager.is_registered(plugin):
                raise PluginError(
                    f"plugin {origin.name!r} must be new; it is registered; unregister it first"
                )
            try:
                found = answers.guarded(self._ask, plugin, origin)
                for backend in found:
                    self._check_new(backend, origin)
            except BaseException:
                if self._manager.is_registered(plugin):
                    self._manager.unregister(plugin)
                raise
            for backend in found:
                status = replace(origin, name=backend.name)
                self.loaded[backend.name] = _Loaded(backend, status, plugin)
                self.failures.pop(backend.name, None)
            self._changed()
            return found

    def _ask(self, plugin: object, origin: BackendStatus) -> list[Backend]:
        """Call only this plugin's hook."""
        self._manager.register(plugin, name=f"{origin.name}@{id(plugin)}")
        self._manager.check_pending()
        if not self._manager.get_hookcallers(plugin):
            raise PluginError(
                f"plugin {origin.name!r} must implement the hook dnncore_backends; it has no hook;"
                " mark a function of this name with dnncore.backend.hookimpl"
            )
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        hook = self._manager.subset_hook_caller("dnncore_backends", others)
        return answers.backends_of(hook(), origin.name)

    def remove(self, plugin: object) -> None:
        """Forget a plugin and its backends."""
        with self._lock:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            gone = [name for name, loaded in self.loaded.items() if loaded.plugin is plugin]
            kinds: set[str] = set()
            for name in gone:
                backend = self.loaded.pop(name).backend
                kinds.update(backend.engines)
                for path in (*backend.engines.values(), *backend.implementations.values()):
                    self._objects.pop(path, None)  # another module may have this name later
                self.failures.pop(name, None)
            self._engines.forget(lambda place: place[0] in kinds)
            self._changed()

    def _check_new(self, backend: Backend, origin: BackendStatus) -> None:
        """Raise `PluginError` if another plugin provides the backend, its engines or its role."""
        names = {name.casefold(): loaded for name, loaded in self.loaded.items()}
        other = names.get(backend.name.casefold())
        if other is not None:
            first, second = other.status.distribution, origin.distribution
            remedy = "rename one of them"
            if first and second:
                remedy = (
                    f"uninstall or block one of them, as DNNCORE_DISABLE_BACKENDS={second} does"
                )
            raise PluginError(
                f"backend {backend.name!r} is provided by {first or 'a plugin'} and by"
                f" {second or 'another plugin'}; {remedy}"
            )
        for kind in backend.engines:
            owners = {k.casefold(): b.name for b in self._backends() for k in b.engines}
            owner = {CpuEngine.kind: "the core", **owners}.get(kind.casefold())
            if owner is not None:
                raise PluginError(
                    f"backend {backend.name!r}: engine kind {kind!r} must be new; it belongs to"
                    f" {owner}; use another name"
                )
        owner = next((b.name for b in self._backends() if b.role and b.role == backend.role), None)
        if owner is not None:
            raise PluginError(
                f"backend {backend.name!r}: role {backend.role!r} must be new; it belongs to"
                f" {owner}; omit the role"
            )

    def _fail(self, origin: BackendStatus, error: BaseException) -> None:
        missing = isinstance(error, ImportError | EngineUnavailable)
        status: Status = "unavailable" if missing else "failed"
        row = self._row_of(origin)
        before = self.failures.get(row)
        reason = describe(error)
        if before is not None and before.status == "failed":
            known = reason in before.reason or before.reason in reason
            if known or len(before.reason) > MOST_REASONS:
                return
            status, reason = "failed", f"{before.reason}; {reason}"
        self.failures[row] = replace(origin, name=row, status=status, reason=reason)
        if not missing:
            text = f"backend {origin.name!r}: {describe(error)}"
            warnings.warn(text, PluginWarning, stacklevel=1)

    def _row_of(self, origin: BackendStatus) -> str:
        """Return a failure's row name: the distribution's if another one has the backend."""
        owner = self.loaded.get(origin.name)
        is_taken = owner is not None and owner.status.distribution != origin.distribution
        return origin.distribution if is_taken and origin.distribution else origin.name

    def fail(self, backend: str, reason: str) -> None:
        """Report a fault of a backend in `dnncore backends` and, once, as a `PluginWarning`."""
        if backend in self.loaded:
            self._fail(self.loaded[backend].status, PluginError(reason))

    def _changed(self) -> None:
        self.generation += 1
        self._tables.clear()
        self._names.clear()
        primitives.clear()  # a new backend may have the name of a removed one

    # -- looking up ---------------------------------------------------------------------------

    def _backends(self) -> list[Backend]:
        return [loaded.backend for loaded in self.loaded.values()]

    def with_role(self, role: str) -> Backend | None:
        """Return the backend with this role, or None."""
        self.discover()
        return next((b for b in self._backends() if b.role == role), None)

    def implementations(
        self, kind: str, operation: type[Operation]
    ) -> list[tuple[Backend, Implementation[Any]]]:
        """Return all implementations of `operation` on engines of this kind."""
        self.discover()
        key = (kind, operation)
        table = self._tables.get(key)
        return uninterrupted(self._import_tables, key) if table is None else table

    def _import_tables(
        self, key: tuple[str, type[Operation]]
    ) -> list[tuple[Backend, Implementation[Any]]]:
        with self._lock:
            table = [
                (backend, implementation)
                for backend in self._backends()
                for implementation in self._table(backend, key)
            ]
            self._tables[key] = table
        return table

    def _table(
        self, backend: Backend, key: tuple[str, type[Operation]]
    ) -> list[Implementation[Any]]:
        path = backend.implementations.get(key)
        if path is None:
            return []
        try:
            table = self.load(path)
            found, faults = answers.implementations_of(table, backend.name, path)
        except Exception as error:  # a backend that cannot be imported has no implementations
            self._fail(self.loaded[backend.name].status, error)
            return []
        for fault in faults:
            self.fail(backend.name, fault)
        return found

    def array_kinds(self) -> dict[str, str]:
        """Return the paths of array kinds, by the classes of arrays that backends support."""
        self.discover()
        return {
            theirs: ours
            for backend in self._backends()
            for theirs, ours in backend.array_kinds.items()
        }

    def load(self, path: str) -> Any:
        """Import the object named "module:attribute", once."""
        if path not in self._objects:
            uninterrupted(self._import, path)
        return self._objects[path]

    def _import(self, path: str) -> None:
        module, _, attribute = path.partition(":")
        with self._lock:
            imported = answers.guarded(importlib.import_module, module)
            self._objects[path] = answers.guarded(getattr, imported, attribute)

    def engine_class(self, kind: str) -> type[Engine]:
        """Return the class of an engine kind; raises `BackendNotFound` or `EngineUnavailable`."""
        if kind == CpuEngine.kind:
            return CpuEngine
        self.discover()
        for backend in self._backends():
            if kind in backend.engines:
                try:
                    return answers.engine_class(self.load(backend.engines[kind]), kind)
                except Exception as error:
                    pass_on(error)
                    self._fail(self.loaded[backend.name].status, error)
                    raise EngineUnavailable(
                        f"engine {kind!r}: backend {backend.name!r} cannot be loaded:"
                        f" {describe(error)}"
                    ) from error
        raise BackendNotFound(
            f"unknown engine kind {kind!r}; available: {', '.join(self.kinds())}{self.excuses()}"
        )

    def kinds(self) -> Iterator[str]:
        """Yield all engine kinds. `cpu` comes first, before the plugins are loaded."""
        yield CpuEngine.kind
        self.discover()
        for backend in self._backends():
            yield from backend.engines

    def failures_of(
        self, kinds: Collection[str], operation: type[Operation]
    ) -> list[BackendStatus]:
        """Return the failed backends that compute, or may compute, this on engines of these kinds.

        The contents of a plugin that could not be loaded are unknown.
        """
        keys = {(kind, operation) for kind in kinds}
        return [
            row
            for name, row in tuple(self.failures.items())
            if name not in self.loaded or keys & self.loaded[name].backend.implementations.keys()
        ]

    def excuses(self, kinds: Collection[str] = (), operation: type[Operation] = Operation) -> str:
        """List `failures_of` with the reasons, for the end of a message.

        Without arguments, list the plugins that could not be loaded.
        """
        return _absent(self.failures_of(kinds, operation))

    def engine(self, name: str) -> Engine:
        """Open the first device that `name` means (see `meant`).

        Each device has one engine object, until that engine is lost.
        """
        if not isinstance(name, str):
            raise BackendNotFound(
                f"an engine's name must be a string, as in 'cpu', 'gpu' or 'opencl:1'; got {name!r}"
            )
        place = self._names.get(name)
        if place is None:
            first = self.meant(name)[0]
            place = self._names[name] = first.kind, first.index
        while True:
            key = (*place, self._losses.get(place, 0))
            found = self._engines.get(key, functools.partial(self._open, *place))
            if not answers.is_lost(found):
                return found
            self._forget_lost(found, *key)

    def _forget_lost(self, engine: Engine, kind: str, index: int, losses: int) -> None:
        """Let the next look-up open the device again. Several threads may do this at once."""
        self._losses[kind, index] = losses + 1
        self._engines.forget(lambda key: key == (kind, index, losses))
        primitives.forget(lambda key: any(part is engine for part in key))

    def meant(self, name: str) -> list[DeviceStatus]:
        """Return the devices, at least one, that `name` means by the rules of `device_names.py`.

        Does not query devices of other engine kinds if `name` begins with one. Raises
        `BackendNotFound` for an unknown name, `EngineUnavailable` if there is no such device.
        """
        head = name.partition(":")[0].strip().casefold()
        kind = next((kind for kind in self.kinds() if kind.casefold() == head), None)
        try:
            rows = list(self.probe_devices()) if kind is None else self._devices(kind)
        except DnnError:
            raise
        except Exception as error:
            pass_on(error)
            raise EngineUnavailable(f"engine {name!r}: {describe(error)}") from error
        found = matching(name, rows)
        if not found:
            backends = {backend.name for backend in self._backends()}
            raise no_match(name, rows, self.listing(), backends)
        return found

    def listing(self) -> str:
        """List all devices with their descriptions, and unavailable engine kinds, for messages."""
        rows = list(self.probe_devices())
        there = ", ".join(f"{row.name} ({row.description})" for row in rows if row.device)
        unloaded = [s for s in self.failures.values() if s.name not in self.loaded]
        return f"there are: {there}{_absent([*(row for row in rows if not row.device), *unloaded])}"

    def _devices(self, kind: str) -> list[DeviceStatus]:
        """Return one row per device of this kind. Raises the errors of the class's `devices`."""
        found = answers.devices_of(self.engine_class(kind), kind)
        if not found:
            raise EngineUnavailable(f"{kind}: there is no device of this kind")
        names = (kind if kind == CpuEngine.kind else f"{kind}:{i}" for i in range(len(found)))
        return [DeviceStatus(name, "ok", device=d) for name, d in zip(names, found, strict=True)]

    def _open(self, kind: str, index: int) -> Engine:
        try:
            found = answers.opened(self.engine_class(kind), kind, index)
            if answers.is_lost(found):
                raise EngineUnavailable(f"engine '{kind}:{index}': its device was lost at once")
            return found
        except DnnError:
            raise
        except Exception as error:
            pass_on(error)
            raise EngineUnavailable(f"engine '{kind}:{index}': {describe(error)}") from error

    # -- reports ------------------------------------------------------------------------------

    def probe(self) -> list[BackendStatus]:
        """Import every table and list every device. Return the status of each backend."""
        self.discover()
        for backend in self._backends():
            for kind in backend.engines:
                try:
                    answers.devices_of(self.engine_class(kind), kind)
                except Exception as error:
                    pass_on(error)
                    self._fail(self.loaded[backend.name].status, error)
            for key in backend.implementations:
                self.implementations(*key)
        ok = {name: loaded.status for name, loaded in self.loaded.items()}
        return [row for _, row in sorted({**ok, **self.failures}.items())]

    def probe_devices(self) -> Iterator[DeviceStatus]:
        """Return one row per device, and one per engine kind that cannot be opened."""
        for kind in self.kinds():
            try:
                rows = self._devices(kind)
            except Exception as error:
                pass_on(error)
                unavailable = isinstance(error, EngineUnavailable)
                status: Status = "unavailable" if unavailable else "failed"
                rows = [DeviceStatus(kind, status, describe(error))]
            yield from rows


registry = Registry()
"""The process's registry; discovery happens on first use."""


def engine(name: str | None = None) -> Engine:
    """Open the first device that a name means.

    name: an engine kind, "cpu" or "opencl"; a device by its index, "opencl:1"; a type of device,
        "gpu", of any backend; words of a device's description, "opencl:nvidia h200" or "nvidia".
        Case is ignored. The module `dnncore.selection.device_names` documents all rules. By
        default, the name in `DNNCORE_ENGINE`, else "cpu".

    All calls that mean one device return one object. If that engine is lost (`Engine.is_lost`), the
    call opens a new one; memories, streams and primitives of the lost one cannot be used with it.

    Raises `BackendNotFound` for an unknown name. Raises `EngineUnavailable` if there is no such
    device or it cannot be opened. The message lists the available devices. No other device is
    opened instead.
    """
    chosen = os.environ.get("DNNCORE_ENGINE") if name is None else ""
    if name is None:
        name = chosen or CpuEngine.kind
    try:
        return registry.engine(name)
    except (BackendNotFound, EngineUnavailable) as error:
        if chosen:
            raise type(error)(f"DNNCORE_ENGINE={chosen}: {error}") from error
        raise


def backends() -> list[BackendStatus]:
    """Return all backends with their status. This imports the tables of all backends."""
    return registry.probe()


def devices() -> list[DeviceStatus]:
    """Return all devices that `engine` can open, and the engine kinds that cannot be opened."""
    return list(registry.probe_devices())


def register(plugin: object) -> list[Backend]:
    """Register a plugin, which is a module or object with the hook, in this process.

    Raises `PluginError` if it breaks the contract. Then none of its backends is registered.
    """
    if isinstance(plugin, str):
        raise PluginError(
            f"register needs a module or an object with the hook dnncore_backends; got {plugin!r};"
            " import the module first, as with importlib.import_module"
        )
    registry.discover()
    name = _name_of(plugin)
    try:
        return uninterrupted(registry.add, plugin, BackendStatus(name, "ok"))
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"plugin {name!r} cannot be registered: {describe(error)}") from error


def unregister(plugin: object) -> None:
    """Remove a plugin that `register` added."""
    uninterrupted(registry.remove, plugin)


def warn_of_unknown(variable: str, known: Sequence[str], prefixes: Sequence[str] = ()) -> None:
    """Warn of names in an environment variable that are not names of backends.

    For a pattern of implementations, the first part is checked. It may also contain wildcards or be
    one of `prefixes`.
    """
    found = [name.partition(":")[0] for name in _names(os.environ.get(variable, ""))]
    unknown = [name for name in found if name not in (*known, *prefixes) and not WILD & set(name)]
    if unknown:
        text = f"{variable}: unknown backend {', '.join(unknown)}; there are: {', '.join(known)}"
        warnings.warn(text, stacklevel=1)  # always the same place, so that Python shows it once


def _absent(rows: Iterable[BackendStatus | DeviceStatus]) -> str:
    reasons = ", ".join(f"{row.name} ({row.status}: {row.reason})" for row in rows)
    return f"; not available: {reasons}" if reasons else ""


def _name_of(plugin: object) -> str:
    try:
        return shortened(str(getattr(plugin, "__name__", type(plugin).__name__)))
    except Exception:  # an attribute may raise anything
        return type(plugin).__name__


def _by_name(entry: EntryPoint) -> tuple[bool, str, str]:
    """Sort built-in backends first, so that no plugin takes their names, kinds or role."""
    foreign = entry.dist is None or entry.dist.name != "dnncore"
    return foreign, entry.name, entry.value


def _blocked(names: set[str]) -> str:
    """Return why the variables block an entry point: names are its own and its distribution's."""
    allowed = os.environ.get("DNNCORE_BACKENDS", "")
    if _names(allowed) and names.isdisjoint(_names(allowed)):
        return f"not in DNNCORE_BACKENDS={allowed}"
    disabled = os.environ.get("DNNCORE_DISABLE_BACKENDS", "")
    return "" if names.isdisjoint(_names(disabled)) else f"in DNNCORE_DISABLE_BACKENDS={disabled}"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
