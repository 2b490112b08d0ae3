"""Forks beside threads that import, compile, print or execute; OpenCL in forked children."""

import multiprocessing
import os

import numpy as np
import pytest
from opencl_engine import DEVICES
from processes import run

import dnncore as dnn

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

FORKS = """
    import faulthandler, os, signal, sys, threading, time
    import numpy as np
    import dnncore as dnn
    x = np.ones((40, 30), np.float32)
    def child():
        faulthandler.register(signal.SIGALRM, chain=True)  # a child that hangs prints its stacks
        signal.alarm(60)
        assert (dnn.functional.matmul(x, x.T) == 30).all()
        assert (dnn.functional.square(x) == 1).all()
    def work():
        BESIDE
    thread = threading.Thread(target=work)
    thread.start()
    codes = set()
    while thread.is_alive():
        time.sleep(0.02)
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                child() if CHILD else None
                os._exit(0)
            except BaseException as error:
                print(type(error), error, file=sys.stderr, flush=True)
                os._exit(1)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    thread.join()
    print(codes)
"""
COMPILING = "[getattr(dnn.functional, name)(x) for name in ('exp', 'gelu_erf')]"
BESIDE = {
    "loading plugins": "dnn.backends(), dnn.devices()",
    "opening OpenCL": "dnn.functional.exp(x, engine='opencl') if OPENCL else None",
    "executing": "[dnn.functional.matmul(np.ones((500, 500)), x[:1].T * 0) if 0 else"
    " dnn.functional.matmul(x, x.T) for _ in range(2000)]",
    "compiling": COMPILING,
    "printing verbose lines": "with dnn.set_verbose('all'): dnn.functional.exp(x)",
    "writing records": "import logging; logging.basicConfig(level=logging.DEBUG,"
    " stream=open(os.devnull, 'w')); dnn.functional.exp(x)",
}


def forks(beside, child, folder):
    """Fork again and again beside a thread that does something. Return the children's codes."""
    code = FORKS.replace("BESIDE", beside).replace("CHILD", str(child))
    return run(code.replace("OPENCL", str(bool(DEVICES))), DNNCORE_CACHE_DIR=str(folder))[-1]


@pytest.mark.parametrize("what", BESIDE)
def test_a_fork_beside_a_busy_thread_does_not_hang(what, tmp_path):
    assert forks(BESIDE[what], False, tmp_path) == "{0}"


@pytest.mark.parametrize("what", ["compiling", "loading plugins"])
def test_the_child_of_such_a_fork_computes(what, tmp_path):
    assert forks(BESIDE[what], True, tmp_path) == "{0}"


# -- OpenCL ----------------------------------------------------------------------------------------

USES = {
    "listed": "dnn.devices()",
    "used": "dnn.functional.relu(x, engine='opencl')",
    "holds objects": """
        engine = dnn.engine('opencl')
        stream = engine.stream()
        memory = dnn.Memory.from_numpy(x, engine=engine)
        pd = dnn.PrimitiveDesc(dnn.Reorder(src=memory.desc, dst=memory.desc), engine)
        other = dnn.Memory(memory.desc, engine)
        bound = pd.primitive().bind(src=memory, dst=other)
        event = bound(stream)""",
}
CALLS = {
    "first": "dnn.functional.relu(x, engine='opencl')",
    "list": "print(dnn.devices()[-1].reason)",
    "launch": "bound(stream)",
    "wait": "event.wait()",
    "finish": "stream.wait()",
    "read": "memory.numpy(stream)",
    "allocate": "dnn.Memory(memory.desc, engine)",
    "create": "pd.primitive().bind(src=memory, dst=other)(stream)",
}


@pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")
@pytest.mark.parametrize(
    ("use", "calls"),
    [("listed", ["first", "list"]), ("used", ["first", "list"]), ("holds objects", [*CALLS])],
)
def test_opencl_in_a_child_is_refused_if_the_parent_used_it(use, calls):
    before = "\n".join(line.strip() for line in USES[use].strip().split("\n"))
    code = f"""
import os, signal, sys
import numpy as np
import dnncore as dnn
x = np.ones((3, 4), np.float32)
{before}
pid = os.fork()
if not pid:
    signal.alarm(60)
    for call in {[CALLS[call] for call in calls]!r}:
        try:
            exec(call)
        except dnn.EngineUnavailable as error:
            print(error)
    print((dnn.functional.relu(x) == 1).all(), flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert (dnn.functional.relu(x, engine="opencl") == 1).all()
"""
    *errors, cpu, status = run(code)
    assert (cpu, status) == ("True", "0")
    assert len(errors) == len(calls)
    for error in errors:
        assert "forked after its parent listed or opened OpenCL devices" in error
        assert "'spawn' or 'forkserver'" in error


@pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")
def test_opencl_in_a_child_works_if_the_parent_did_not_use_it():
    code = """
        import os, signal
        import numpy as np
        import dnncore as dnn
        x = np.ones((3, 4), np.float32)
        dnn.functional.relu(x)
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            os._exit(int(dnn.functional.relu(x, engine="opencl").sum() != 12))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert run(code) == ["0"]


def on(engine):
    """A result of an engine in another process."""
    x = np.ones((20, 30), np.float32)
    return float(dnn.functional.matmul(x, x.T, engine=engine).sum())


@pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")
def test_a_pool_of_forked_processes_tells_the_error_too():
    assert on("opencl") == on("cpu") == 12_000
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(on, ["cpu"] * 4).get(60) == [12_000.0] * 4
        with pytest.raises(dnn.EngineUnavailable, match="forkserver"):
            pool.apply_async(on, ["opencl"]).get(60)
