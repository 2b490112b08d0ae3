"""A problem on an engine, its expected outputs, and the implementation that is checked."""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from inspect import Parameter, Signature
from typing import Any, TypeAlias

import numpy as np

from dnncore.algorithms.rounding import Noise
from dnncore.attributes import Attributes
from dnncore.backend import Implementation, Refusal
from dnncore.comparison.compare import Expected, compare, consistent_inputs, expected_outputs
from dnncore.comparison.error_bounds import believed_factor, error_factor
from dnncore.comparison.fills import FILLS, FillName, keeps_integers, operand_names
from dnncore.engines.engine import Engine
from dnncore.engines.stream import Event, Stream
from dnncore.errors import NoImplementation
from dnncore.execution.primitive import Primitive
from dnncore.notes import PREFIX as NOTE
from dnncore.ops import Operation
from dnncore.problem import Problem, driver_of
from dnncore.selection.dynamic import DynamicPrimitive
from dnncore.selection.plugins import registry
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.checks import torch_oracle
from dnncore.testing.checks.clock import Clock
from dnncore.testing.checks.guarded import SHIFT, Arguments, Finding
from dnncore.testing.checks.results import LEVELS, CheckFailed, Level

__all__ = ["USUAL_FILLS", "Case", "Round", "Trial"]

Array = np.ndarray[Any, Any]
Arrays: TypeAlias = Mapping[str, Array]
Launch: TypeAlias = Callable[[Primitive, Stream, dict[str, Any]], Event]

# Rounds of several problems are kept, because other implementations and engines use them next.
KEPT_ROUNDS = 64
KEPT_BYTES = 2**24  # of a problem's tensors; rounds of larger problems are freed after the case
PEER_ROUNDOFF = 2.0**-50  # roundoff of float64, times a few roundings

USUAL_FILLS: tuple[FillName, ...] = ("integers", "random")  # for checks of calls and threads


# -- expected outputs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """Inputs of a problem and its expected outputs. exact: whether no rounding can occur."""

    op: Operation
    attr: Attributes
    inputs: Arrays
    expected: Mapping[str, Expected]
    exact: bool

    @cached_property
    def by_peer(self) -> Mapping[str, Expected] | None:
        """Return the results of torch for the inputs, with the reference's bounds; None without
        torch.

        In float64, digits of torch's gradients may cancel, such as in y * (1 - y) for y near 1.
        """
        if not torch_oracle.is_available():
            return None
        values = torch_oracle.torch_outputs(self.op, self.attr, self.inputs)
        lost = PEER_ROUNDOFF * max(map(_largest, self.inputs.values()), default=0.0)
        return {
            name: replace(
                right,
                values=values[name],
                noise=right.noise and right.noise + Noise.within(np.asarray(lost)),
            )
            for name, right in self.expected.items()
            if name in values
        }


@lru_cache(maxsize=KEPT_ROUNDS)
def make_round(op: Operation, attr: Attributes, fill: FillName, seed: int, alias: Any) -> Round:
    """Return a round. It is computed once for all implementations and engines.

    alias: None, or an input and an output in one memory, so that the output's old values are the
        input's.
    """
    kind = FILLS[fill]
    inputs = consistent_inputs(op, attr, kind(op), seed)
    chosen = set(inputs)
    if kind.of == "operands":
        chosen = operand_names(op, attr)
    elif kind.of == "one factor" and (names := driver_of(type(op)).special_inputs):
        chosen = {next(name for name in names if name in inputs)}
    if chosen < set(inputs):
        usual = consistent_inputs(op, attr, FILLS["random"](op), seed)
        inputs = usual | {name: inputs[name] for name in chosen}
    if alias and alias[1] in inputs:
        inputs[alias[1]] = inputs[alias[0]]
    expected = expected_outputs(
        op, attr, inputs, random_order=kind.random_order, judged=fill == "random"
    )
    terms = op.flops / (2.0 * max(1, op.result.nelems))
    joins = any(step.operands or step.kind == "sum" for step in attr.post_ops)
    exact = (
        terms <= kind.exact_terms
        and (kind.exact_chains or not joins)
        and keeps_integers(op, attr)
        and all(_largest(one.values) <= kind.exact_result for one in expected.values())
        and not (attr.post_ops and np.isinf(expected[op.result_name].values).any())
    )  # a chain may overflow although the reference, which computes it in float64, does not
    return Round(op, attr, inputs, expected, exact)


