"""Signal handlers that call dnncore, and KeyboardInterrupt at any place.

A trace function raises KeyboardInterrupt before a line of dnncore. Signals are raised at fewer
places, but they also occur in other libraries.
"""

import gc
import signal
import sys
import threading
import time

import numpy as np
import pytest
from opencl_engine import DEVICES
from processes import run
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.cache import MemoryCache
from dnncore.interrupts import in_main_thread, uninterrupted

pytest.importorskip("numba")

from dnncore_cpu_numba.runtime.pool import pool

CPU = dnn.engine("cpu")
ENGINES = ["cpu", *DEVICES[:1]]


# -- signal handlers -------------------------------------------------------------------------------

HANDLER = """
    import signal, threading
    import numpy as np
    import dnncore as dnn
    engine = {engine!r}
    inside = False
    calls = 0
    def handler(*_):
        global inside, calls
        if inside:  # the next signal comes before the end
            return
        inside = True
        calls += 1
        if calls == 40:  # otherwise a busy machine would do nothing else
            signal.setitimer(signal.ITIMER_REAL, 0)
        x = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
        assert (dnn.functional.relu(x, engine=engine) == np.maximum(x, 0)).all()
        bigger = np.ones((calls % 9 + 1, 5), np.float32)
        assert (dnn.functional.matmul(bigger, bigger.T, engine=engine) == 5).all()
        assert dnn.devices()[0].name == "cpu"
        inside = False
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    errors = []
    def work(start):
        try:
            for size in range(start, start + 12):
                a = np.ones((size, 7), np.float32)
                assert (dnn.functional.matmul(a, a.T, engine=engine) == 7).all()
                assert (dnn.functional.relu(-a, engine=engine) == 0).all()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 30)]
    for thread in threads:
        thread.start()
    work(1)  # the same problems as the first thread, from the first use on
    signal.setitimer(signal.ITIMER_REAL, 0)
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert calls
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_signal_handlers_may_create_and_execute_primitives(engine, tmp_path):
    run(HANDLER.format(engine=engine), DNNCORE_CACHE_DIR=str(tmp_path))


def test_a_handler_may_build_what_its_thread_is_building():
    cache = MemoryCache(4)

    def build():
        signal.raise_signal(signal.SIGUSR1)
        return "outer"

    found = []
    before = signal.signal(
        signal.SIGUSR1, lambda *_: found.append(cache.get("key", lambda: "inner"))
    )
    try:
        assert cache.get("key", build) == "inner"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (found, cache.get("key", build)) == (["inner"], "inner")


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_an_error_of_a_handler_is_no_refusal(kind):
    """It reaches the caller as it is, and no cache keeps it."""

    class Slow(Relu):
        def accept(self, *arguments):
            time.sleep(0.2)
            return super().accept(*arguments)

    def handler(*_):
        raise kind("of the handler")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with registered(Slow("toybackend:slow", 9.0)):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(kind, match="of the handler"):
                dnn.PrimitiveDesc(relu_op((17, 3)), CPU, impl="toybackend:*")
            assert dnn.PrimitiveDesc(relu_op((17, 3)), CPU, impl="toybackend:*").refusals
            assert {row.status for row in dnn.backends() if row.name == "toybackend"} == {"ok"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_user_callbacks_run_in_the_thread_of_the_caller():
    """So they may acquire a lock that the caller holds."""
    code = """
        import threading
        import dnncore as dnn
        from dnncore import observers
        lock = threading.RLock()
        class Locking(observers.Observer):
            def selected(self, *_):
                self._note()
            def raised(self, error):
                self._note()
            def _note(self):
                with lock:
                    print(threading.current_thread() is threading.main_thread())
        observers.add(Locking())
        with lock:
            try:
                dnn.engine("unknown")
            except dnn.BackendNotFound:
                pass
            dnn.functional.relu([1.0])
    """
    assert set(run(code)) == {"True"}


def test_a_logging_handler_may_create_primitives_while_compilers_log(tmp_path):
    code = """
        import logging
        import dnncore as dnn
        class Computing(logging.Handler):
            is_inside = False
            def emit(self, record):
                if not self.is_inside:
                    self.is_inside = True
                    dnn.functional.exp([float(record.lineno)] * (record.lineno % 5 + 1))
                    self.is_inside = False
        logging.basicConfig(level=logging.DEBUG, handlers=[Computing()])
        logging.info("the first use, in a handler")
        dnn.functional.tanh([1.0])
        print("done")
    """
    assert run(code, DNNCORE_CACHE_DIR=str(tmp_path)) == ["done"]


def test_finalizers_do_not_run_in_the_worker():
    worked = []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            worked.append(threading.current_thread().name)

    def make():
        for _ in range(5000):
            Cycle()
        return threading.current_thread().name

    name = uninterrupted(make)
    assert gc.isenabled()
    gc.collect()
    assert name not in worked
    assert len(worked) == 5000


# -- Ctrl-C ----------------------------------------------------------------------------------------


def sweep(use, step, seconds=20.0):
    """Interrupt `use(k)` before its nth line in dnncore, for n = 1, 1 + step, ..., with a new k.

    After each interrupt, this thread and another one call it. Returns the number of interrupts.
    """
    turn, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        lines = 0

        def local(frame, event, argument, last=1 + turn * step):
            nonlocal lines
            lines += event == "line"
            if lines == last:
                sys.settrace(None)
                raise KeyboardInterrupt
            return local

        def trace(frame, event, argument):
            return local if "dnncore" in frame.f_code.co_filename else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            use(turn)
        except KeyboardInterrupt:
            pass
        else:
            return turn
        finally:
            sys.settrace(before)
        errors = []
        thread = threading.Thread(target=_note_error, args=(errors, use, turn), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), f"another thread hangs after line {1 + turn * step}"
        assert not errors, errors
        use(turn)
        turn += 1
    return turn


def _note_error(errors, use, turn):
    try:
        use(turn)
    except BaseException as error:
        errors.append(error)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in generators
@pytest.mark.parametrize("name", ENGINES)
def test_after_an_interrupt_at_any_line_all_works(name):
    engine = dnn.engine(name)

    def use(turn):
        x = np.arange(3 * (turn + 5), dtype=np.float32).reshape(3, -1) - turn
        desc, stream = dnn.MemoryDesc(x.shape), engine.stream()
        src = dnn.Memory.from_numpy(x, engine=engine)
        dst, other = dnn.Memory(desc, engine), dnn.Memory(desc, engine)
        op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        primitive = dnn.PrimitiveDesc(op, engine).primitive()
        primitive.execute(stream, src=src, dst=dst)
        dnn.Sequence([primitive.bind(src=src, dst=other)] * 2)(stream)
        for memory in (dst, other):
            assert (memory.numpy(stream) == np.maximum(x, 0)).all()
        product = dnn.functional.matmul(x[:, :3], x[:, :3].T, engine=engine)
        assert np.allclose(product, x[:, :3] @ x[:, :3].T)

    use(-1)
    assert sweep(use, step=19) > 20


FIRST_USE = """
    import signal, sys, threading
    import numpy as np
    import dnncore as dnn
    x = np.ones((3, 4), np.float32)
    calls = 0
    def trace(frame, event, argument):
        global calls
        if "dnncore" not in frame.f_code.co_filename:
            return None
        calls += 1
        if calls == {last}:
            signal.raise_signal(signal.SIGINT)
        return trace
    sys.settrace(trace)
    try:
        dnn.functional.matmul(x, x.T)
        print("too late")
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    assert {{row.status for row in dnn.backends()}} == {{"ok"}}, dnn.backends()
    assert (dnn.functional.matmul(x, x.T) == 4).all()
