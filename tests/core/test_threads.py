"""Threads of the CPU: how many there are, many callers at once, and what lives after a fork."""

import multiprocessing
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import dnncore as dnn
from dnncore.engines import threads

pytest.importorskip("numba")

CPU = dnn.engine("cpu")


@pytest.fixture(autouse=True)
def usual_number():
    """Put back the number of threads."""
    usual = dnn.get_num_threads()
    yield
    dnn.set_num_threads(usual)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One store of compiled code for several processes, empty at first."""
    return tmp_path_factory.mktemp("store")


def run_python(code, folder=None, **environment):
    """Run code in a process of its own; returns what it printed."""
    settings = {"DNNCORE_CACHE_DIR": str(folder)} if folder else {}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **settings, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def product():
    """A matrix product that is worth several threads, bound, and the right answer."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (256, 256)).astype(np.float32) for _ in range(2))
    desc = dnn.MemoryDesc(a.shape)
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    dst = dnn.Memory(desc, CPU)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    src, weights = map(dnn.Memory.from_numpy, (a, b))
    return primitive.bind(src=src, weights=weights, dst=dst), dst, a @ b


def parts_of(bound):
    """The most parts that a step of a bound program of this backend is cut into."""
    return bound.primitive.executable._helpers + 1


# -- the number ------------------------------------------------------------------------------------


def test_the_number_holds_for_what_is_made_later():
    dnn.set_num_threads(3)
    assert (dnn.get_num_threads(), CPU.num_threads) == (3, 3)
    three, dst, expected = product()
    dnn.set_num_threads(1)
    one, *_ = product()
    assert (parts_of(three), parts_of(one)) == (3, 1)
    three(CPU.stream())
    np.testing.assert_array_equal(dst.numpy(), expected)


def test_a_descriptor_keeps_its_number_until_it_is_built():
    dnn.set_num_threads(3)
    desc = dnn.MemoryDesc((1024, 1023))
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    pd = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*")
    dnn.set_num_threads(2)
    other = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*")
    assert pd != other
    assert [p.primitive().executable._helpers for p in (pd, other)] == [2, 1]


def test_of_equal_numbers_one_program_is_shared():
    dnn.set_num_threads(2)
    first, *_ = product()
    dnn.set_num_threads(3)
    dnn.set_num_threads(2)
    assert product()[0].primitive.executable is first.primitive.executable


@pytest.mark.parametrize("count", [0, -1, 1_000_000, 1.5, "2", None, True, float("nan")])
def test_what_is_no_number_of_threads_is_refused(count):
    with pytest.raises(dnn.DescriptorError, match=r"whole number from 1 to 1024; got ") as info:
        dnn.set_num_threads(count)
    assert repr(count) in str(info.value)
    with pytest.raises(dnn.DescriptorError):
        CPU.num_threads = count


def test_numpys_integers_are_numbers_too():
    dnn.set_num_threads(np.int64(2))
    assert type(dnn.get_num_threads()) is int


@pytest.mark.parametrize("text", ["0", "-1", "1000000", "two", "1.5", "\u0663"])
def test_the_variable_is_checked(text, monkeypatch):
    monkeypatch.setenv("DNNCORE_NUM_THREADS", text)
    monkeypatch.setattr(threads, "_state", threads._State())
    with pytest.raises(dnn.DescriptorError, match=r"DNNCORE_NUM_THREADS must be a whole number"):
        dnn.get_num_threads()
    dnn.set_num_threads(2)
    assert dnn.get_num_threads() == 2


def test_as_many_threads_as_are_allowed_compute():
    dnn.set_num_threads(threads.MOST)
    bound, dst, expected = product()
    bound(CPU.stream())
    np.testing.assert_array_equal(dst.numpy(), expected)


@pytest.mark.parametrize("ending", [False, True])
def test_without_new_threads_the_caller_does_the_work(ending):
    """It warns, but not at the end of the process, when there are no new threads anyway."""
    code = f"""
        import threading, types, warnings
        import numpy as np
        import dnncore as dnn
        def start(self):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = start
        if {ending}:
            ended = types.SimpleNamespace(is_alive=lambda: False)
            threading.main_thread = lambda: ended
        dnn.set_num_threads(2)
        x = np.ones((512, 512), np.float32)
        with warnings.catch_warnings(record=True) as caught:
            assert (dnn.functional.matmul(x, x) == 512).all()
        print(*(warning.message for warning in caught))
    """
    message = "cpu_numba: a thread less: can't start new thread"
    assert run_python(code) == ("" if ending else message)


# -- many callers ----------------------------------------------------------------------------------