def _largest(values: Array) -> float:
    """Return the largest magnitude of a finite element."""
    finite = values.astype(np.float64)[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))


# -- a case ---------------------------------------------------------------------------------------


class Case:
    """A problem on an engine.

    impl: name patterns of the implementations to be tested; "" is all.
    """

    def __init__(self, problem: Problem, engine: Engine, impl: str = "") -> None:
        self.problem = problem
        self.op = problem.op
        self.attr = problem.attr
        self.engine = engine
        self.impl = impl
        self.clock = Clock()
        # The text and the seed are the same if a problem selects one implementation.
        self.text = str(replace(problem, impl="", skip_impl="", knobs=""))
        self.seed = zlib.crc32(self.text.encode())
        is_large = problem.op.bytes > KEPT_BYTES
        self._make_round = self._more_rounds if is_large else make_round

    def round(
        self,
        fill: FillName,
        attr: Attributes | None = None,
        alias: tuple[str, str] | None = None,
        draw: int = 0,
    ) -> Round:
        """Return inputs and expected outputs, by default with the problem's own attributes.

        draw: the number of the draw. Each number gives other inputs of the same fill.
        """
        attr = self.attr if attr is None else attr
        if self.problem.inplace and attr.reads_dst:
            alias = alias or self.problem.alike
        with self.clock("reference"):
            attr = attr.of_values
            make = self._more_rounds if draw else self._make_round
            return make(self.op, attr, fill, self.seed + draw, alias)

    def variation(self, given: Round, inputs: Arrays) -> Round:
        """Return a round with other inputs."""
        with self.clock("reference"):
            expected = expected_outputs(given.op, given.attr, inputs)
            return replace(given, inputs=inputs, expected=expected)

    @cached_property
    def _more_rounds(self) -> Callable[..., Round]:
        """`make_round` with a separate cache."""
        return cache(make_round.__wrapped__)

    @cached_property
    def trials(self) -> list[Trial]:
        """Return one trial per implementation that accepts, best first."""
        return [Trial(self, pd) for pd in self.descs(self.attr)]

    def descs(self, attr: Attributes, impl: str = "", **wishes: Any) -> list[PrimitiveDesc]:
        """Return primitive descriptors with other attributes, of the implementations `impl`."""
        with self.clock("building"):
            found = primitive_descs(self.op, self.engine, attr, **self._wishes(impl) | wishes)
            return [pd for pd in found if self.wants(pd.impl_name)]

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons of implementations that refuse, except refusals by filters."""
        return tuple(map(str, self._refusals))

    @cached_property
    def _refusals(self) -> list[Refusal]:
        found = self.trials[0].pd.refusals if self.trials else self._no_implementation()
        return [r for r in found if r.kind != "filter" and self.wants(r.impl_name)]

    @property
    def level(self) -> Level:
        """The level that all accepting implementations have reached; unknown if `accept` fails."""
        if not self.trials:
            return "unknown" if any(r.kind == "failed" for r in self._refusals) else "refused"
        return min((trial.level for trial in self.trials), key=LEVELS.index)

    def wants(self, impl_name: str) -> bool:
        """Whether the case tests this implementation."""
        patterns = filter(None, map(_names, (self.problem.impl, self.impl)))
        return all(_matches(impl_name, names) for names in patterns) and not _matches(
            impl_name, _names(self.problem.skip_impl)
        )

    def sibling(self, trial: Trial, attr: Attributes, **wishes: Any) -> PrimitiveDesc | None:
        """Return the trial's implementation with other attributes; None if it refuses them."""
        name = trial.pd.impl_name
        return next((p for p in self.descs(attr, name, **wishes) if p.impl_name == name), None)

    def dynamic(self, trial: Trial) -> DynamicPrimitive:
        """Return a dynamic primitive of the trial's implementation."""
        op = trial.pd.op

        def make(**descs: MemoryDesc) -> Operation:
            return op.with_descs(**descs)

        names = [argument.name for argument, _ in op.tensors()]
        if self.attr.stored(op) != op.result:  # a depthwise post-op: dst has other dims
            names.remove(op.result_name)
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
        make.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # names its tensors
        wishes = self._wishes(trial.pd.impl_name)
        return DynamicPrimitive(make, self.engine, self.attr, **wishes)

    @cached_property
    def implementations(self) -> list[Implementation[Any]]:
        """Return all implementations of the operation on this engine that the case tests."""
        found = registry.implementations(self.engine.kind, type(self.op))
        return [implementation for _, implementation in found if self.wants(implementation.name)]

    def _wishes(self, impl: str = "") -> dict[str, Any]:
        wanted = impl or self.impl or self.problem.impl or None
        return {**self.problem.wishes, "impl": wanted, "host_fallback": False}

    def _no_implementation(self) -> Any:
        try:
            PrimitiveDesc(self.op, self.engine, self.attr, **self._wishes())
        except NoImplementation as error:
            return error.refusals
        return ()