"""


@pytest.mark.parametrize("last", [1, 150, 400, 900])
def test_an_interrupt_of_the_first_use_leaves_all_backends(last):
    assert run(FIRST_USE.format(last=last)) == []


def test_an_interrupt_while_a_plugin_is_loaded_leaves_all_backends(tmp_path):
    """Also if the plugin itself raises it."""
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import dnncore as dnn
        from importlib import metadata
        load, loads = metadata.EntryPoint.load, []
        def interrupted(self):
            loads.append(self.name)
            if len(loads) == 2:
                raise KeyboardInterrupt
            return load(self)
        metadata.EntryPoint.load = interrupted
        try:
            dnn.backends()
        except KeyboardInterrupt:
            print("interrupted")
        print(*sorted({{row.status for row in dnn.backends()}}), len(loads) - len(set(loads)))
    """
    assert run(code) == ["interrupted", "ok 1"]


def test_who_waits_for_an_interrupted_build_builds():
    cache, building, go_on = MemoryCache(4), threading.Event(), threading.Event()

    def interrupted():
        building.set()
        go_on.wait()
        raise KeyboardInterrupt

    caught, got = [], []

    def first():
        try:
            cache.get("key", interrupted)
        except KeyboardInterrupt as error:
            caught.append(error)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    building.wait()
    for number in range(3):
        work = threading.Thread(target=lambda n=number: got.append(cache.get("key", lambda: n)))
        threads.append(work)
        work.start()
    time.sleep(0.1)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(caught) == 1
    assert len(got) == 3
    assert len(set(got)) == 1


