"""Claims: the problems that a backend serves, in a file with one claim on a line.

    # Problems that mine serves: engine, level, problem.
    cpu   right   --eltwise --alg=relu 2x3x4
    pocl  accept  --eltwise --alg=tanh 2x3x4

The engine is a name as in `dnncore.engine`. The levels are `accept`, `build`, `run` and `right`.
Comments stand above the first claim, so that the kit can sort the claims.

python -m dnncore.testing.claims claims.txt found.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from dnncore.errors import DescriptorError
from dnncore.problem import Problem, read
from dnncore.testing.checks.results import LEVELS, CaseResult, Failure, Level

__all__ = ["CLAIM", "Claim", "is_reached", "propose", "read_claims"]

CLAIM = "claim"  # the check that fails if a claim is lost
CLAIMABLE = LEVELS[LEVELS.index("accept") :]
_LINE = re.compile(r"(?P<engine>\S.*?)\s+(?P<level>\S+)\s+(?P<problem>--.*)")


@dataclass(frozen=True)
class Claim:
    """The claim that a problem reaches a level on the engines of a name.

    place: the file and the line, for messages.
    """

    engine: str
    level: Level
    problem: Problem
    place: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The engine and the text of the problem. They are unique in a file."""
        return self.engine.casefold(), str(self.problem)

    def judge(self, result: CaseResult) -> CaseResult:
        """Return the result. If the claim is lost, add a failure."""
        if is_reached(self.level, result.level):
            return result
        lost = Failure(CLAIM, "", f"{self.place}: {self.level!r} is claimed; {_found(result)}")
        return replace(result, status="failed", failures=(*result.failures, lost))


def is_reached(claimed: Level, level: Level) -> bool:
    """Whether a level is at least the claimed one."""
    return LEVELS.index(level) >= LEVELS.index(claimed)


def _found(result: CaseResult) -> str:
    """Describe a level below the claimed level. The failures of checks are listed separately."""
    reasons = "; ".join(result.refusals)
    if result.level == "refused":
        return f"refused: {reasons or 'the backend has no implementation'}"
    if result.level == "unknown":
        return f"unknown: there is no result{f': {reasons}' if reasons else ''}"
    return f"the level is only {result.level!r}"


# -- files ----------------------------------------------------------------------------------------


def read_claims(path: str | Path) -> list[Claim]:
    """Read a file of claims.

    Raises `DescriptorError`, with the line, for a file that cannot be read, a line that is not a
    claim, a second claim for an engine and a problem, and a file without claims.
    """
    found: dict[tuple[str, str], Claim] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or (line.startswith("#") and not found):
            continue
        claim = _read_line(line, f"{path}, line {number}")
        if claim.key in found:
            raise DescriptorError(
                f"{claim.place}: a problem must have one claim for an engine; there is another one"
                f" in {found[claim.key].place}; remove one of them"
            )
        found[claim.key] = claim
    if not found:
        raise DescriptorError(f"{path}: expected lines ENGINE LEVEL PROBLEM; the file has none")
    return list(found.values())


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DescriptorError(f"{path}: expected lines of text in UTF-8; got {error}") from error
    except OSError as error:
        raise DescriptorError(
            f"{path}: the file of claims cannot be read: {error.strerror};"
            " --dnncore-propose-claims=FILE writes one"
        ) from error


def _read_line(line: str, place: str) -> Claim:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise DescriptorError(
            f"{place}: expected ENGINE LEVEL PROBLEM, as in 'cpu right --eltwise 2x3';"
            f" got {line!r}; comments stand above the first claim"
        )
    if match["level"] not in CLAIMABLE:
        raise DescriptorError(
            f"{place}: the level must be one of {', '.join(CLAIMABLE)}; got {match['level']!r}"
        )
    try:
        problems = read(match["problem"])
    except DescriptorError as error:
        raise DescriptorError(f"{place}: {error}") from error
    if len(problems) != 1:
        raise DescriptorError(
            f"{place}: expected one problem; got {len(problems)}; give each a line of its own"
        )
    return Claim(match["engine"], cast(Level, match["level"]), problems[0], place)


def propose(path: str | Path, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Add the levels that entries of a run have reached to a file, which need not exist.

    No claim is removed and no level is lowered. Returns a summary, and a line for each claim that
    the run has not reached. Raises `DescriptorError` unless all entries belong to one backend and
    have names of engines.
    """
    backends = {row["target"].partition("@")[0] for row in entries}
    if len(backends) != 1 or not all(row["claim_engine"] for row in entries):
        raise DescriptorError(
            f"{path}: expected results of one backend on engines that --dnncore-engine names; got"
            f" those of {', '.join(sorted(backends)) or 'none'}"
        )
    is_new = not Path(path).exists()
    claims = {} if is_new else {claim.key: claim for claim in read_claims(path)}
    added = raised = 0
    missed = []
    for reached in _reached(entries):
        before = claims.get(reached.key)
        if before is not None and not is_reached(before.level, reached.level):
            missed.append(f"  {before.place}: {before.level!r} is kept; got {reached.level!r}")
        elif reached.level in CLAIMABLE and before != reached:
            claims[reached.key] = reached
            added, raised = added + (before is None), raised + (before is not None)
    if added or raised:
        _write(path, claims.values(), entries)
    counts = f"{added} claims added, {raised} raised, {len(missed)} not reached and kept"
    return [f"{path}: {counts}", *missed]


def _reached(entries: Iterable[Mapping[str, Any]]) -> Iterator[Claim]:
    """Yield the levels that the entries have reached, including levels that cannot be claimed.

    If a name means several devices, all must reach the level.
    """
    found: dict[tuple[str, str], Claim] = {}
    for row in entries:
        claim = Claim(row["claim_engine"], row["level"], read(row["problem"])[0])
        other = found.get(claim.key)
        if other is None or is_reached(claim.level, other.level):
            found[claim.key] = claim
    yield from found.values()


def _write(path: str | Path, claims: Iterable[Claim], entries: Sequence[Mapping[str, Any]]) -> None:
    """Write the claims in order, after the comments of the file."""
    rows = sorted(claims, key=lambda claim: claim.key)
    engines, levels = (max(len(text) for text in texts) for texts in (
        [row.engine for row in rows], CLAIMABLE))  # fmt: skip
    if Path(path).exists():
        heading = [line for line in _lines(path) if line.startswith("#")]
    else:
        backend = entries[0]["target"].partition("@")[0]
        heading = [f"# Problems that {backend} serves: engine, level, problem."]
    lines = [f"{row.engine:{engines}}  {row.level:{levels}}  {row.problem}" for row in rows]
    Path(path).write_text("".join(f"{line}\n" for line in [*heading, *lines]), encoding="utf-8")


def main() -> int:
    """Propose the claims of results that `--dnncore-json` saved, such as on another machine."""
    parser = argparse.ArgumentParser(prog="python -m dnncore.testing.claims", description=__doc__)
    parser.add_argument("claims", help="the file of claims, which need not exist")
    parser.add_argument("results", help="a file of --dnncore-json")
    options = parser.parse_args()
    try:
        lines = propose(options.claims, _saved(options.results))
    except (DescriptorError, OSError) as error:
        parser.error(str(error))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _saved(path: str) -> list[dict[str, str]]:
    """Return the entries of a saved run for `propose`. Raises `DescriptorError` for other files."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["cases"]
        for row in rows:
            LEVELS.index(row["level"])
        keys = ("target", "problem", "level", "claim_engine")
        return [{key: str(row[key]) for key in keys} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise DescriptorError(
            f"{path}: expected the results of --dnncore-json; got {error!r}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
