"""Estimates that measured times contradict, stored per machine as peaks are.

An estimate decides the ranking, so a wrong one selects a slow implementation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dnncore.engines.measured import is_busy
from dnncore.store import DiskStore

__all__ = ["STORE", "WrongEstimate", "judge", "wrong_estimates"]

STORE = "estimates"  # the name of the store in `dnncore cache`
FACTOR = 2.0  # an estimate is wrong if it is larger or smaller by more than this factor
LEAST_SECONDS = 1e-5  # shorter times depend on launches and clocks; their ranking matters little
MOST = 100  # records; the newest are kept
_KEY = "wrong"


@dataclass(frozen=True)
class WrongEstimate:
    """An estimate that is wrong.

    device: the name of the engine's device.
    problem: the problem text.
    estimate, measured: seconds of an execution.
    time: the time of the measurement, in seconds since 1970.
    """

    implementation: str
    device: str
    problem: str
    estimate: float
    measured: float
    time: float

    @property
    def factor(self) -> float:
        """The larger of the two times divided by the other one."""
        return max(self.measured / self.estimate, self.estimate / self.measured)

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of the record: there is one record per key."""
        return self.implementation, self.device, self.problem


def judge(
    implementation: str, device: str, problem: Callable[[], str], estimate: float, measured: float
) -> None:
    """Store an estimate if it is wrong; forget an earlier record if it is right.

    A time above the estimate proves nothing while other processes use the machine. If two processes
    store at the same time, one record may be lost.

    problem: a function that returns the problem text.
    """
    if max(estimate, measured) < LEAST_SECONDS or measured <= 0:
        return
    row = WrongEstimate(implementation, device, "", estimate, measured, time.time())
    is_wrong = row.factor > FACTOR
    known = wrong_estimates()
    if (is_wrong or known) and not (measured > estimate and is_busy()):
        row = WrongEstimate(implementation, device, problem(), estimate, measured, row.time)
        others = [one for one in known if one.key != row.key]
        if is_wrong or len(others) < len(known):
            _save([row, *others][:MOST] if is_wrong else others)


def wrong_estimates() -> list[WrongEstimate]:
    """Return the stored records, newest first."""
    data = DiskStore(STORE).get(_KEY)
    return [] if data is None else [WrongEstimate(**row) for row in json.loads(data)]


def _save(rows: list[WrongEstimate]) -> None:
    DiskStore(STORE).put(_KEY, json.dumps([asdict(row) for row in rows]).encode())
