"""Measures problems in a separate process. Reads settings, writes a line of JSON per problem.

The environment sets the number of threads. All libraries read it while they are loaded. The input
contains the settings of `processes.Settings`, the number of the process, the texts of the problems
and the keys in the ledger. A line of output contains a key and an outcome. The outcome is null if
the ledger contains the key.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from typing import Any

from benchmarks.contestants.by_dnncore import kernels
from benchmarks.contestants.contestant import Terms
from benchmarks.measuring.circumstances import circumstances, versions
from benchmarks.measuring.contest import Outcome, measure
from benchmarks.measuring.cores import keep_to
from benchmarks.measuring.ledger import Ledger
from dnncore.problem import Problem, read
from dnncore.selection.plugins import describe


def main() -> None:
    """Read settings from stdin and write outcomes to stdout, until the problems end."""
    settings = json.loads(sys.stdin.read())
    keep_to(settings["threads"])
    texts, known = settings.pop("problems"), set(settings.pop("known"))
    for text in texts:
        (problem,) = read(text)
        faulthandler.dump_traceback_later(settings["seconds"], exit=True)
        key = _key(problem, settings)
        outcome = None if key in known else _measured(problem, settings)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([key, outcome]), flush=True)


def _key(problem: Problem, settings: dict[str, Any]) -> str:
    """The key in the ledger, computed from a device's kernels or, for the CPU, from sources."""
    name = settings["terms"]["engine"]
    sources = None if name == "cpu" else kernels(problem, name)
    how = settings | {
        "seconds": None,
        "versions": versions(),
    }  # figures do not depend on the time limit
    return Ledger.key(str(problem), how, sources)


def _measured(problem: Problem, settings: dict[str, Any]) -> Outcome:
    """Measure a problem. Returns the outcome with its circumstances; wrong after an exception."""
    terms = Terms(**settings["terms"])
    start = time.monotonic()
    try:
        outcome = measure(problem, settings["peers"], terms, samples=settings["samples"])
    except Exception as error:
        outcome = {"problem": str(problem), "wrong": describe(error)}
    return outcome | {"took": time.monotonic() - start} | circumstances(terms.engine)


if __name__ == "__main__":
    main()