def _names(patterns: str) -> list[str]:
    """Return the patterns of names. Selection has already applied the patterns of notes."""
    return [p for p in map(str.strip, patterns.split(",")) if p and not p.startswith(NOTE)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# -- an implementation under test -----------------------------------------------------------------


def by_name(primitive: Primitive, stream: Stream, memories: dict[str, Any]) -> Event:
    """Launch with arguments by name, without binding."""
    return primitive.execute(stream, **memories)


class Trial:
    """One implementation of a case. Several checks examine the same executions.

    findings: bytes that executions have written outside the outputs.
    world: the last known state of the process; see `surroundings`.
    changes: the names of the states that the implementation has changed.
    """

    def __init__(self, case: Case, pd: PrimitiveDesc) -> None:
        self.case = case
        self.pd = pd
        self.findings: list[Finding] = []
        self.world: dict[str, Any] = {}
        self.changes: list[str] = []
        self._outputs: dict[FillName, dict[str, Array] | Exception] = {}

    @cached_property
    def primitive(self) -> Primitive:
        """The primitive, built when a check first uses it."""
        with self.case.clock("building"):
            return self.pd.primitive()

    @property
    def is_broken(self) -> bool:
        """Whether a first execution raised an error, so that other checks cannot run."""
        return any(isinstance(outputs, Exception) for outputs in self._outputs.values())

    @property
    def level(self) -> Level:
        """The level that the first executions reached, whether or not the results are right."""
        if self._outputs and not self.is_broken:
            return "run"
        return "build" if "primitive" in vars(self) else "accept"

    @property
    def in_place(self) -> tuple[str, str] | None:
        """The input and the output that the problem requires in one memory, if formats match."""
        pair = self.case.problem.alike if self.case.problem.inplace else None
        if pair is None or self.pd.descs[pair[0]] != self.pd.descs[pair[1]]:
            return None
        return pair

    def outputs(self, fill: FillName) -> dict[str, Array]:
        """Return the outputs of the first execution with a round. Each call raises its error."""
        if fill not in self._outputs:
            try:
                inputs = self.case.round(fill).inputs
                self._outputs[fill] = self.execute(inputs, in_place=self.in_place)
            except Exception as error:
                self._outputs[fill] = error
        outputs = self._outputs[fill]
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    def execute(
        self,
        inputs: Arrays,
        *,
        pd: PrimitiveDesc | None = None,
        in_place: tuple[str, str] | None = None,
        shifts: Sequence[int] = (SHIFT,),
        launch: Launch = by_name,
    ) -> dict[str, Array]:
        """Execute with new guarded memories and return the outputs. `pd` may be a sibling's.

        The outputs are read immediately after the wait for the event.
        """
        arguments = self.arguments(inputs, pd=pd, in_place=in_place, shifts=shifts)
        stream = self.case.engine.stream()
        launch(self._built(pd), stream, arguments.memories).wait()
        outputs = self.finish(arguments)
        stream.wait()
        return outputs

    def arguments(
        self,
        inputs: Arrays,
        *,
        pd: PrimitiveDesc | None = None,
        in_place: tuple[str, str] | None = None,
        shifts: Sequence[int] = (SHIFT,),
    ) -> Arguments:
        """Return new guarded memories with these values."""
        return Arguments(self.pd if pd is None else pd, inputs, in_place, shifts)

    def finish(self, arguments: Arguments) -> dict[str, Array]:
        """Return the outputs of an ended execution, and record wrongly written bytes."""
        outputs, findings = arguments.outcome()
        self.findings += findings
        return outputs

    def expected(self, given: Round) -> Mapping[str, Expected] | None:
        """Return the expected outputs; None for the reference if there is no other oracle.

        The contents of a private workspace are not known.
        """
        if not self.pd.is_reference:
            descs = self.pd.descs
            return {n: e for n, e in given.expected.items() if descs[n].format_kind != "opaque"}
        with self.case.clock("reference"):
            return given.by_peer

    def wrong(self, given: Round, outputs: Arrays) -> str:
        """Describe the wrong outputs of a round as `unlike` does; "" also if no outputs are
        expected.
        """
        return self.unlike(self.expected(given) or {}, outputs, exact=given.exact)

    def unlike(
        self, expected: Mapping[str, Expected], outputs: Arrays, *, exact: bool = False
    ) -> str:
        """Describe the outputs that differ from the expected ones; "" if none differs."""
        claims = self.claims(exact=exact)
        comparisons = {n: right.check(outputs[n], **claims) for n, right in expected.items()}
        return "; ".join(f"{name}: {c}" for name, c in comparisons.items() if not c.ok)

    def claims(self, *, exact: bool) -> dict[str, Any]:
        """Return the arguments of `Expected.check` for this implementation.

        exact: whether no rounding can occur. Only an algorithm with an error factor, such as
        Winograd's, may be inexact then.
        """
        exact = exact and (self.pd.exact or error_factor(self.pd.op) == 1.0)
        return {"exact": exact, "error_factor": believed_factor(self.pd)}

    def verify(self, fill: FillName, outputs: Arrays, what: str) -> None:
        """Check that outputs equal the first execution's or are correct.

        So an implementation with wrong values fails only the checks of values.
        """
        self.agree(self.case.round(fill), outputs, self.outputs(fill), f"{what}, {fill}")

    def agree(self, given: Round, outputs: Arrays, others: Arrays, what: str) -> None:
        """Check that outputs are correct or equal those of another execution, bit by bit."""
        if equal(others, outputs):
            return
        known = self.expected(given) is not None
        wrong = self.wrong(given, outputs) if known else unequal(others, outputs)
        if wrong:
            raise CheckFailed(f"{what}: {wrong}")

    def _built(self, pd: PrimitiveDesc | None) -> Primitive:
        if pd is None:
            return self.primitive
        with self.case.clock("building"):
            return pd.primitive()


def equal(a: Arrays, b: Arrays) -> bool:
    """Whether all outputs are the same, bit by bit."""
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


def unequal(a: Arrays, b: Arrays) -> str:
    """Describe the places where two executions differ."""
    return "; ".join(
        f"{name}: {compare(b[name], a[name])}" for name in a if not equal({name: a[name]}, b)
    )
