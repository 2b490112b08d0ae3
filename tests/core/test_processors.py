"""The number of threads follows the affinity, the control groups and the usual variables."""

import math
import os
import subprocess
import sys

import pytest

from dnncore.engines import processors
from dnncore.engines.processors import available_processors, quota


def limit(tmp_path, own, **files):
    """The quota of the groups in `own`, where these files exist; `|` stands for `/`."""
    root = tmp_path / "cgroup"
    for name, text in files.items():
        path = root / name.replace("|", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    return quota(root, tmp_path / "own")


def test_the_limit_of_version_2(tmp_path):
    files = {"a|b|cpu.max": "250000 100000\n", "a|cpu.max": "max 100000\n"}
    assert limit(tmp_path, "0::/a/b\n", **files) == 2.5


def test_the_least_limit_of_all_groups_above_holds(tmp_path):
    files = {"a|b|cpu.max": "max 100000\n", "a|cpu.max": "50000 100000\n", "cpu.max": "4 1\n"}
    assert limit(tmp_path, "0::/a/b\n", **files) == 0.5


def test_the_limit_of_version_1(tmp_path):
    files = {"cpu,cpuacct|a|cpu.cfs_quota_us": "300000\n",
             "cpu,cpuacct|a|cpu.cfs_period_us": "100000\n",
             "cpu,cpuacct|cpu.cfs_quota_us": "-1\n",
             "cpu,cpuacct|cpu.cfs_period_us": "100000\n"}  # fmt: skip
    own = "5:memory:/x\n4:cpu,cpuacct:/a\n0::/\n"
    assert limit(tmp_path, own, **files) == 3.0


def test_a_path_that_only_the_host_has(tmp_path):
    files = {"cpu|cpu.cfs_quota_us": "100000\n", "cpu|cpu.cfs_period_us": "100000\n"}
    assert limit(tmp_path, "4:cpu:/docker/4711\n", **files) == 1.0


@pytest.mark.parametrize("text", ["max 100000\n", "", "garbage", "-1 100000", "100000 0", "0 1"])
def test_no_limit(tmp_path, text):
    assert limit(tmp_path, "0::/\n", **{"cpu.max": text}) == math.inf
    assert limit(tmp_path, "0::/elsewhere\n", **{"cpu.max": text}) == math.inf
    assert quota(tmp_path, tmp_path / "missing") == math.inf


@pytest.mark.parametrize(("limit", "count"), [(0.25, 1), (1.0, 1), (math.inf, None)])
def test_a_limit_below_the_affinity_counts_and_is_rounded_up(limit, count, monkeypatch):
    usual = available_processors()
    monkeypatch.setattr(processors, "_own_quota", lambda: limit)
    assert available_processors() == (count or usual)


def threads(code="", **environment):
    """The number of threads in a new process."""
    program = f"""
import os
{code}
import dnncore as dnn
print(dnn.get_num_threads())
"""
    usual = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run([sys.executable, "-c", program], env=usual | environment, timeout=60,
                         capture_output=True, text=True, check=True)  # fmt: skip
    return int(run.stdout)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_the_affinity():
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    assert threads(one) == 1
    assert threads(one, DNNCORE_NUM_THREADS="3") == 3


def test_the_variables():
    assert threads(OMP_NUM_THREADS="1") == 1
    assert threads(OMP_NUM_THREADS="1,4") == 1
    assert threads(OMP_NUM_THREADS="1", DNNCORE_NUM_THREADS="2") == 2
    usual = threads()
    assert threads(OMP_NUM_THREADS="\u0661") == usual  # a digit of another script
    assert threads(OMP_NUM_THREADS="4096") == usual
    assert threads(OMP_NUM_THREADS="many") == usual
    assert threads(OMP_NUM_THREADS="0") == usual


MANY_THREADS = """
import threading, time
import numpy as np
import dnncore as dnn

desc = dnn.MemoryDesc((256, 1000))
op = dnn.SoftmaxForward("forward_inference", "accurate", src=desc, dst=desc, axis=1)
x = dnn.Memory.from_numpy(np.ones(desc.dims, np.float32))
y = dnn.Memory(desc)
stream = dnn.engine("cpu").stream()
calls = []
for count in (2, 64):
    dnn.set_num_threads(count)
    pd = dnn.PrimitiveDesc(op, impl="cpu_numba:*")
    calls.append(pd.primitive().bind(src=x, dst=y))
best = [1.0, 1.0]
for _ in range(60):
    for i, call in enumerate(calls):
        start = time.perf_counter()
        for _ in range(3):
            call(stream)
        best[i] = min(best[i], time.perf_counter() - start)
helpers = sum(thread.name == "dnncore" for thread in threading.enumerate())
print(best[1] / best[0], helpers)
"""


def test_more_threads_than_processors_do_no_harm():
    """There is one helper for each processor but the caller's."""
    run = subprocess.run([sys.executable, "-c", MANY_THREADS], timeout=100, check=True,
                         capture_output=True, text=True)  # fmt: skip
    ratio, helpers = map(float, run.stdout.split())
    assert helpers <= max(1, available_processors() - 1)
    assert ratio < 1.5  # with 63 helpers on two processors it was 3.9
