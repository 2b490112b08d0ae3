"""Measures lists of problems in new processes and takes the median one of several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.contestants.contestant import Terms
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.cores import thread_settings
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.sampling import SAMPLES
from dnncore.problem import Problem

__all__ = ["TO_BE_CONTINUED", "OutOfTime", "Settings", "measured", "merged"]

TO_BE_CONTINUED = 75  # EX_TEMPFAIL of sysexits.h


class OutOfTime(Exception):
    """The time limit is exceeded."""


@dataclass(frozen=True)
class Settings:
    """Settings of measurements.

    peers: names of the peers; the fastest contestant of all counts.
    terms: the conditions of a contest.
    samples: samples per row.
    threads: threads of each side.
    seconds: the time limit of a problem; then its process ends.
    """

    peers: tuple[str, ...]
    terms: Terms = field(default_factory=Terms)
    samples: int = SAMPLES
    threads: int = 2
    seconds: float = 600.0


def measured(
    problems: Sequence[Problem],
    settings: Settings,
    processes: int = 1,
    *,
    first: int = 0,
    ledger: Ledger | None = None,
    on_outcome: Callable[[Outcome], object] = lambda _outcome: None,
) -> list[Outcome]:
    """One outcome per problem, the median one of a number of new processes.

    first: the number of the first process. A ledger has the outcomes of processes by number.
    ledger: outcomes in it are not measured again; new ones are added.
    on_outcome: called with each outcome of each process.
    """
    found: dict[str, list[Outcome]] = {str(problem): [] for problem in problems}
    for process in range(first, first + processes):
        for outcome in _one_process(list(found), settings, process, ledger or Ledger()):
            on_outcome(outcome)
            found[outcome["problem"]].append(outcome)
    return [merged(outcomes) for outcomes in found.values()]


def merged(outcomes: list[Outcome]) -> Outcome:
    """The outcome of the process with the median ratio, and the ratios of all processes.

    So its ratio follows from its times. If a problem was left out or wrong in one process, this is
    the outcome.
    """
    for outcome in outcomes:
        if "ratio" not in outcome:
            return outcome
    ordered = sorted(outcomes, key=lambda outcome: outcome["ratio"])
    middle = ordered[(len(ordered) - 1) // 2]
    return middle | {"ratios": [outcome["ratio"] for outcome in outcomes]}


def _one_process(
    texts: list[str], settings: Settings, process: int, ledger: Ledger
) -> Iterator[Outcome]:
    """The outcomes of all problems, from one new process. If a problem ends it, another one starts.

    Only the process can compute the key of a problem, which depends on the selected kernels. So it
    gets the keys in the ledger.
    """
    missing = list(texts)
    while missing:
        words = asdict(settings) | {"process": process, "problems": missing, "known": ledger.keys()}
        for key, outcome in _worker(words):
            found = outcome or ledger.get(key)
            missing.remove(found["problem"])
            if outcome and key:
                ledger.put(key, outcome)
            yield found


def _worker(words: dict[str, Any]) -> Iterator[tuple[str, Outcome | None]]:
    """The key and the outcome of each problem. The outcome is None if the ledger has the key.

    If a problem ends the process, its outcome is the last one, without a key.
    """
    texts = tuple(words["problems"])
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.measuring.worker"],
        env=os.environ | thread_settings(words["threads"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    done = 0
    with worker:
        try:
            worker.stdin.write(json.dumps(words))
            worker.stdin.close()
            for line in worker.stdout:
                yield json.loads(line)
                done += 1
        except BaseException:  # the caller stopped iterating
            worker.kill()
            raise
    if done < len(texts):
        yield "", {"problem": texts[done], "wrong": _end(worker.returncode)}


def _end(code: int) -> str:
    """The reason why a process ended early."""
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with {code}; its error is above"
