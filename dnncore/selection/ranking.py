"""Selection: accept, filter, rank, explain. No other module iterates over implementation lists."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dnncore.attributes import Attributes
from dnncore.backend import Accepted, Backend, Implementation, Refusal, Refused
from dnncore.cache import MemoryCache
from dnncore.engines.engine import Engine
from dnncore.engines.threads import get_num_threads, with_num_threads
from dnncore.environment import flag
from dnncore.errors import DescriptorError, PluginError, describe
from dnncore.interrupts import pass_on
from dnncore.knobs import KnobValue
from dnncore.notes import NOTES
from dnncore.notes import PREFIX as NOTE
from dnncore.ops import Operation
from dnncore.selection import answers, host_fallback, transfer
from dnncore.selection.plugins import engine, registry, warn_of_unknown

if TYPE_CHECKING:
    from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = [
    "NOT_MATCHED", "Candidate", "Request", "Selection", "forget", "is_wanted", "select",
]  # fmt: skip

REFERENCE = "reference"


@dataclass(frozen=True)
class Request:
    """A problem and the user's restrictions; selections are cached under this key.

    src_engine: the engine that a reorder reads from, if it is not `engine`.
    impl, skip_impl: comma-separated name patterns in the syntax of `fnmatch`, or `note:WORD`.
    knobs: the requested values by name, sorted. Implementations without these knobs refuse.
    num_threads: threads of the CPU, for any engine, because of host fallbacks.
    """

    op: Operation
    engine: Engine
    attr: Attributes
    hint: PrimitiveDesc | None = None
    src_engine: Engine | None = None
    impl: str | None = None
    skip_impl: str | None = None
    host_fallback: bool | None = None
    knobs: tuple[tuple[str, KnobValue], ...] = ()
    num_threads: int = field(default_factory=get_num_threads)

    @property
    def allows_host_fallback(self) -> bool:
        """Return the user's choice, else `DNNCORE_HOST_FALLBACK`."""
        if self.host_fallback is None:
            return flag("DNNCORE_HOST_FALLBACK", False)
        return self.host_fallback


@dataclass(frozen=True)
class Candidate:
    """An implementation that accepts, with its place in the ranking.

    seconds: the estimate.
    rank_source: the origin of the estimate.
    """

    impl_name: str
    backend: str
    is_reference: bool
    accepted: Accepted
    seconds: float
    rank_source: str

    @property
    def manner(self) -> tuple[str, ...]:
        """Describe how the implementation computes, as texts: its detail and its notes."""
        details = (self.accepted.detail,) if self.accepted.detail else ()
        return (*details, *self.accepted.notes)


@dataclass(frozen=True)
class Selection:
    """All candidates of one problem, best first, and the refusals of the others."""

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]


# Names and patterns other than those of backends.
PREFIXES = tuple(prefix.rstrip(":") for prefix in (host_fallback.PREFIX, transfer.PREFIX, NOTE))
NOT_MATCHED = "not matched by impl="  # the start of the reason for this refusal


@dataclass(frozen=True)
class _Filters:
    """The name patterns and the order of backends that apply to one selection."""

    wanted: tuple[str, ...]
    skipped: tuple[str, ...]
    preferred: tuple[str, ...]

    def refusal(self, name: str, notes: Collection[str] | None = None) -> Refused | None:
        """The refusal by name and notes. Without notes, only if no note could change it."""
        by_note = notes is None and any(pattern.startswith(NOTE) for pattern in self.wanted)
        if self.wanted and not by_note and not _matches(name, self.wanted, notes or ()):
            return Refused("filter", f"{NOT_MATCHED}{','.join(self.wanted)}")
        if _matches(name, self.skipped, notes or ()):
            return Refused("filter", f"matched by skip_impl={','.join(self.skipped)}")
        return None

    def place(self, backend: str) -> int:
        return self.preferred.index(backend) if backend in self.preferred else len(self.preferred)


_selections: MemoryCache[Selection] = MemoryCache(1024)


def select(request: Request) -> Selection:
    """Query all implementations, apply the user's filters and rank. The result is cached."""
    filters = _Filters(
        _patterns(request.impl, "DNNCORE_IMPL"),
        _patterns(request.skip_impl, "DNNCORE_SKIP_IMPL"),
        _patterns(None, "DNNCORE_PREFER"),
    )
    registry.discover()
    key = (request, filters, request.allows_host_fallback, registry.generation)
    return _selections.get(key, lambda: _select(request, filters))


def is_wanted(request: Request, candidate: Candidate) -> bool:
    """Whether the user requests this implementation by a pattern or prefers its backend."""
    preferred = candidate.backend in _patterns(None, "DNNCORE_PREFER")
    patterns = _patterns(request.impl, "DNNCORE_IMPL")
    return preferred or _matches(candidate.impl_name, patterns, candidate.accepted.notes)


