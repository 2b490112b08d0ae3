"""Plugins: find them, isolate one from another, validate what they return, keep failures."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from dnncore import hookspecs
from dnncore.backend import API_VERSION, Backend, Implementation
from dnncore.cache import primitives
from dnncore.engine import CpuEngine, Device, Engine
from dnncore.errors import BackendNotFound, DnnError, EngineUnavailable, PluginError
from dnncore.forking import PLUGINS, hold_at_fork
from dnncore.ops import Operation

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
]

GROUP = "dnncore.backends"
Status = Literal["ok", "unavailable", "failed", "blocked"]


@dataclass(frozen=True)
class BackendStatus:
    """One row of `dnncore backends`: a plugin's backend, or the plugin if it never loaded."""

    name: str
    status: Status
    reason: str = ""
    version: str = ""
    distribution: str = ""


@dataclass(frozen=True)
class DeviceStatus:
    """One row of `dnncore devices`; `name` is what `dnncore.engine` takes."""

    name: str
    status: Status
    reason: str = ""
    device: Device | None = None


@dataclass
class _Loaded:
    """A validated backend and where it came from."""

    backend: Backend
    status: BackendStatus
    plugin: object


class Registry:
    """All that plugins brought: backends by name, engines by kind, tables by kind and operation.

    `generation` changes whenever the set of backends does, so that selections can be cached.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.failures: dict[str, BackendStatus] = {}
        self.loaded: dict[str, _Loaded] = {}
        self._objects: dict[str, Any] = {}
        self._tables: dict[tuple[str, type], list[tuple[Backend, Implementation]]] = {}
        self._engines: dict[tuple[str, int], Engine] = {}
        self._discovered = False
        self._lock = threading.RLock()
        hold_at_fork(self._lock, PLUGINS)
        self._manager = pluggy.PluginManager("dnncore")
        self._manager.add_hookspecs(hookspecs)

    # -- loading ------------------------------------------------------------------------------

    def discover(self) -> None:
        """Load the plugins of all installed distributions, once."""
        if self._discovered:
            return
        with self._lock:
            if self._discovered:
                return
            self._discovered = True
            from importlib.metadata import entry_points  # a third of the time of `import dnncore`

            for entry in sorted(entry_points(group=GROUP), key=_by_name):
                self._load_entry(entry)

    def _load_entry(self, entry: EntryPoint) -> None:
        origin = BackendStatus(
            entry.name,
            "ok",
            version=entry.dist.version if entry.dist else "",
            distribution=entry.dist.name if entry.dist else "",
        )
        blocked = _blocked(entry.name)
        if blocked:
            self.failures[entry.name] = replace(origin, status="blocked", reason=blocked)
            return
        try:
            self.add(entry.load(), origin)
        except (Exception, SystemExit) as error:  # one broken plugin must not stop another
            self._fail(origin, error)

    def add(self, plugin: object, origin: BackendStatus) -> list[Backend]:
        """Register one plugin; on any failure nothing of it stays behind."""
        with self._lock:
            try:
                self._manager.register(plugin, name=f"{origin.name}@{id(plugin)}")
                self._manager.check_pending()
                if not self._manager.get_hookcallers(plugin):
                    raise PluginError(
                        f"plugin {origin.name!r} must implement the hook dnncore_backends; it has"
                        " none; mark a function of that name with dnncore.backend.hookimpl"
                    )
                others = [p for p in self._manager.get_plugins() if p is not plugin]
                hook = self._manager.subset_hook_caller("dnncore_backends", others)
                found = [
                    self._validate(backend, origin)
                    for result in hook()
                    for backend in _as_sequence(result)
                ]
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

    def remove(self, plugin: object) -> None:
        """Forget a plugin and its backends."""
        with self._lock:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            gone = [name for name, loaded in self.loaded.items() if loaded.plugin is plugin]
            for name in gone:
                kinds = self.loaded.pop(name).backend.engines
                self.failures.pop(name, None)
                self._engines = {k: e for k, e in self._engines.items() if k[0] not in kinds}
            self._changed()

    def _validate(self, backend: object, origin: BackendStatus) -> Backend:
        if not isinstance(backend, Backend):
            raise PluginError(
                f"plugin {origin.name!r}: dnncore_backends must return Backend objects;"
                f" got {type(backend).__name__}"
            )
        if backend.api_version != API_VERSION:
            raise PluginError(
                f"backend {backend.name!r}: api_version must be {API_VERSION}, this dnncore's;"
                f" got {backend.api_version}; install a matching version of the backend"
            )
        other = self.loaded.get(backend.name)
        if other is not None:
            raise PluginError(
                f"backend {backend.name!r} is provided by {other.status.distribution or 'a plugin'}"
                f" and by {origin.distribution or 'another plugin'}; block one with"
                " DNNCORE_DISABLE_BACKENDS"
            )
        for kind in backend.engines:
            owner = next((b.name for b in self._backends() if kind in b.engines), None)
            if kind == CpuEngine.kind or owner is not None:
                raise PluginError(
                    f"backend {backend.name!r}: engine kind {kind!r} must be new; it belongs to"
                    f" {owner or 'the core'}"
                )
        return backend

    def _fail(self, origin: BackendStatus, error: BaseException) -> None:
        missing = isinstance(error, ImportError | EngineUnavailable)
        status: Status = "unavailable" if missing else "failed"
        self.failures[origin.name] = replace(origin, status=status, reason=describe(error))

    def _changed(self) -> None:
        self.generation += 1
        self._tables.clear()
        primitives.clear()  # a new backend may use an old one's names

    # -- looking up ---------------------------------------------------------------------------

    def _backends(self) -> list[Backend]:
        return [loaded.backend for loaded in self.loaded.values()]

    def with_role(self, role: str) -> Backend | None:
        """The backend that plays `role`, if one does."""
        self.discover()
        return next((b for b in self._backends() if b.role == role), None)

    def implementations(
        self, kind: str, operation: type[Operation]
    ) -> list[tuple[Backend, Implementation]]:
        """Everything that may compute `operation` on engines of this kind."""
        self.discover()
        key = (kind, operation)
        table = self._tables.get(key)
        if table is None:
            with self._lock:
                table = [
                    (backend, implementation)
                    for backend in self._backends()
                    for implementation in self._table(backend, key)
                ]
                self._tables[key] = table
        return table

    def _table(self, backend: Backend, key: tuple[str, type[Operation]]) -> list[Implementation]:
        path = backend.implementations.get(key)
        if path is None:
            return []
        try:
            return list(self.load(path))
        except Exception as error:  # a backend that cannot be imported has no implementations
            self._fail(self.loaded[backend.name].status, error)
            return []

    def load(self, path: str) -> Any:
        """Import the object named "module:attribute", once."""
        if path not in self._objects:
            module, _, attribute = path.partition(":")
            self._objects[path] = getattr(importlib.import_module(module), attribute)
        return self._objects[path]

    def engine_class(self, kind: str) -> type[Engine]:
        """The class of an engine kind; raises `BackendNotFound` or `EngineUnavailable`."""
        if kind == CpuEngine.kind:
            return CpuEngine
        self.discover()
        for backend in self._backends():
            if kind in backend.engines:
                try:
                    found: type[Engine] = self.load(backend.engines[kind])
                except Exception as error:
                    self._fail(self.loaded[backend.name].status, error)
                    raise EngineUnavailable(
                        f"engine {kind!r}: backend {backend.name!r} cannot be loaded:"
                        f" {describe(error)}"
                    ) from error
                return found
        raise BackendNotFound(
            f"unknown engine {kind!r}; available: {', '.join(self.kinds())}{self.excuses()}"
        )

    def kinds(self) -> list[str]:
        """All engine kinds, `cpu` first."""
        self.discover()
        return [CpuEngine.kind, *(kind for b in self._backends() for kind in b.engines)]

    def excuses(self) -> str:
        """Name the backends that are not there, with the reasons, for the end of a message."""
        excuses = [f"{s.name} ({s.status}: {s.reason})" for s in self.failures.values()]
        return f"; not available: {', '.join(excuses)}" if excuses else ""

    def engine(self, name: str) -> Engine:
        """Open the engine `kind` or `kind:index`, the same object each time."""
        if not isinstance(name, str):
            raise BackendNotFound(
                f"an engine's name must be a string, kind or kind:index; got {name!r}"
            )
        kind, colon, text = name.partition(":")
        if colon and not text.isdecimal():
            raise BackendNotFound(f"engine {name!r}: write kind or kind:index, as in 'opencl:1'")
        index = int(text or 0)
        with self._lock:
            found = self._engines.get((kind, index))
            if found is None:
                found = self._engines[kind, index] = self._open(kind, index)
        return found

    def _open(self, kind: str, index: int) -> Engine:
        engine_class = self.engine_class(kind)
        try:
            count = len(engine_class.devices())
            if index >= count:
                raise EngineUnavailable(
                    f"engine '{kind}:{index}': there {'is' if count == 1 else 'are'} {count}"
                    f" device{'s' * (count != 1)} of kind {kind!r}; the index must be below {count}"
                )
            return engine_class(index)
        except DnnError:
            raise
        except Exception as error:
            raise EngineUnavailable(f"engine '{kind}:{index}': {describe(error)}") from error

    # -- reports ------------------------------------------------------------------------------

    def probe(self) -> list[BackendStatus]:
        """Import every table and list every device, and tell how each backend fared."""
        self.discover()
        for backend in self._backends():
            try:
                for kind in backend.engines:
                    self.engine_class(kind).devices()
                for path in backend.implementations.values():
                    self.load(path)
            except Exception as error:
                self._fail(self.loaded[backend.name].status, error)
        ok = {name: loaded.status for name, loaded in self.loaded.items()}
        return [row for _, row in sorted({**ok, **self.failures}.items())]

    def probe_devices(self) -> Iterator[DeviceStatus]:
        """One row per device, and one per engine kind that cannot be opened."""
        for kind in self.kinds():
            try:
                found = self.engine_class(kind).devices()
            except Exception as error:
                unavailable = isinstance(error, EngineUnavailable)
                yield DeviceStatus(
                    kind, "unavailable" if unavailable else "failed", describe(error)
                )
                continue
            for index, device in enumerate(found):
                name = kind if kind == CpuEngine.kind else f"{kind}:{index}"
                yield DeviceStatus(name, "ok", device=device)


registry = Registry()
"""The process's registry; discovery happens on first use."""


