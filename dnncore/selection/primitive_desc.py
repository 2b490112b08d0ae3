"""Primitive descriptors: an operation with its selected implementation."""

from __future__ import annotations

import functools
import glob
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from dnncore import observers
from dnncore.attributes import Attributes
from dnncore.backend import Executable, Refusal
from dnncore.cache import primitives, stats
from dnncore.engines.engine import Engine
from dnncore.engines.threads import with_num_threads
from dnncore.errors import (
    BuildError,
    DescriptorError,
    DnnError,
    NoImplementation,
    PluginError,
    ReferenceWarning,
    describe,
)
from dnncore.execution.primitive import Primitive
from dnncore.interrupts import pass_on
from dnncore.knobs import Knob, KnobValue, checked_knobs, write_knobs
from dnncore.ops import Operation, Reorder
from dnncore.ops.operation import Argument
from dnncore.selection import answers, host_fallback, refusals
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.plugins import registry
from dnncore.selection.ranking import (
    NOT_MATCHED,
    Candidate,
    Request,
    Selection,
    is_wanted,
    select,
)
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["PrimitiveDesc", "primitive_descs"]

DEFAULT_ATTRIBUTES = Attributes()
_warned: set[type[Operation]] = set()


class PrimitiveDesc:
    """An operation with the best implementation that accepts it on an engine. Compiles nothing.

    op: the operation descriptor; its formats may be `any`.
    engine: an engine, by default `dnncore.engine()`.
    hint: optional, the forward primitive descriptor of a backward operation, with the same dims and
        parameters. The workspace has the hint's format.
    impl: comma-separated name patterns; the implementation must match one. The pattern `note:WORD`
        matches implementations with this note; `notes` lists the words.
    skip_impl: comma-separated name patterns; the implementation must match none.
    knobs: values of the implementation's parameters by name, such as `{"group": 128}`. Only
        implementations that have all of these knobs and values accept.
    host_fallback: whether the CPU may compute for an engine that lacks the operation; by default
        the value of `DNNCORE_HOST_FALLBACK`.
    src_engine: for a reorder, the engine of src if it differs.

    Raises `NoImplementation`. Its message lists the distinct reasons, and its `refusals` the reason
    of each candidate.

    Every argument's resolved descriptor is an attribute: `src_desc`, `weights_desc`, `dst_desc`,
    `workspace_desc`, ...; None for an optional argument that is absent. `op` is the
    operation with all formats resolved; `asked` is the operation as passed.
    """

    def __init__(
        self,
        op: Operation,
        engine: Engine | None = None,
        attr: Attributes | None = None,
        *,
        hint: PrimitiveDesc | None = None,
        impl: str | None = None,
        skip_impl: str | None = None,
        host_fallback: bool | None = None,
        src_engine: Engine | None = None,
        knobs: Mapping[str, KnobValue] | None = None,
    ) -> None:
        wishes = (hint, src_engine, impl, skip_impl, host_fallback, knobs)
        request, selection = _choose(op, engine, attr, *wishes)
        if not selection.candidates:
            raise NoImplementation(_none_accepts(request, selection), selection.refusals)
        self._settle(request, selection, 0)
        if self._candidate.is_reference and not is_wanted(request, self._candidate):
            _warn_reference(self)

    def _settle(self, request: Request, selection: Selection, place: int) -> None:
        self._request = request
        self._selection = selection
        self._place = place
        self._candidate: Candidate = selection.candidates[place]
        accepted = self._candidate.accepted
        self.asked = request.op
        self.op = accepted.op
        self.engine = request.engine
        self.attr = request.attr
        self.hint = request.hint
        self.impl_name = self._candidate.impl_name
        workspace = accepted.workspace or accepted.op.workspace_desc(request.hint)
        self.workspace_desc: MemoryDesc | None = workspace
        self._arguments = tuple(self._rows())
        self.descs = {argument.name: desc for argument, desc in self._arguments}

    def _rows(self) -> Iterator[tuple[Argument, MemoryDesc]]:
        result = self.op.result_name
        for argument, desc in self.op.tensors(self.workspace_desc):
            yield argument, self.attr.stored(self.op) if argument.name == result else desc
        yield from self.attr.arguments(self.op)

    @classmethod
    def _at(cls, request: Request, selection: Selection, place: int) -> PrimitiveDesc:
        pd = cls.__new__(cls)
        pd._settle(request, selection, place)
        return pd

    # -- the selection --------------------------------------------------------------------------

    @property
    def arguments(self) -> tuple[tuple[Argument, MemoryDesc], ...]:
        """The primitive's arguments in binding order: those of the operation, then of the
        attributes.
        """
        return self._arguments

    @property
    def src_engine(self) -> Engine:
        """The engine of a reorder's src; for other operations the descriptor's own engine."""
        return self._request.src_engine or self.engine

    @property
    def is_reference(self) -> bool:
        """Whether the selected implementation is the slow one that defines correct results."""
        return self._candidate.is_reference

    @property
    def is_host_fallback(self) -> bool:
        """Whether the CPU computes this primitive on copied memories."""
        return self.impl_name.startswith(host_fallback.PREFIX)

    @property
    def seconds(self) -> float:
        """The estimated seconds of an execution, by which this implementation was ranked."""
        return self._candidate.seconds

    @property
    def rank_source(self) -> str:
        """The origin of the estimate."""
        return self._candidate.rank_source

    @property
    def deterministic(self) -> bool:
        """Whether the result is bit-equal from run to run."""
        return self._candidate.accepted.deterministic

    @property
    def exact(self) -> bool:
        """Whether results for small integers are exact."""
        return self._candidate.accepted.exact

    @property
    def error_factor(self) -> float:
        """The claimed error bound, as a multiple of the plain rounding bound."""
        return self._candidate.accepted.error_factor

    @property
    def notes(self) -> tuple[str, ...]:
        """Standard words for how the implementation computes, such as "compiles", sorted."""
        return tuple(self._candidate.accepted.notes)

    @property
    def detail(self) -> str:
        """The implementation's own text about its kernel; empty if it has none."""
        return self._candidate.accepted.detail

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The parameters of the implementation that `knobs=` may choose for this problem."""
        return tuple(self._candidate.accepted.knobs)

    @property
    def knob_values(self) -> dict[str, KnobValue]:
        """The values of all knobs: requested values, and defaults of the other knobs."""
        return {knob.name: knob.default for knob in self.knobs} | self.requested_knobs

    @property
    def requested_knobs(self) -> dict[str, KnobValue]:
        """The values that were requested by `knobs=`."""
        return dict(self._request.knobs)

    @property
    def scratchpad_bytes(self) -> int:
        """Bytes of scratchpad that an execution needs."""
        return self._candidate.accepted.scratchpad_bytes

    @property
    def scratchpad_desc(self) -> MemoryDesc | None:
        """The descriptor of the argument `scratchpad`, which only scratchpad="user" requires."""
        if self.attr.scratchpad != "user" or not self.scratchpad_bytes:
            return None
        return MemoryDesc((self.scratchpad_bytes,), "u8")

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals of the other implementations, with reasons."""
        return self._selection.refusals

    def __getattr__(self, name: str) -> Any:
        """Return the descriptor of an argument as `<argument>_desc`."""
        if name.endswith("_desc") and "op" in self.__dict__:
            argument = name.removesuffix("_desc")
            desc = self.descs.get(argument)
            if desc is not None or argument in {a.name for a in self.op.ARGUMENTS}:
                return desc
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def needs_reorder(self, memory: Any, argument: str) -> bool:
        """Whether `memory` must be reordered before it can be passed as `argument`."""
        if argument not in self.descs:
            raise DescriptorError(
                f"{self.op.KIND}: unknown argument {argument!r}; it takes {', '.join(self.descs)}"
            )
        return memory.engine is not self.engine or memory.desc != self.descs[argument]

    # -- iteration ------------------------------------------------------------------------------

    def next(self) -> PrimitiveDesc | None:
        """Return a descriptor of the next best implementation that accepts; None after the last."""
        place = self._place + 1
        if place >= len(self._selection.candidates):
            return None
        return PrimitiveDesc._at(self._request, self._selection, place)

    def explain(self) -> str:
        """Return a text about all implementations.

        For implementations that accept, it states the rank, the estimated time, the origin of the
        estimate, the bytes of scratchpad, the detail and the notes. For implementations that
        refuse, it states the reason. Failures of backends come last.
        """
        lines = [f"{self._request.op.KIND} on {self.engine.name}"]
        for place, candidate in enumerate(self._selection.candidates):
            mark = "->" if place == self._place else "  "
            lines.append(
                f"{mark} {place + 1}. {candidate.impl_name}: accepted,"
                f" {candidate.seconds * 1e6:.1f} us by {candidate.rank_source},"
                f" {candidate.accepted.scratchpad_bytes} bytes of scratchpad"
                + "".join(f", {word}" for word in candidate.manner)
            )
        lines += [f"   -  {refusal}" for refusal in self._selection.refusals]
        rows = registry.failures_of(*_key(self._request))
        failures = [row for row in rows if row.status == "failed"]
        lines += [f"   -  backend {row.name}: failed: {row.reason}" for row in failures]
        return "\n".join(lines)

    # -- building -------------------------------------------------------------------------------

    def primitive(self) -> Primitive:
        """Build the primitive, or take its executable from the primitive cache.

        Raises `BuildError` if the implementation fails to build a problem that it accepted.
        """
        get = _get_observed if observers.active else _get
        return Primitive(self, get(self))

    def _build(self) -> Executable:
        try:
            accepted = self._candidate.accepted
            return with_num_threads(self._request.num_threads, answers.executable, accepted)
        except PluginError as error:
            registry.fail(self._candidate.backend, f"{self.impl_name}: {error}")
            raise self._unbuilt(error) from error
        except DnnError:
            raise
        except Exception as error:
            pass_on(error)
            raise self._unbuilt(error) from error

    def _unbuilt(self, error: Exception) -> BuildError:
        return BuildError(
            f"{self.op.KIND}: {self.impl_name} accepted the problem but failed to build it:"
            f" {describe(error)}; skip it with skip_impl={self.impl_name!r}"
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Return the values that determine the executable. Equal keys share one executable."""
        request = self._request
        return (
            self.op,
            self.engine,
            request.src_engine,
            self.attr,
            self.impl_name,
            self.workspace_desc,
            self.hint.key if self.hint else None,
            request.num_threads,
            request.knobs,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrimitiveDesc) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __copy__(self) -> PrimitiveDesc:
        """Return the primitive descriptor itself, also for a deep copy: it is immutable."""
        return self

    def __deepcopy__(self, memo: object) -> PrimitiveDesc:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the request and the implementation's name; the other process selects it again."""
        request = self._request
        parts = (request.op, request.engine, request.attr, request.hint, request.src_engine)
        return _selected_again, (*parts, self.impl_name, request.num_threads, request.knobs)

    def __repr__(self) -> str:
        knobs = write_knobs(self.requested_knobs)
        own = f"{self.impl_name} with {knobs}" if knobs else self.impl_name
        return f"<{self.op.KIND} by {own} on {self.engine.name}>"


def _selected_again(
    op: Operation,
    engine: Engine,
    attr: Attributes,
    hint: PrimitiveDesc | None,
    src_engine: Engine | None,
    impl_name: str,
    num_threads: int,
    knobs: tuple[tuple[str, KnobValue], ...],
) -> PrimitiveDesc:
    select = functools.partial(
        PrimitiveDesc, op, engine, attr, hint=hint, src_engine=src_engine,
        impl=glob.escape(impl_name), host_fallback=impl_name.startswith(host_fallback.PREFIX),
        knobs=dict(knobs),
    )  # fmt: skip
    return with_num_threads(num_threads, select)


def _get(pd: PrimitiveDesc) -> Executable:
    executable: Executable = primitives.get(pd.key, pd._build)
    return executable


def _get_observed(pd: PrimitiveDesc) -> Executable:
    """Do the same as `_get`; also notify the observers of the creation, its time and origin."""
    start, before = time.perf_counter(), stats()
    origin = "cache_hit"

    def build() -> Executable:
        nonlocal origin
        executable = pd._build()
        now = stats()
        loaded = now["from_disk"] > before["from_disk"] and now["compiled"] == before["compiled"]
        origin = "from_disk" if loaded else "cache_miss"
        return executable

    executable: Executable = primitives.get(pd.key, build)
    seconds = time.perf_counter() - start
    for observer in observers.active:
        observer.created(pd, origin, seconds)
    return executable


def primitive_descs(
    op: Operation,
    engine: Engine | None = None,
    attr: Attributes | None = None,
    **wishes: Any,
) -> Iterator[PrimitiveDesc]:
    """Yield a primitive descriptor per implementation that accepts, best first.

    wishes: the keyword arguments of `PrimitiveDesc`.
    """
    request, selection = _choose(op, engine, attr, **wishes)
    for place in range(len(selection.candidates)):
        yield PrimitiveDesc._at(request, selection, place)


def _choose(
    op: Operation,
    engine: Engine | None = None,
    attr: Attributes | None = None,
    hint: PrimitiveDesc | None = None,
    src_engine: Engine | None = None,
    impl: str | None = None,
    skip_impl: str | None = None,
    host_fallback: bool | None = None,
    knobs: Mapping[str, KnobValue] | None = None,
) -> tuple[Request, Selection]:
    """Check the request, query all implementations, and notify the observers."""
    attr = DEFAULT_ATTRIBUTES if attr is None else attr
    engine = open_engine() if engine is None else engine
    _check_types(
        (op, Operation, "op", "an operation descriptor"),
        (engine, Engine, "engine", "an Engine"),
        (attr, Attributes, "attr", "Attributes"),
        (hint, PrimitiveDesc | None, "hint", "a PrimitiveDesc"),
        (src_engine, Engine | None, "src_engine", "an Engine"),
        (impl, str | None, "impl", "a name pattern"),
        (skip_impl, str | None, "skip_impl", "a name pattern"),
        (host_fallback, bool | None, "host_fallback", "True or False"),
    )
    if src_engine is not None and not isinstance(op, Reorder):
        raise DescriptorError(
            f"primitive descriptor: src_engine is for reorders only; got {op.KIND};"
            " move its memories with dnncore.reorder"
        )
    attr.check(op)
    if hint is not None:
        op.check_hint(hint)
    chosen = checked_knobs(knobs)
    request = Request(op, engine, attr, hint, src_engine, impl, skip_impl, host_fallback, chosen)
    selection = select(request)
    for observer in observers.active:
        observer.selected(request, selection)
    return request, selection


def _check_types(*rows: tuple[object, Any, str, str]) -> None:
    for value, wanted, name, text in rows:
        if not isinstance(value, wanted):
            way = "; open it with dnncore.engine(name)" if "engine" in name else ""
            raise DescriptorError(
                f"primitive descriptor: {name} must be {text}; got {type(value).__name__}{way}"
            )


def _none_accepts(request: Request, selection: Selection) -> str:
    """Return the message: the problem, the reasons of refusals, and a remedy."""
    text = f"{request.op.KIND}: no implementation on {request.engine.name} accepts this problem"
    excuses = registry.excuses(*_key(request))
    if not selection.refusals:
        return f"{text}: no backend implements it there{excuses}"
    if all(refusal.reason.startswith(NOT_MATCHED) for refusal in selection.refusals):
        names = [refusal.impl_name for refusal in selection.refusals]
        patterns = selection.refusals[0].reason.removeprefix(NOT_MATCHED)
        source = "DNNCORE_IMPL" if request.impl is None else "impl"
        return (
            f"{request.op.KIND}: {source}={patterns} matches no implementation on"
            f" {request.engine.name}{excuses}; a pattern matches a whole name, as"
            f" {names[0].partition(':')[0]}:* does; there are:" + "".join(f"\n  {n}" for n in names)
        )
    text += excuses
    if refusals.offers_host_fallback(selection.refusals):
        text += f"; to let the CPU compute it on copied memories, {host_fallback.ADVICE}"
    reasons = refusals.listed(selection.refusals)
    return f"{text}:{reasons}" if reasons else text


def _key(request: Request) -> tuple[set[str], type[Operation]]:
    """Return the engine kinds and the operation of the implementations that were candidates."""
    kinds = {engine.kind for engine in (request.engine, request.src_engine) if engine is not None}
    return kinds | ({"cpu"} if request.allows_host_fallback else set()), type(request.op)


def _warn_reference(pd: PrimitiveDesc) -> None:
    """Warn once per kind of operation that the slow reference was selected."""
    kind = type(pd.op)
    if kind in _warned:
        return
    _warned.add(kind)
    warnings.warn(
        f"{pd.op.KIND}: the slow {pd.impl_name} was selected, because no other implementation"
        f" accepts the problem{registry.excuses(*_key(pd._request))}:\n{pd.explain()}",
        ReferenceWarning,
        stacklevel=3,
    )
