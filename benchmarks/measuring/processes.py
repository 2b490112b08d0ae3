"""Measures lists of problems in new processes. With several processes, the median one counts."""

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

    peers: names of the peers; the fastest contestant of all peers counts.
    terms: the conditions of a contest.
    samples: samples per row.
    threads: threads of each side.
    seconds: the time limit of a problem, after which its process is ended.
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
    """Measure each problem in several new processes. Returns the median outcome of each problem.

    first: the number of the first process. A ledger stores outcomes by process number.
    ledger: its outcomes are not measured again; new outcomes are added to it.
    on_outcome: called with each outcome of each process.
    """
    found: dict[str, list[Outcome]] = {str(problem): [] for problem in problems}
    for process in range(first, first + processes):
        for outcome in _one_process(list(found), settings, process, ledger or Ledger()):
            on_outcome(outcome)
            found[outcome["problem"]].append(outcome)
    return [merged(outcomes) for outcomes in found.values()]


def merged(outcomes: list[Outcome]) -> Outcome:
    """The outcome of the process with the median ratio, plus the ratios of all processes.

    So the ratio of the result follows from its times. If a problem was left out or wrong in one
    process, the result is that process's outcome.
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
    """The outcomes of all problems from one new process. If it ends early, another one follows.

    The key of a problem depends on the selected kernels, so only the process can compute it. The
    process therefore gets all keys of the ledger.
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
    """Yield the key and the outcome of each problem, None if the ledger contains the key.

    If a problem ends the process, the last outcome is the reason, without a key.
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
