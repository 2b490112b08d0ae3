"""The results of a cross-check: divergences, calls that were not compared, and a summary."""

from __future__ import annotations

import os
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dnncore.comparison.compare import Comparison
from dnncore.forking import INNERMOST, hold_at_fork
from dnncore.interrupts import holding
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Divergence", "Report", "command", "counted"]

_lock = threading.RLock()
hold_at_fork(_lock, INNERMOST)

MOST_LISTED = 20
"""Rows of each list in a summary."""


@dataclass(frozen=True)
class Divergence:
    """A call whose results are wrong.

    number: of the call in the program, from 1.
    line: the call as a verbose line, without the time.
    other: the implementation that repeated it.
    comparisons: the comparison of each wrong argument, by name.
    heat_map: lines that show the wrong places of the first wrong argument; empty unless `is_first`.
    is_first: whether no call of this problem and implementation diverged before.
    path: the saved call; None if it was not saved.
    remarks: lines about files that were written, or could not be.
    """

    number: int
    line: str
    problem: str
    engine: str
    implementation: str
    other: str
    comparisons: dict[str, Comparison]
    verdict: tuple[str, ...] = ()
    heat_map: tuple[str, ...] = ()
    is_first: bool = True
    path: Path | None = None
    remarks: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        """The first argument that diverges."""
        return next(iter(self.comparisons))

    @property
    def comparison(self) -> Comparison:
        """The comparison of the first argument that diverges."""
        return self.comparisons[self.argument]

    @property
    def command(self) -> str:
        """The command that repeats the call from its saved inputs."""
        return command(self.path) if self.path else ""

    @property
    def head(self) -> str:
        """One line about the divergence."""
        arguments = ", ".join(self.comparisons)
        return (
            f"call {self.number}: {arguments} of {self.implementation} on {self.engine} diverges"
            f" from {self.other}"
        )

    def __str__(self) -> str:
        lines = [f"crosscheck: {self.head}", f"  line: {self.line}", f"  problem: {self.problem}"]
        lines += [f"  {name}: {found}" for name, found in self.comparisons.items()]
        lines += [f"  verdict: {line}" for line in self.verdict]
        if self.heat_map:
            title, *rows = self.heat_map
            lines += [f"  errors of {self.argument}: {title}", *(f"    {row}" for row in rows)]
        lines += [f"  {remark}" for remark in self.remarks]
        lines += [f"  again: {self.command}"] if self.path else []
        return "\n".join(lines)


def command(path: Path) -> str:
    """The command that repeats a saved call."""
    return shlex.join(["dnncore", "check", f"--inputs={path}"])


@dataclass
class Report:
    """The results of a cross-check so far. `str` returns the summary.

    compared_with: the name that was passed to `crosscheck`.
    calls: launches of the program.
    compared: launches that were repeated and compared.
    postponed: launches that were not repeated because of the limit `slowdown`.
    divergences: one per call that diverged.
    left_out: (operation, implementation, reason) -> launches that could not be compared.
    host_fallbacks, references: (problem, reason) -> launches.
    """

    compared_with: str
    calls: int = 0
    compared: int = 0
    postponed: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    left_out: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    host_fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    references: Counter[tuple[str, str]] = field(default_factory=Counter)
    process: int = field(default_factory=os.getpid)

    @holding(_lock)
    def begin(self, pd: PrimitiveDesc) -> int:
        """Count a launch and return its number."""
        self.calls += 1
        if pd.is_host_fallback or pd.is_reference:
            uses = self.host_fallbacks if pd.is_host_fallback else self.references
            name = f"{pd.impl_name} on {pd.engine.name}: {shape_of(pd)}"
            uses[name, _reason(pd)] += 1
        return self.calls

    @holding(_lock)
    def forget(self) -> None:
        """Start an empty report, in a forked child."""
        vars(self).update(vars(Report(self.compared_with)))

    @holding(_lock)
    def count_compared(self) -> None:
        """Count a launch that was compared."""
        self.compared += 1

    @holding(_lock)
    def postpone(self) -> None:
        """Count a launch that was not repeated because of the limit."""
        self.postponed += 1

    @holding(_lock)
    def leave_out(self, pd: PrimitiveDesc, reason: str) -> None:
        """Count a launch that could not be compared."""
        self.left_out[pd.op.KIND, pd.impl_name, reason] += 1

    @holding(_lock)
    def diverge(self, divergence: Divergence) -> None:
        """Add a divergence."""
        self.divergences.append(divergence)

    @holding(_lock)
    def is_new(self, problem: str, implementation: str) -> bool:
        """Whether no call of this problem and implementation diverged before."""
        return all(
            (d.problem, d.implementation) != (problem, implementation) for d in self.divergences
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count, wrong = len(self.divergences), counted(len(self.divergences), "divergence")
        yield (
            f"crosscheck against {self.compared_with}: {counted(self.calls, 'call')},"
            f" {self.compared} compared, {wrong}"
        )
        for divergence in self.divergences[:MOST_LISTED]:
            worst = divergence.comparison
            yield f"  {divergence.head}"
            yield f"    {divergence.problem}"
            yield f"    {divergence.argument}: {worst}"
        if count > MOST_LISTED:
            yield f"  and {count - MOST_LISTED} more"
        if self.postponed:
            yield (
                f"  not repeated because of the limit of time: {counted(self.postponed, 'call')};"
                " with slowdown=None or DNNCORE_CROSSCHECK_SLOWDOWN=0 every call is repeated"
            )
        left_out = {
            (f"{kind} by {name}", reason): n for (kind, name, reason), n in self.left_out.items()
        }
        yield from _listed("not compared", Counter(left_out))
        yield from _listed("host fallbacks", self.host_fallbacks)
        yield from _listed("computed by the reference", self.references)


def _reason(pd: PrimitiveDesc) -> str:
    """Return why the selected implementation is a host fallback or the reference."""
    own = [refusal for refusal in pd.refusals if not refusal.impl_name.startswith("host:")]
    reasons = [str(refusal) for refusal in own if refusal.kind != "filter"]
    if reasons:
        return "; ".join(reasons)
    if own:
        return "the other implementations were excluded by name or by an attribute"
    return f"no other implementation of {pd.op.KIND} is for {pd.engine.name}"


def shape_of(pd: PrimitiveDesc) -> str:
    """The operation with its tensors, for lists by shape."""
    tensors = " ".join(f"{argument.name}:{desc}" for argument, desc in pd.op.tensors())
    return f"{pd.op.KIND} {tensors}"


def _listed(title: str, counts: Counter[tuple[str, str]]) -> Iterator[str]:
    if not counts:
        return
    yield f"  {title}: {counted(counts.total(), 'call')}"
    for (what, reason), count in counts.most_common(MOST_LISTED):
        yield f"    {count} x {what}: {reason}"
    if len(counts) > MOST_LISTED:
        yield f"    and {len(counts) - MOST_LISTED} more"


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
