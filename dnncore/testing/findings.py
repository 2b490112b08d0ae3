"""The results of a run in all of its processes, and the number of cases left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnncore.testing.ledger import Ledger
from dnncore.testing.report import Entry, division_of_time, left_out, remarks, table
from dnncore.testing.running.shard import Shard

__all__ = ["LATE", "Findings"]

LATE = "no time"  # status of a case that begins after the budget is used up


class Findings:
    """The entries of a run. New ones are also added to the ledger, if there is one.

    option: the kit's options, as parsed by pytest.
    """

    def __init__(self, option: Any, ledger: Ledger | None) -> None:
        self.entries: list[Entry] = []
        self._option = option
        self._ledger = ledger
        self._late = 0
        self._recorded = 0  # number of entries from earlier runs

    def add(self, found: Entry, is_recorded: bool) -> None:
        """Keep an entry. Raises the errors of `Ledger.add`."""
        if found["status"] == LATE:
            self._late += 1
            return
        self.entries.append(found)
        self._recorded += is_recorded
        if self._ledger and not is_recorded:
            self._ledger.add(found)

    def missing(self) -> str:
        """Describe how the floor is missed; "" if it is reached."""
        executed = sum(row["status"] != "unsupported" for row in self.entries)
        floor = self._option.dnncore_floor
        if floor is None:
            floor = min(len(self.entries), self._default_floor())
        if executed >= floor:
            return ""
        return f"{executed} cases were executed, fewer than the floor of {floor}"

    def _default_floor(self) -> int:
        """The least floor of the plans, or that of a shard."""
        shards = Shard.read(self._option.dnncore_shard).count
        floor = min((row["floor"] for row in self.entries), default=0)
        return floor if shards == 1 else max(1, floor // (2 * shards))

    def lines(self) -> Iterator[str]:
        """Yield the coverage, unsupported cases, remarks, the division of time and the number."""
        yield table(self.entries)
        yield from left_out(self.entries)
        yield from remarks(self.entries)
        yield division_of_time(self.entries)
        count = len(self.entries)
        if self._option.dnncore_budget is not None:
            yield (
                f"sample: {count} of {count + self._late} cases, within a budget of"
                f" {self._option.dnncore_budget:g} s; order of --dnncore-seed="
                f"{self._option.dnncore_seed}"
            )
        if self._ledger:
            yield f"ledger of {self._ledger.commit}: {count} cases, {self._recorded} from before"