def forget() -> None:
    """Drop all cached selections, so that the next ones query every implementation again."""
    _selections.clear()


def _select(request: Request, filters: _Filters) -> Selection:
    known = [*registry.loaded, *registry.failures]
    warn_of_unknown("DNNCORE_PREFER", known)
    warn_of_unknown("DNNCORE_SKIP_IMPL", known, PREFIXES)
    candidates, refusals = with_num_threads(request.num_threads, _ask, request, filters)

    def rank(candidate: Candidate) -> tuple[bool, int, bool, float, str]:
        last = candidate.impl_name.startswith(host_fallback.PREFIX)
        place = filters.place(candidate.backend)
        return last, place, candidate.is_reference, candidate.seconds, candidate.impl_name

    return Selection(tuple(sorted(candidates, key=rank)), tuple(refusals))


def _ask(request: Request, filters: _Filters) -> tuple[list[Candidate], list[Refusal]]:
    """Query all implementations."""
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    for backend, implementation in _implementations(request, candidates):
        name = implementation.name
        answer = filters.refusal(name) or _consider(backend, implementation, request)
        if isinstance(answer, Candidate):
            answer = filters.refusal(name, answer.accepted.notes) or answer
        if isinstance(answer, Refused):
            refusals.append(Refusal(name, answer.kind, answer.reason))
        else:
            candidates.append(answer)
    return candidates, refusals


def _implementations(
    request: Request, accepting: list[Candidate]
) -> Iterator[tuple[Backend, Implementation[Any]]]:
    """Yield implementations of the engine, then host fallbacks; for two engines, the crossings.

    accepting: the candidates so far. If there are any, host fallbacks that the user does not allow
        are omitted, because they require an import of the CPU's backends.
    """
    if request.src_engine is not None and request.src_engine is not request.engine:
        for side in (request.engine, request.src_engine):
            for backend, implementation in registry.implementations(side.kind, type(request.op)):
                yield backend, transfer.Crossing(implementation, request.src_engine, side)
        return
    yield from registry.implementations(request.engine.kind, type(request.op))
    cpu = engine("cpu")
    allowed = request.allows_host_fallback
    if request.engine.kind != cpu.kind and (allowed or not accepting):
        for backend, implementation in registry.implementations(cpu.kind, type(request.op)):
            yield backend, host_fallback.HostFallback(implementation, cpu, allowed)


def _consider(
    backend: Backend, implementation: Implementation[Any], request: Request
) -> Candidate | Refused:
    """Query one implementation; an exception in it does not affect the others."""
    try:
        answer = answers.answer(
            implementation, request.op, request.attr, request.engine, request.hint
        )
        if request.knobs and isinstance(answer, Accepted):
            answer = answers.tuned(answer, request.op, dict(request.knobs))
        if isinstance(answer, Refused):
            return answer
        return _unfit(answer, request) or _candidate(backend, implementation.name, answer, request)
    except PluginError as error:
        reason = describe(error)
    except Exception as error:
        pass_on(error)
        reason = f"accept raised {describe(error)}"
    registry.fail(backend.name, f"{implementation.name}: {reason}")
    return Refused("failed", reason)


def _unfit(accepted: Accepted, request: Request) -> Refused | None:
    """Return why the request rules out an implementation that accepted, or None."""
    if request.attr.deterministic and not accepted.deterministic:
        return Refused("attribute", "deterministic=True, but its result depends on timing")
    limit, needed = request.attr.scratchpad_limit, accepted.scratchpad_bytes
    if limit is not None and needed > limit:
        return Refused("resources", f"needs {needed} bytes of scratchpad; scratchpad_limit={limit}")
    return None


def _candidate(backend: Backend, name: str, accepted: Accepted, request: Request) -> Candidate:
    seconds, source = answers.estimate(accepted, request.engine)
    is_reference = backend.role == REFERENCE
    return Candidate(name, backend.name, is_reference, accepted, seconds, source)


def _matches(name: str, patterns: tuple[str, ...], notes: Collection[str] = ()) -> bool:
    return any(
        pattern.removeprefix(NOTE) in notes
        if pattern.startswith(NOTE)
        else fnmatch.fnmatchcase(name, pattern)
        for pattern in patterns
    )


def _patterns(given: str | None, variable: str) -> tuple[str, ...]:
    text = os.environ.get(variable, "") if given is None else given
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    for pattern in patterns:
        word = pattern.removeprefix(NOTE)
        if word != pattern and word not in NOTES:
            source = variable if given is None else "impl or skip_impl"
            raise DescriptorError(
                f"{source}: a pattern with {NOTE} names one of {', '.join(NOTES)}; got {pattern!r}"
            )
    return patterns