def engine(name: str | None = None) -> Engine:
    """Open an engine: "cpu", "opencl", "opencl:1", ...; by default `DNNCORE_ENGINE`, else "cpu".

    Raises `BackendNotFound` for an unknown kind (the text lists what there is) and
    `EngineUnavailable` when the device cannot be opened. There is no silent substitute.
    """
    if name is None:
        name = os.environ.get("DNNCORE_ENGINE") or CpuEngine.kind
    return registry.engine(name)


def backends() -> list[BackendStatus]:
    """All backends with their state; imports every table to find out."""
    return registry.probe()


def devices() -> list[DeviceStatus]:
    """All devices that `engine` can open, and the engine kinds that cannot be opened."""
    return list(registry.probe_devices())


def register(plugin: object) -> list[Backend]:
    """Add a plugin (a module or object with the hook) by hand, for notebooks and tests.

    Raises `PluginError` when it breaks the contract; nothing of it stays behind then.
    """
    registry.discover()
    name = getattr(plugin, "__name__", type(plugin).__name__)
    try:
        return registry.add(plugin, BackendStatus(name, "ok"))
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"plugin {name!r} cannot be registered: {describe(error)}") from error


def unregister(plugin: object) -> None:
    """Take back what `register` did."""
    registry.remove(plugin)


def describe(error: BaseException) -> str:
    """Give the error's type and text on one line; a library error's text alone."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DnnError) else f"{type(error).__name__}: {text}"


def _by_name(entry: EntryPoint) -> tuple[str, str]:
    return entry.name, entry.value


def _as_sequence(result: object) -> Sequence[object]:
    return result if isinstance(result, list | tuple) else (result,)


def _blocked(name: str) -> str:
    allowed = os.environ.get("DNNCORE_BACKENDS")
    if allowed is not None and name not in _names(allowed):
        return f"not in DNNCORE_BACKENDS={allowed}"
    disabled = os.environ.get("DNNCORE_DISABLE_BACKENDS", "")
    return f"in DNNCORE_DISABLE_BACKENDS={disabled}" if name in _names(disabled) else ""


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
