"""The soak finds planted faults of its kinds, and repeats what it finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dnncore.testing.soak import run
from dnncore.testing.soak.jobs import draw, expected
from dnncore.testing.soak.levels import TOLERANCES, growth

SUPPORT = Path(__file__).parents[1] / "support"

# A backend of the CPU that computes relu with a fault, and is preferred to all others.
PLANTED = """
import os, sys, threading, time
sys.path.insert(0, {support!r})
os.environ["DNNCORE_PREFER"] = "toybackend"
import numpy as np
import dnncore as dnn
from dnncore.backend import Accepted, HostFunction, Implementation
from dnncore.testing.soak import jobs
from dnncore.testing.soak.run import main
import toy

jobs.FORMS = (jobs._eltwise,)
kept, calls, shared = [], [], np.zeros(1 << 16, np.float32)

def leak(src, dst):
    kept.extend(bytes(100) for _ in range(1000))
    toy.relu(src, dst)

def hang(src, dst):
    calls.append(None)
    if len(calls) > 20:
        time.sleep(1000)
    toy.relu(src, dst)

def race(src, dst):
    mine = shared[: src.desc.nbytes // 4]
    mine[:] = np.maximum(src.numpy(), 0).ravel()
    time.sleep(1e-4)
    dst.desc.pack(mine.reshape(src.desc.dims), dst.buffer)

class Planted(Implementation):
    name = "toybackend:planted"

    def accept(self, op, attr, engine, hint):
        op = op.resolve_any(dst=op.src)
        if attr.post_ops:
            return dnn.backend.Refused("attribute", "no post-ops")
        return Accepted(op, lambda: HostFunction({fault}), efficiency=1.0)

with toy.registered(Planted()):
    sys.exit(main(sys.argv[1:]))
"""


def soak(*options, planted=None, timeout=200):
    """The exit status of a short soak, and what it printed."""
    usual = [
        "--seconds=4",
        "--jobs=24",
        "--engines=cpu",
        "--faults=caches,plugins",
        "--patience=40",
    ]
    program = ["-m", "dnncore.testing.soak"]
    if planted:
        program = ["-c", PLANTED.format(support=str(SUPPORT), fault=planted)]
    done = subprocess.run(
        [sys.executable, *program, *usual, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_short_soak_passes():
    status, text = soak()
    assert status == 0, text
    assert "executions, passed" in text
    assert re.search(r"soak: the fault '\w+' was made \d+ times", text), text


@pytest.mark.parametrize(
    ("option", "message"),
    [("--jobs=0", "--jobs: expected a number above 0; got 0"),
     ("--threads=0", "--threads: expected a number above 0; got 0"),
     ("--seconds=-3", "--seconds: expected a number above 0; got -3"),
     ("--seconds=nan", "--seconds: expected a number above 0; got nan"),
     ("--job=24", "--job: expected a number from 0 to 23; got 24"),
     ("--engines=foo", "--engines: unknown engine 'foo'")],
)  # fmt: skip
def test_options_without_meaning_are_refused(capsys, option, message):
    with pytest.raises(SystemExit) as found:
        run.main(["--jobs=24", option])
    assert found.value.code == 2
    assert message in capsys.readouterr().err


def test_a_soak_that_executes_nothing_fails(monkeypatch, capsys):
    monkeypatch.setattr(run, "expected", lambda _job: None)
    assert run.main(["--seconds=1", "--jobs=2", "--engines=cpu"]) == 1
    assert "soak: 0 executions, failed" in capsys.readouterr().out


def test_a_planted_leak_is_found():
    status, text = soak("--seconds=8", planted="leak")
    assert status == 1, text
    assert re.search("soak: blocks of Python grew from .* to .*", text), text


def test_a_planted_hang_is_found():
    status, text = soak("--patience=4", planted="hang")
    assert status == 3
    assert re.search(r"soak: .* hangs for \d+ s in job .*--eltwise", text), text
    assert "in hang" in text  # the stack of the thread
    assert re.search(r"python -m dnncore.testing.soak .*--seed=0 --job=\d+", text)


def test_a_planted_race_is_found_and_its_command_repeats_it():
    status, text = soak(planted="race")
    assert status == 1
    found = re.search(r"other bits than one thread finds; python -m \S+ (.*)", text)
    assert found, text
    status, text = soak(*found[1].split(), "--seconds=4", planted="race")
    assert status == 1
    assert "other bits" in text


def test_a_seed_and_a_number_determine_a_job():
    jobs = [draw(5, number, ["cpu"]) for number in range(60)]
    assert jobs == [draw(5, number, ["cpu"]) for number in range(60)]
    assert len({job.text for job in jobs}) > 50
    assert jobs != [draw(6, number, ["cpu"]) for number in range(60)]
    assert jobs[0].text in str(jobs[0])


def test_most_jobs_are_computed():
    """The reference is not soaked; of the built-in backends' problems few are left out."""
    jobs = [draw(3, number, ["cpu"]) for number in range(24)]
    assert sum(expected(job) is not None for job in jobs) >= 20


@pytest.mark.parametrize("name", TOLERANCES)
def test_growth_is_judged_by_thirds(name):
    """What fills in the first third is no leak; one sample does not decide."""
    level = dict.fromkeys(TOLERANCES, 10**9)

    def samples(*values):
        return [level | {name: 10**9 + value} for value in values]

    more = TOLERANCES[name] + 1
    assert not growth(samples(-(10**8), 0, 0, 0, 0, 0, 0, 0, 0))
    assert not growth(samples(0, 0, 0, 0, 0, 0, 10**8, 0, 0))
    assert len(growth(samples(0, 0, 0, 0, 0, 0, more, more, more))) == 1
    assert len(growth(samples(*(i * more for i in range(9))))) == 1
    assert not growth(samples(0, 0, 0, 0, more))  # too few
