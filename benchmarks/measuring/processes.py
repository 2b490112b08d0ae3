"""Measures lists of problems in fresh processes, and takes the median over several of them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.contestants.contestant import Terms
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.sampling import SAMPLES
from dnncore.problem import Problem

__all__ = ["TO_BE_CONTINUED", "OutOfTime", "Settings", "measured", "merged", "thread_settings"]

TO_BE_CONTINUED = 75  # the exit code of sysexits.h for what should be tried again

THREAD_VARIABLES = ("DNNCORE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class OutOfTime(Exception):
    """The time that was given is over."""


@dataclass(frozen=True)
class Settings:
    """How problems are measured.

    peers: whose strongest contestant is ours' opponent. terms: on what they compete. samples: of
    each row. threads: of all sides. seconds: what a problem may take before its process is ended.
    """

    peers: tuple[str, ...]
    terms: Terms = field(default_factory=Terms)
    samples: int = SAMPLES
    threads: int = 2
    seconds: float = 600.0


def thread_settings(threads: int) -> dict[str, str]:
    """The environment in which all libraries use so many threads; they read it when loaded."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def measured(
    problems: Sequence[Problem],
    settings: Settings,
    processes: int = 1,
    *,
    ledger: Ledger | None = None,
    tell: Callable[[Outcome], object] = lambda _outcome: None,
) -> list[Outcome]:
    """One outcome of each problem, the median over so many fresh processes.

    ledger: outcomes found there are not measured again; new ones are added. tell: is called with
    each outcome of each process as it arrives.
    """
    found: dict[str, list[Outcome]] = {str(problem): [] for problem in problems}
    for process in range(processes):
        for outcome in _one_process(list(found), settings, process, ledger or Ledger()):
            tell(outcome)
            found[outcome["problem"]].append(outcome)
    return [merged(outcomes) for outcomes in found.values()]


def merged(outcomes: list[Outcome]) -> Outcome:
    """The medians of a row's numbers; the words of the process whose ratio is in the middle.

    A problem that was left out or wrong in one process is so as a whole.
    """
    for outcome in outcomes:
        if "ratio" not in outcome:
            return outcome
    ordered = sorted(outcomes, key=lambda outcome: outcome["ratio"])
    middle = ordered[(len(ordered) - 1) // 2]
    numbers = {
        name: statistics.median(outcome[name] for outcome in ordered)
        for name, value in middle.items()
        if isinstance(value, float)
    }
    return middle | numbers | {"ratios": [outcome["ratio"] for outcome in outcomes]}


def _one_process(
    texts: list[str], settings: Settings, process: int, ledger: Ledger
) -> Iterator[Outcome]:
    """The outcomes of all problems, by one fresh process unless one of them ends it.

    It alone knows what a problem's figures depend on, such as the kernels that are chosen; so it is
    told what is known.
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
    """The key of each problem and its outcome as it comes, None if that is known.

    A problem that ends the process is the last outcome, of no key.
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
        except BaseException:  # whoever asked for outcomes wants no more of them
            worker.kill()
            raise
    if done < len(texts):
        yield "", {"problem": texts[done], "wrong": _end(worker.returncode)}


def _end(code: int) -> str:
    """How a process ended that should not have."""
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with {code}; its error is above"