EIGHT = """
    import sys, threading
    import numpy as np
    import dnncore as dnn
    sys.setswitchinterval(1e-5)
    cpu = dnn.engine("cpu")
    start = threading.Barrier(8)
    errors = []
    def work(count):
        try:
            rng = np.random.default_rng(count)
            start.wait()
            for turn in range(20):
                dnn.set_num_threads(1 + (count + turn) % 8)
                a = rng.integers(-4, 5, (64 + turn, 48)).astype(np.float32)
                b = rng.integers(-4, 5, (48, 80)).astype(np.float32)
                assert (dnn.functional.matmul(a, b) == a @ b).all(), "matmul"
                assert (dnn.functional.relu(a) == np.maximum(a, 0)).all(), "relu"
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not errors, errors
    print("right")
"""


@pytest.mark.parametrize("layer", ["workqueue", "omp", "default"])
def test_eight_threads_with_other_numbers_whatever_numbas_layer(layer, folder):
    assert run_python(EIGHT, folder, NUMBA_THREADING_LAYER=layer) == "right"


# -- after a fork ----------------------------------------------------------------------------------

BESIDE = """
    import os, signal, threading, time, traceback
    import numpy as np
    import dnncore as dnn
    cpu = dnn.engine("cpu")
    dnn.set_num_threads(2)
    x = np.ones((300, 300), np.float32)
    end = threading.Event()
    NAMES = ("exp", "tanh", "elu", "logistic", "mish", "gelu_erf", "log", "gelu_tanh")
    def compute():
        size = 0
        while not end.is_set():
            size += 1
            BUSY
    def child():
        signal.alarm(60)
        y = np.arange(12, dtype=np.float32).reshape(3, 4)
        assert (dnn.functional.matmul(x, x) == 300).all()
        assert (dnn.functional.square(y) == y * y).all()
        with dnn.set_verbose("none"):
            assert np.allclose(dnn.functional.softmax(y, axis=1).sum(1), 1)
    dnn.functional.matmul(x, x)
    thread = threading.Thread(target=compute)
    thread.start()
    codes = []
    for turn in range(8):
        time.sleep(0.003 * turn)
        pid = os.fork()
        if not pid:
            try:
                child()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert thread.is_alive()
    end.set()
    thread.join()
    print(codes)
"""
BUSY = {
    "computing": "dnn.functional.matmul(x, x)",
    "creating": "dnn.functional.matmul(x[:size % 300 + 1], x)",
    "compiling": "getattr(dnn.functional, NAMES[size % len(NAMES)])(x)",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("what", BUSY)
def test_a_child_works_that_is_forked_beside_a_busy_thread(what, folder):
    code = BESIDE.replace("BUSY", BUSY[what])
    assert run_python(code, folder) == str([0] * 8)


def in_a_process(results, size):
    """Compute a product and put the sum of its elements into a queue."""
    x = np.ones((size, size), np.float32)
    results.put(float(dnn.functional.matmul(x, x).sum()))


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_of_multiprocessing_work(method):
    context = multiprocessing.get_context(method)
    bound, dst, expected = product()
    bound(CPU.stream())
    results, sizes = context.Queue(), (64, 128, 192)
    processes = [context.Process(target=in_a_process, args=(results, n)) for n in sizes]
    for process in processes:
        process.start()
    bound(CPU.stream())
    assert sorted(results.get(timeout=100) for _ in processes) == [
        64.0**3 * n**3 for n in (1, 2, 3)
    ]
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    np.testing.assert_array_equal(dst.numpy(), expected)


def test_a_fork_waits_for_who_is_at_work(tmp_path):
    """Locks that are held at a fork by another thread are free in the child, and whole."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """
        import os, threading, time
        from dnncore.forking import hold_at_fork
        lock = threading.Lock()
        hold_at_fork(lock)
        done = []
        def work():
            with lock:
                started.set()
                time.sleep(0.3)
                done.append(1)
        started = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        pid = os.fork()
        if not pid:
            os._exit(len(done) + 2 * lock.locked())
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lock.locked())
    """
    assert run_python(code, tmp_path) == "1 False"


def test_what_another_thread_was_building_is_built_anew_in_a_child(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """
        import os, signal, threading
        from dnncore.cache import MemoryCache
        cache = MemoryCache(4)
        building, go_on = threading.Event(), threading.Event()
        def build():
            building.set()
            go_on.wait()
            return "parent's"
        thread = threading.Thread(target=cache.get, args=("key", build))
        thread.start()
        building.wait()
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            os._exit(cache.get("key", lambda: 7))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        go_on.set()
        thread.join()
        print(cache.get("key", lambda: 7))
    """
    assert run_python(code, tmp_path) == "7\nparent's"
