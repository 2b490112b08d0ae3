"""A soak: jobs in threads, injected faults, and levels that must not grow."""

from __future__ import annotations

import argparse
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import dnncore as dnn
from dnncore.testing.soak.faults import FAULTS, FaultFailed
from dnncore.testing.soak.jobs import WAYS, Job, digest, draw, expected
from dnncore.testing.soak.levels import LEAST_SAMPLES, growth, measure
from dnncore.testing.soak.watchdog import Watchdog

__all__ = ["Soak", "main"]

COMMAND = "python -m dnncore.testing.soak"
FAVOURED = 0.5  # the share of all executions that run the job of `--job`
FIRST_SECONDS = 120.0  # time limit for the first run, in which code is compiled on a busy machine
LEAST_SECONDS = 0.2  # shortest duration of a round
REPEATED_SECONDS = 60  # duration in which most races have occurred
ROUNDS = 12  # samples of the levels, evenly distributed over the time
MAIN = "the main thread"
SECONDS_HELP = (
    "of work in threads; before that, one thread computes the results of all jobs, and on a busy"
    " machine the measurements of levels take longer"
)


class Soak:
    """The threads, faults and samples of one soak.

    options: the options of the command line.
    failures: descriptions of all failures.
    faults: the number of injections of each fault.
    samples: the levels after each round.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        jobs = [draw(options.seed, number, options.engines) for number in range(options.jobs)]
        self.failures: list[str] = []
        self.executed = 0
        self.faults: Counter[str] = Counter()
        self.samples: list[dict[str, int]] = []
        self._doing: dict[str, str] = {}
        self._options = options
        self._rng = random.Random(options.seed)  # noqa: S311 - reproducible
        self._engines = sorted({job.engine_name for job in jobs})
        self._watchdog = Watchdog(options.patience, lambda name: self._doing.get(name, "nothing"))
        self._jobs = self._known(jobs)

    def run(self) -> None:
        """Run all rounds; stops after the first one with failures.

        On a busy machine a short soak lasts longer, until there are enough samples.
        """
        end_of_all = time.monotonic() + self._options.seconds
        for left in range(ROUNDS, 0, -1):
            now = time.monotonic()
            is_over = now >= end_of_all and len(self.samples) >= LEAST_SAMPLES
            if self.failures or not self._jobs or is_over:
                break
            self._round(now + max(LEAST_SECONDS, (end_of_all - now) / left))
            self._do("measuring")
            self.samples.append(measure(self._engines))
        self._watchdog.stop()
        self.failures += growth(self.samples)

    def _known(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        """Return the jobs that their engines compute, with the results of a single thread."""
        known = []
        for job in jobs:
            self._do(f"{job}; {self._repeat(job)}", FIRST_SECONDS)
            wanted = expected(job)
            if wanted is not None:
                known.append((job, wanted))
        return known

    def _do(self, what: str, more: float = 0.0) -> None:
        self._doing[MAIN] = what
        self._watchdog.report(MAIN, more)

    def _round(self, end: float) -> None:
        over = threading.Event()
        seeds = [self._rng.random() for _ in range(self._options.threads)]
        workers = [threading.Thread(target=self._work, args=(seed, over)) for seed in seeds]
        for worker in workers:
            worker.start()
        left = 1.0
        while left > 0 and not self.failures:
            self._make_fault()  # one at least, even if the threads started after the end
            self._do("waiting")
            left = end - time.monotonic()
            over.wait(min(self._rng.uniform(0, 0.5), max(0.0, left)))
        over.set()
        self._watchdog.leave(MAIN)  # the workers are watched
        for worker in workers:
            worker.join()

    def _make_fault(self) -> None:
        if not self._options.faults:
            return
        name = self._rng.choice(self._options.faults)
        self._do(f"the fault {name!r}")
        try:
            FAULTS[name](self._rng, self._jobs)
            self.faults[name] += 1
        except FaultFailed as error:
            self.failures.append(f"{error}; {self._repeat(error.job)}")
        except Exception as error:
            self.failures.append(f"the fault {name!r} raised {error!r}")

    def _work(self, seed: float, over: threading.Event) -> None:
        rng = random.Random(seed)  # noqa: S311 - reproducible
        name = threading.current_thread().name
        while not over.is_set() and not self.failures:
            (job, wanted), way = self._choose(rng), rng.choice(WAYS)
            repeat = self._repeat(job)
            self._doing[name] = f"{job} ({way}); {repeat}"
            self._watchdog.report(name)
            try:
                found = digest(job, way)
            except BaseException as error:  # an interrupt is only for the main thread
                self.failures.append(f"{job} ({way}) raised {error!r}; {repeat}")
                break
            self.executed += 1
            if found != wanted:
                self.failures.append(f"{job} ({way}): other bits than one thread finds; {repeat}")
        self._watchdog.leave(name)

    def _choose(self, rng: random.Random) -> tuple[Job, str]:
        """Return a job. If `--job` is set, every second job is that job."""
        known = [pair for pair in self._jobs if pair[0].number == self._options.job]
        return rng.choice(known if known and rng.random() < FAVOURED else self._jobs)

    def _repeat(self, job: Job) -> str:
        """Return the command that repeats a job together with the same other jobs."""
        values = vars(self._options) | {"job": job.number, "seconds": REPEATED_SECONDS}
        words = ((name, self._word(value)) for name, value in values.items())
        return " ".join([COMMAND, *(f"--{name}={word}" for name, word in words)])

    @staticmethod
    def _word(value: object) -> str:
        return ",".join(value) if isinstance(value, list) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak from the command line; the status is 0 if nothing was wrong."""
    options = _options(arguments)
    engines = ", ".join(dict.fromkeys(options.engines))
    print(f"soak: {options.jobs} jobs on {engines}, seed {options.seed}", flush=True)
    soak = Soak(options)
    soak.run()
    if not soak.executed and not soak.failures:
        soak.failures.append(
            "expected at least one execution; these engines compute none of the jobs"
        )
    for failure in soak.failures:
        print(f"soak: {failure}")
    for name in soak.samples[0] if soak.samples else ():
        levels = " ".join(str(sample[name]) for sample in soak.samples)
        print(f"soak: {name} after each round: {levels}")
    if len(soak.samples) < LEAST_SAMPLES and not soak.failures:
        print("soak: too short to tell whether levels stay flat")
    for name, count in sorted(soak.faults.items()):
        print(f"soak: the fault {name!r} was made {count} times")
    verdict = "failed" if soak.failures else "passed"
    print(f"soak: {soak.executed} executions, {verdict}", flush=True)
    return bool(soak.failures)


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m dnncore.testing.soak", description=__doc__)
    parser.add_argument("--seconds", type=_above_zero(float), default=300, help=SECONDS_HELP)
    parser.add_argument("--seed", type=int, default=0, help="determines the jobs and the faults")
    parser.add_argument("--job", type=int, help="run this job every other time; the first one is 0")
    parser.add_argument(
        "--jobs", type=_above_zero(int), default=200, help="number of different jobs"
    )
    parser.add_argument("--threads", type=_above_zero(int), default=8)
    parser.add_argument(
        "--patience", type=_above_zero(float), default=120, help="seconds that end a hang"
    )
    parser.add_argument("--engines", type=_words, default=None, help="default: cpu and OpenCL")
    parser.add_argument("--faults", type=_words, default=list(FAULTS), help=", ".join(FAULTS))
    options = parser.parse_args(arguments)
    if options.job is not None and not 0 <= options.job < options.jobs:
        last = options.jobs - 1
        parser.error(f"--job: expected a number from 0 to {last}; got {options.job}; see --jobs")
    for name in options.engines or ():
        try:
            dnn.engine(name)
        except dnn.DnnError as error:
            parser.error(f"--engines: {error}")
    options.engines = options.engines or _engines()
    unknown = sorted(set(options.faults) - set(FAULTS))
    if unknown:
        parser.error(f"--faults: unknown {', '.join(unknown)}; choose from {', '.join(FAULTS)}")
    return options


def _above_zero(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Return a reader of numbers above 0 for argparse, whose messages contain its name."""

    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"expected a number above 0; got {text}")
        return value

    read.__name__ = kind.__name__
    return read


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _engines() -> list[str]:
    """Return the CPU, for three of four jobs, and the first OpenCL device (slow compiler)."""
    try:
        second = dnn.engine("opencl").name
    except dnn.DnnError:
        return ["cpu"]
    return ["cpu", "cpu", "cpu", second]


if __name__ == "__main__":
    sys.exit(main())
