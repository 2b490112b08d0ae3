"""The results of a run in all of its processes, and the number of cases left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.testing.claims import propose, read_claims
from dnncore.testing.floors import Floors
from dnncore.testing.ledger import Ledger
from dnncore.testing.report import Entry, division_of_time, left_out, remarks, table
from dnncore.testing.running.plan import Job
from dnncore.testing.running.shard import Shard

__all__ = ["ABSENT", "LATE", "Findings", "check_proposal"]

ABSENT = "absent"  # status of claims for an engine that this machine lacks

LATE = "no time"  # status of cases that would begin after the budget is used up


class Findings:
    """The entries of a run. New entries are also added to the ledger, if there is one.

    option: the kit's options, as parsed by pytest.
    """

    def __init__(self, option: Any, ledger: Ledger | None) -> None:
        self.entries: list[Entry] = []
        self._option = option
        self._ledger = ledger
        self._late = 0
        self._absent: list[str] = []
        self._proposed: list[str] = []
        self._recorded = 0  # number of entries from earlier runs

    def add(self, found: Entry, is_recorded: bool) -> None:
        """Keep an entry. Raises the errors of `Ledger.add`."""
        if found["status"] == LATE:
            self._late += found["count"]
            return
        if found["status"] == ABSENT:
            self._absent.append(found["text"])
            return
        self.entries.append(found)
        self._recorded += is_recorded
        if self._ledger and not is_recorded:
            self._ledger.add(found)

    def missing(self) -> str:
        """Describe the backends that miss their floors; "" if there is none."""
        floors = Floors.read(self._option.dnncore_floor)
        names = [name.strip() for text in self._option.dnncore_backend or ()
                 for name in text.split(",")]  # fmt: skip
        planned: dict[str, list[int]] = {name: [] for name in names}  # floors of the entries
        for row in self.entries:
            planned.setdefault(_backend(row), []).append(row["floor"])
        defaults = {name: self._default_floor(own) for name, own in planned.items()}
        executed = Counter(_backend(row) for row in self.entries if row["status"] != "unsupported")
        return "\n".join(floors.missing(executed, defaults))

    def _default_floor(self, own: list[int]) -> int:
        """Return the least floor of a backend's plans, or that of a shard; at least 1."""
        shards = Shard.read(self._option.dnncore_shard).count
        floor = min(own, default=1) // (1 if shards == 1 else 2 * shards)
        return max(1, min(floor, len(own)))

    def propose(self) -> None:
        """Add the reached levels to the file of claims that the command line names. Raises the
        errors of `propose`.
        """
        path = self._option.dnncore_propose_claims
        if path and self.entries:
            self._proposed = propose(path, self.entries)

    def lines(self) -> Iterator[str]:
        """Yield the coverage, unsupported cases, remarks, the division of time and the number."""
        yield table(self.entries)
        yield from left_out(self.entries)
        yield from remarks(self.entries)
        yield from self._absent
        yield division_of_time(self.entries)
        count = len(self.entries)
        if self._option.dnncore_budget is not None:
            yield (
                f"sample: {count} of {count + self._late} cases, within a budget of"
                f" {self._option.dnncore_budget:g} s; order of --dnncore-seed="
                f"{self._option.dnncore_seed}"
            )
        claimed = [row for row in self.entries if row.get("claimed")]
        if claimed:
            lost = sum(row["claim_is_lost"] for row in claimed)
            yield f"claims: {len(claimed) - lost} kept, {lost} lost"
        yield from self._proposed
        if self._ledger:
            yield f"ledger of {self._ledger.commit}: {count} cases, {self._recorded} from before"


def _backend(row: Entry) -> str:
    return str(row["target"].partition("@")[0])


def check_proposal(path: str | Path, jobs: Iterable[Job]) -> None:
    """Raise `DescriptorError` if `propose` could not write the file after the run of these jobs."""
    if Path(path).exists():
        read_claims(path)
    if not Path(path).resolve().parent.is_dir():
        raise DescriptorError(
            f"--dnncore-propose-claims={path}: there is no such folder; make it first"
        )
    for job in jobs:
        if not job.claim_engine:
            raise DescriptorError(
                f"--dnncore-propose-claims: {job.engine} is one of several devices of its kind;"
                " name them with --dnncore-engine, as in --dnncore-engine=pocl"
            )
    if len(backends := sorted({job.backend for job in jobs})) > 1:
        raise DescriptorError(
            f"--dnncore-propose-claims: a file has the claims of one backend; got"
            f" {', '.join(backends)}; run each backend alone"
        )
