"""Bad input: valid calls with random changes. Each must raise an error of dnncore or be correct.

    python -m dnncore.testing.bad_input.mutations cpu opencl:0 --described 20000 --seed 1
    python -m dnncore.testing.bad_input.mutations cpu --level executed --seed 1 --index 17

`examination.py` defines the faults.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import dnncore as dnn
from dnncore.testing.bad_input.examination import examine, examine_in, examiner
from dnncore.testing.bad_input.mutated_programs import mutation

__all__ = ["Fault", "Report", "survey"]

PROGRAM_NAME = "dnncore.testing.bad_input.mutations"  # not `__name__`, which may be `__main__`
CHUNK = 100  # consecutive programs of one engine
MOST_FAULTS = 200  # the run ends after this number of faults


class Fault(NamedTuple):
    """A program with a fault; `str` is the full description, the reproducer first."""

    engine: str
    level: str
    seed: int
    place: int
    reason: str

    def __str__(self) -> str:
        program = mutation(self.level, self.seed, self.place)
        return (
            f"python -m {PROGRAM_NAME} {self.engine} --level {self.level} --seed {self.seed}"
            f" --index {self.place}\n{program}\n{self.reason}"
        )


@dataclass
class Report:
    """The results of all programs: (level, "refused" | "python" | "passed" | ...) -> count."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{level}: {end}: {n}" for (level, end), n in sorted(self.counts.items())]
        return "\n".join([*map(str, self.faults), *rows])


def survey(tasks: Iterable[tuple[str, str, int]], seed: int, processes: int = 2) -> Report:
    """Run mutations in `processes` processes. tasks: (engine's name, level, count)."""
    pending = [
        (engine, level, range(start, min(start + CHUNK, count)))
        for engine, level, count in tasks
        for start in range(0, count, CHUNK)
    ]
    report = Report()
    lock = threading.Lock()
    queue = iter(pending)

    def work() -> None:
        with examiner() as process:
            while True:
                with lock:
                    part = next(queue, None)
                    if part is None or len(report.faults) > MOST_FAULTS:
                        return
                    engine, level, places = part
                    # CPython 3.11 parses in one thread at a time.
                    programs = [mutation(level, seed, place) for place in places]
                for place, program in zip(places, programs, strict=True):
                    end, reason = examine_in(process, program, engine, level)
                    with lock:
                        report.counts[level, end] += 1
                        if reason:
                            fault = Fault(engine, level, seed, place, f"{end}: {reason}")
                            report.faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report


# -- from the command line ------------------------------------------------------------------------


def _main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM_NAME}")
    parser.add_argument("engines", nargs="+", metavar="ENGINE")
    parser.add_argument("--described", type=int, default=0, metavar="COUNT")
    parser.add_argument("--executed", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--level", choices=("described", "executed"), default="described")
    parser.add_argument("--index", type=int)
    given = parser.parse_args()
    if given.index is not None:
        program = mutation(given.level, given.seed, given.index)
        end, reason = examine(program, dnn.engine(given.engines[0]))
        print(program, end, reason, sep="\n")
        return bool(reason)
    counts = {"described": given.described, "executed": given.executed}
    report = survey(
        [(e, level, n) for (level, n), e in itertools.product(counts.items(), given.engines)],
        given.seed,
        given.processes,
    )
    print(report)
    return bool(report.faults)


if __name__ == "__main__":
    sys.exit(_main())
