"""The end of the process: beside daemon threads, with living objects, and first use at the end."""

import pytest
from opencl_engine import DEVICES
from processes import run

pytest.importorskip("numba")

ENGINES = ["cpu", *DEVICES[:1]]
BEGIN = """
import atexit, os, sys, threading, time
import numpy as np
import dnncore as dnn
x = np.ones((200, 300), np.float32)
def compute():
    return float(dnn.functional.matmul(x, x.T, engine={engine!r})[0, 0])
"""
ENDS = {
    "beside daemon threads": """
def work():
    while True:
        compute()
compute()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
""",
    "beside daemon threads that create primitives": """
def work(size):
    while True:
        size += 1
        dnn.functional.relu(x[:size % 200 + 1], engine={engine!r})
compute()
for size in (0, 50, 100):
    threading.Thread(target=work, args=(size,), daemon=True).start()
time.sleep(0.5)
""",
    "with living objects": """
engine = dnn.engine({engine!r})
stream = engine.stream()
memory, other = (dnn.Memory.from_numpy(x, engine=engine) for _ in range(2))
desc = memory.desc
op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
bound = dnn.PrimitiveDesc(op, engine).primitive().bind(src=memory, dst=other)
events = [bound(stream) for _ in range(50)]
""",
    "after an error in a thread that is no daemon": """
def work():
    compute()
    sys.exit(3)
threading.Thread(target=work).start()
""",
    "by os._exit in a thread": """
compute()
def work():
    time.sleep(0.2)
    os._exit(0)
threading.Thread(target=work).start()
while True:
    compute()
""",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ENDS)
def test_the_process_ends_without_a_word(engine, how):
    code = (BEGIN + ENDS[how]).format(engine=engine)
    assert run(code) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verbose", ["none", "all"])
def test_the_first_use_may_be_at_the_end(engine, verbose):
    code = BEGIN.format(engine=engine) + "atexit.register(lambda: print(compute()))"
    lines = run(code, DNNCORE_VERBOSE=verbose)
    assert lines[-1] == "300.0"
    assert any("exec" in line for line in lines) == (verbose == "all")


@pytest.mark.parametrize("engine", ENGINES)
def test_functions_at_the_end_compute_beside_daemon_threads(engine):
    end = "atexit.register(lambda: print(compute()))\n" + ENDS["beside daemon threads"]
    assert run((BEGIN + end).format(engine=engine)) == ["300.0"]
