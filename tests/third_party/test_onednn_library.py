"""oneDNN's library: missing, wrong or newer ones, forked processes, the time of the import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.contestants.onednn_packages import NEWEST, newest_environment

pytestmark = pytest.mark.peer

PLUGIN = Path(__file__).parents[2] / "examples" / "third_party_backend"

REGISTERED = """
import dnncore as dnn, dnncore_onednn
dnn.register(dnncore_onednn)
from dnncore.problem import read
def described(text, impl="onednn:*"):
    (problem,) = read(text)
    return dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"), problem.attr, impl=impl)
"""
STATUS = """
(status,) = [row for row in dnn.backends() if row.name == "onednn"]
print(status.status, status.reason)
print(described("--sum --scales=1:1 2x3", impl=None).impl_name)
"""
FORKED = """
import os, sys
import numpy as np
dnn.set_num_threads(2)
pd = described("--conv mb8ic64oc64_ih28kh3ph1")
memories = {name: dnn.Memory(desc) for name, desc in pd.descs.items()}
for memory in memories.values():
    memory.fill(1.0)
call, stream = pd.primitive().bind(**memories), pd.engine.stream()
call(stream)
expected = memories["dst"].numpy().copy()
child = os.fork()
if not child:
    memories["dst"].fill(0.0)
    call(stream)
    other = described("--matmul 64x64:64x64")
    more = {name: dnn.Memory(desc) for name, desc in other.descs.items()}
    for memory in more.values():
        memory.fill(1.0)
    other.primitive().execute(stream, **more)
    right = np.array_equal(memories["dst"].numpy(), expected) and (more["dst"].numpy() == 64).all()
    os._exit(0 if right else 3)
print("child", os.waitpid(child, 0)[1])
call(stream)
"""


@pytest.mark.parametrize("path", ["/nowhere/libdnnl.so", "libm.so.6"])
def test_a_library_that_cannot_be_loaded_makes_the_backend_unavailable(run, path):
    status, selected = run(REGISTERED + STATUS, DNNCORE_ONEDNN_LIBRARY=path).splitlines()
    assert status.startswith(f"unavailable onednn: {path} must be oneDNN 3: ")
    assert status.endswith("set DNNCORE_ONEDNN_LIBRARY to its path")
    assert selected.startswith("cpu_numba:")


def test_a_missing_package_is_named(monkeypatch):
    import dnncore_onednn.library as library

    from dnncore.backend import EngineUnavailable

    monkeypatch.delenv("DNNCORE_ONEDNN_LIBRARY", raising=False)
    monkeypatch.setattr(library, "PACKAGE", "onednn-that-does-not-exist")
    with pytest.raises(EngineUnavailable, match="pip install onednn-that-does-not-exist, or set"):
        library.default()


@pytest.mark.skipif(not NEWEST.is_installed, reason=f"not installed: {NEWEST.how}")
def test_another_version_is_loaded_by_its_path(run):
    text = """
from dnncore_onednn.implementation import LIBRARY
print(LIBRARY.version, LIBRARY.runtime)
pd = described("--matmul --attr-deterministic=true 8x8:8x8")
memories = {name: dnn.Memory(desc) for name, desc in pd.descs.items()}
for memory in memories.values():
    memory.fill(1.0)
pd.primitive().execute(pd.engine.stream(), **memories).wait()
print(memories["dst"].numpy().min(), memories["dst"].numpy().max())
dnn.set_num_threads(1)
try:
    described("--matmul 8x8:8x8")
except dnn.NoImplementation as error:
    print(*[refusal for refusal in error.refusals if refusal.impl_name == "onednn:any"])
"""
    output = run(
        REGISTERED + text, DNNCORE_ONEDNN_LIBRARY=str(NEWEST.library), **newest_environment()
    )
    version, values, refusal = output.splitlines()
    assert version == f"{NEWEST.library_version} SYCL"
    assert values == "8.0 8.0"
    assert "device" in refusal
    assert refusal.endswith("got num_threads 1")


def test_a_forked_process_computes(run):
    assert "child 0" in run(REGISTERED + FORKED)


def test_the_import_is_quick_and_loads_no_library(run):
    text = """
import time, dnncore, dnncore.backend
start = time.perf_counter()
import dnncore_onednn
dnncore_onednn.dnncore_backends()
print(time.perf_counter() - start)
print("dnnl" in open("/proc/self/maps").read())
"""
    seconds, is_loaded = run(text).split()
    assert float(seconds) < 0.05
    assert is_loaded == "False"


def test_the_backend_imports_the_contract_alone():
    for path in (PLUGIN / "dnncore_onednn").glob("*.py"):
        found = re.findall(
            r"^(?:from|import) (dnncore[\w.]*)(?: import (\w+))?", path.read_text(), re.M
        )
        own = [name for name, _ in found if name.startswith("dnncore_onednn")]
        others = {row for row in found if row[0] not in own}
        assert all(row[0] == "dnncore.backend" or row == ("dnncore", "backend") for row in others)


def test_the_costs_of_a_call_are_measured(run):
    text = "import measure_calls; measure_calls.CALLS = 20; measure_calls.main()"
    lines = run(text, OMP_NUM_THREADS="1").splitlines()
    assert len(lines) == 3
    assert all(
        re.search(r"dnncore [\d.]+ us, oneDNN [\d.]+ us, above -?[\d.]+ us$", x) for x in lines
    )