def test_no_thread_of_the_pool_is_lost_when_its_caller_is_interrupted():
    dnn.set_num_threads(3)
    try:
        desc = dnn.MemoryDesc((1 << 18,))
        op = dnn.EltwiseForward("forward_inference", "exp", src=desc, dst=desc)
        memory = dnn.Memory.from_numpy(np.zeros(desc.dims, np.float32))
        primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    finally:
        dnn.set_num_threads(threading.active_count() and 2)
    bound, stream = primitive.bind(src=memory, dst=dnn.Memory(desc, CPU)), CPU.stream()
    bound(stream)
    everyone = _asleep_in_time(0)
    assert sweep(lambda _: bound(stream), step=1) > 5
    assert _asleep_in_time(everyone) == everyone


def _asleep_in_time(wanted):
    """How many helpers sleep after a while; waits until the number is `wanted` or more."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(0.2)
        if wanted and len(pool().asleep) >= wanted:
            break
        wanted = wanted or len(pool().asleep)
    return len(pool().asleep)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_a_long_program_is_interrupted_between_its_steps(kind):
    size = 512
    desc = dnn.MemoryDesc((size, size))
    half = dnn.Memory.from_numpy(np.full(desc.dims, 1 / size, np.float32))
    x, y = (dnn.Memory.from_numpy(np.ones(desc.dims, np.float32)) for _ in range(2))
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    there = primitive.bind(src=half, weights=x, dst=y)
    back = primitive.bind(src=half, weights=y, dst=x)
    stream, net = CPU.stream(), dnn.Sequence([there, back] * 2000)
    at = []

    def handler(*_):
        there(stream)  # launches of a handler have another scratchpad
        at.append(time.perf_counter())
        raise kind

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.perf_counter()
        with pytest.raises(kind):
            net(stream)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert at[0] - start < 0.2 + 0.5
    dnn.Sequence([there, back] * 3)(stream)
    np.testing.assert_allclose(x.numpy(), 1, rtol=1e-4)


# -- the worker ------------------------------------------------------------------------------------


def test_work_runs_in_the_context_of_its_caller():
    def overflow():
        return np.float32(3e38) * np.float32(10), in_main_thread(), threading.current_thread().name

    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        uninterrupted(overflow)
    with np.errstate(over="ignore"):
        value, is_main, name = uninterrupted(overflow)
    assert (np.isinf(value), is_main, name) == (True, True, "dnncore-worker")


def test_a_module_that_is_being_imported_may_be_a_plugin(tmp_path):
    """The worker must not wait for a module that waits for the worker."""
    (tmp_path / "own_plugin.py").write_text(
        "import sys\n"
        "import dnncore as dnn\n"
        "from dnncore.backend import API_VERSION, Backend, hookimpl\n"
        "@hookimpl\n"
        "def dnncore_backends():\n"
        "    import own_plugin\n"
        "    return Backend('own', API_VERSION)\n"
        "dnn.register(sys.modules[__name__])\n"
        "dnn.functional.relu([1.0])\n"
    )
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import own_plugin
        import dnncore as dnn
        print("own" in [row.name for row in dnn.backends()])
    """
    assert run(code) == ["True"]


def test_work_that_outlives_its_caller_is_finished_at_the_end():
    code = """
        import os, signal, threading, time
        from dnncore.interrupts import uninterrupted
        def work():
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            time.sleep(0.5)
            print("finished", flush=True)
        try:
            uninterrupted(work)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    assert run(code) == ["interrupted", "finished"]


def test_a_child_that_is_forked_by_a_handler_goes_on():
    code = """
        import os, signal, threading, time
        from dnncore.interrupts import uninterrupted
        pids = []
        signal.signal(signal.SIGALRM, lambda *_: pids.append(os.fork()))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        def work():
            time.sleep(0.3)
            return 7
        assert uninterrupted(work) == 7
        if pids[0]:
            print(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
    """
    assert run(code) == ["0"]
