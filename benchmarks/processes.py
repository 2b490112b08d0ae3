"""Measures lists of problems in fresh processes, and takes the median over several of them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.contest import Outcome
from benchmarks.ledger import Ledger
from benchmarks.sampling import SAMPLES
from dnncore.problem import Problem

__all__ = ["Settings", "measured", "merged", "thread_settings"]

THREAD_VARIABLES = ("DNNCORE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """How problems are measured.

    peers: whose strongest contestant is ours' opponent. reorders: whether a contestant may compute
    in formats of its own, between reorders that count. samples: of each row. threads: of all sides.
    """

    peers: tuple[str, ...]
    reorders: bool = False
    samples: int = SAMPLES
    threads: int = 2


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
    """The outcomes of all problems, by one fresh process unless one of them ends it."""
    words = asdict(settings) | {"process": process}
    keys = {text: ledger.key(text, words) for text in texts}
    missing = []
    for text in texts:
        known = ledger.get(keys[text])
        if known is None:
            missing.append(text)
        else:
            yield known
    while missing:
        for outcome in _worker(tuple(missing), settings):
            missing.remove(outcome["problem"])
            ledger.put(keys[outcome["problem"]], outcome)
            yield outcome


def _worker(texts: Sequence[str], settings: Settings) -> Iterator[Outcome]:
    """Outcomes as they come; a problem that ends the process is one, too, and the last."""
    words = asdict(settings)
    threads = words.pop("threads")
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker"],
        env=os.environ | thread_settings(threads),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    done = 0
    with worker:
        try:
            worker.stdin.write(json.dumps(words | {"problems": texts}))
            worker.stdin.close()
            for line in worker.stdout:
                yield json.loads(line)
                done += 1
        except BaseException:  # whoever asked for outcomes wants no more of them
            worker.kill()
            raise
    if done < len(texts):
        yield {"problem": texts[done], "wrong": _end(worker.returncode)}


def _end(code: int) -> str:
    """How a process ended that should not have."""
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with {code}; its error is above"
