"""The runtime of the CPU backend: tasks, programs, the driver, threads and the store of code."""

import os
import platform
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import types

import numpy as np
import pytest

import dnncore as dnn
from dnncore.store import DiskStore

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, Loop, Nest
from dnncore_cpu_numba.codegen.pointers import (
    load_f32,
    load_i64,
    store_f32,
    store_i64,
)
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.runtime import pool as pool_module
from dnncore_cpu_numba.runtime.driver import STATE
from dnncore_cpu_numba.runtime.pool import pool
from dnncore_cpu_numba.runtime.program import Arg, Program, Scratch, Step, Table, repeated

CPU = dnn.engine("cpu")


@task(Record("scale", ("dst src", "address"), ("factor", "float32")))
def scale(params, begin, end):
    """dst[i] = factor * src[i]"""
    dst, src, factor = params.dst, params.src, params.factor
    for i in range(begin, end):
        store_f32(dst, i, factor * load_f32(src, i))


@task(Record("look_up", ("dst table", "address"), ("offset", "count")))
def look_up(params, begin, end):
    """dst[i] = table[i] + offset"""
    dst, table, offset = params.dst, params.table, params.offset
    for i in range(begin, end):
        store_i64(dst, i, load_i64(table, i) + offset)


DST = Record("dst", ("dst", "address"))


@task(DST)
def count_parts(params, begin, end):
    """dst[begin] = the items of the part that begins there"""
    store_i64(params.dst, begin, end - begin)


@task(DST)
def add_one(params, begin, end):
    """dst[i] += 1"""
    dst = params.dst
    for i in range(begin, end):
        store_i64(dst, i, load_i64(dst, i) + 1)


@task(DST)
def cannot_compile(params, begin, end):
    """Asks a number for what only text has."""
    store_i64(params.dst, begin, end.upper())


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """These tasks are no part of the backend, whose sources are the key of the real store."""
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "_store", DiskStore("cpu_numba"))


def memory(values):
    return dnn.Memory.from_numpy(np.ascontiguousarray(values), engine=CPU)


def scaled(dst, src, factor, items):
    """The step dst = factor * src."""
    return Step(scale, {"dst": dst, "src": src, "factor": factor}, items)


def execute(steps, *memories, scratchpad=None, num_threads=2):
    return Program(lambda: steps, num_threads).bind(memories, scratchpad)(CPU.stream())


# -- programs --------------------------------------------------------------------------------------


def test_parameters_of_every_kind_arrive():
    src, dst = memory(np.arange(9, dtype=np.float32)), memory(np.zeros(9, np.float32))
    assert execute([scaled(Arg(1), Arg(0), 0.5, 9)], src, dst).done
    assert (dst.numpy() == src.numpy() / 2).all()
    execute([scaled(Arg(1, 8), Arg(0, 4), -1.0, 7)], src, dst)
    assert (dst.numpy()[2:] == -src.numpy()[1:8]).all()
    integers = memory(np.zeros(3, np.int64))
    table = Table(np.array([10, 20, 30]))
    execute([Step(look_up, {"dst": Arg(0), "table": table, "offset": -1}, 3)], integers)
    assert integers.numpy().tolist() == [9, 19, 29]


def test_steps_follow_each_other_through_the_scratchpad():
    n = 1000
    src, dst = memory(np.arange(n, dtype=np.float32)), memory(np.zeros(n, np.float32))
    steps = [
        scaled(Scratch(64), Arg(0), 2.0, n),
        scaled(Arg(1), Arg(0), 9.0, 0),  # has no items and vanishes
        scaled(Arg(1), Scratch(64), 2.0, n),
    ]
    program = Program(lambda: steps, 2)
    assert program.rows == 2
    program.bind([src, dst], np.zeros(4 * n + 64, np.uint8))(CPU.stream())
    assert (dst.numpy() == 4 * src.numpy()).all()
    assert Program(list, 2).bind([], None)(CPU.stream()).done


@pytest.mark.parametrize(
    ("items", "threads", "options", "parts"),
    [
        (10, 1, {}, [10]),
        (10, 2, {}, [5, 5]),
        (1, 2, {}, [1]),
        (10, 2, {"grain": 6}, [10]),
        (10, 2, {"grain": 5}, [5, 5]),
        (10, 2, {"max_parts": 1}, [10]),
        (10, 2, {"max_parts": 4}, [2, 3, 2, 3]),
        (3, 2, {"max_parts": 99}, [1, 1, 1]),
    ],
)
def test_items_are_cut_into_parts(items, threads, options, parts):
    dst = memory(np.zeros(items, np.int64))
    execute([Step(count_parts, {"dst": Arg(0)}, items, **options)], dst, num_threads=threads)
    assert [n for n in dst.numpy().tolist() if n] == parts


@pytest.mark.parametrize("times", [range(0), range(2), range(5), range(4, -1, -1), [1, 3, 5, 7]])
def test_repeated_steps_move(times):
    table = np.float32([2])

    def steps(time):
        copied = scaled(Scratch(64), Arg(0, 12 * time), 3.0, 3)
        from_table = scaled(Scratch(64), Table(table.copy()), 1.0, 1)
        nothing = scaled(Arg(1), Arg(0), 9.0, 0)
        return [copied, nothing, from_table, scaled(Arg(1, 12 * time), Scratch(64), 0.5, 3)]

    src, dst = memory(np.arange(1, 25, dtype=np.float32)), memory(np.zeros(24, np.float32))
    program = Program(lambda: [*repeated(times, steps), scaled(Arg(1, 92), Arg(0), 7.0, 1)], 2)
    assert program.rows == 3 * len(times) + 1
    program.bind([src, dst], np.zeros(128, np.uint8))(CPU.stream())
    expected = np.zeros((8, 3), np.float32)
    for place in times:
        expected[place] = 1.5 * src.numpy().reshape(8, 3)[place]
        expected[place, 0] = 1
    expected[7, 2] = 7
    assert (dst.numpy() == expected.ravel()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda time: scaled(Arg(time), Arg(0), 2.0, 1), "is Arg.*, then Arg"),
        (lambda time: scaled(Arg(1), Table(np.float32([time])), 2.0, 1), "is Table"),
        (lambda time: scaled(Arg(1), Arg(0), 1.0 + time, 1), "is 1065353216, then"),
        (lambda time: scaled(Arg(1, time * time), Arg(0), 2.0, 1), "at last Arg"),
        (lambda time: scaled(Arg(1), Arg(0), 2.0, 1 + time), "other items"),
    ],
)
def test_repeated_steps_change_only_their_numbers(change, message):
    with pytest.raises(CallMismatch, match=message):
        repeated(range(6), lambda time: [change(time)])


def test_a_chain_is_one_program():
    n = 5000
    x, y = memory(np.ones(n, np.float32)), memory(np.zeros(n, np.float32))
    program = Program(lambda: [scaled(Arg(1), Arg(0), 2.0, n)], 2)
    there, back = program.bind([x, y], None), program.bind([y, x], None)
    chain = Program.chain([there, back, Program.chain([there, back])])
    assert chain.rows == 4
    chain(CPU.stream())
    assert (x.numpy() == 16).all()
    desc = dnn.MemoryDesc((n,))
    op = dnn.Sum((2.0,), srcs=(desc,), dst=desc)
    double = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    net = dnn.Sequence([double.bind(src0=x, dst=y), double.bind(src0=y, dst=x)])
    net(CPU.stream())
    assert (x.numpy() == 64).all()
    assert len(net._attached[2]) == 1


def test_events_are_waited_for_and_timed():
    waited = []

    class Other(dnn.Event):
        def wait(self, timeout=None):
            waited.append(timeout)

    x = memory(np.ones(64, np.float32))
    run = Program(lambda: [scaled(Arg(0), Arg(0), 2.0, 64)], 2).bind([x], None)
    event = run(CPU.stream(), [Other(), Other()])
    assert len(waited) == 2
    assert event.start is None
    timed = run(CPU.stream(profiling=True))
    assert timed.start is not None
    assert timed.end is not None
    assert timed.start < timed.end


@pytest.mark.parametrize("profiling", [False, True])
def test_a_long_program_runs_to_its_end(profiling):
    """Signal handlers run in between."""
    items, steps = 1 << 16, 40_000  # more than 100 ms; a program returns after 67 at most
    x = memory(np.zeros(items, np.int64))
    step = Step(add_one, {"dst": Arg(0)}, items)
    run = Program(lambda: [step] * steps, 1).bind([x], None)
    begin = time.perf_counter()
    event = run(CPU.stream(profiling=profiling))
    elapsed = time.perf_counter() - begin
    assert (x.numpy() == steps).all()
    if profiling:
        assert event.start is not None
        assert event.end is not None
        assert elapsed >= event.end - event.start > 0.5 * elapsed > 0.005


def test_a_bound_call_keeps_its_memories_and_tables():
    integers = memory(np.zeros(500, np.int64))
    table = np.arange(500)
    step = Step(look_up, {"dst": Arg(0), "table": Table(table), "offset": 0}, 500)
    run = Program([step].copy, 2).bind([integers], None)
    address = integers.address
    del table, integers, step
    junk = [np.full(500, -1) for _ in range(50)]
    run(CPU.stream())
    kept = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * 500).from_address(address))
    assert (kept == np.arange(500)).all()
    assert len(junk) == 50


# -- threads ---------------------------------------------------------------------------------------


def test_python_threads_may_share_a_bound_call():
    desc = dnn.MemoryDesc((100_000,))
    src = memory(np.full(desc.dims, 2, np.float32))
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=3.0)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    results = [dnn.Memory(desc, CPU) for _ in range(3)]
    calls = [primitive.bind(src=src, dst=dst) for dst in (*results, results[0])]

    def work(call):
        stream = CPU.stream()
        for _ in range(200):
            call(stream)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((dst.numpy() == 6).all() for dst in results)


@pytest.mark.parametrize("parts", [2, 3, 7, 64])
def test_every_part_runs_once_whoever_claims_it(parts, processors):
    """Four callers compete for the pool; each counts how often each of its items was computed."""
    rounds, items = 3000, 64
    counters = [memory(np.zeros(items, np.int64)) for _ in range(4)]
    program = Program(lambda: [Step(add_one, {"dst": Arg(0)}, items, max_parts=parts)], 4)
    net = [Program.chain([program.bind([c], None)] * 3) for c in counters]

    def work(call):
        for _ in range(rounds):
            call(CPU.stream())

    threads = [threading.Thread(target=work, args=(call,)) for call in net]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for counter in counters:
        assert (counter.numpy() == 3 * rounds).all()


@pytest.fixture
def processors(monkeypatch):
    """Let the pool have helpers for four processors, whatever this machine has."""
    monkeypatch.setattr(pool_module, "available_processors", lambda: 4)


@pytest.mark.parametrize("moves", ["away", "nowhere", "never"])
def test_helpers_fall_asleep_and_wake(processors, moves, monkeypatch):
    """A caller moves helpers to other processors, unless there are none or it does not know."""
    if moves == "never":
        monkeypatch.setattr(pool_module, "_current_cpu", None)
    elif moves == "nowhere":
        monkeypatch.setattr(pool_module, "_current_cpu", lambda: 3)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    x = memory(np.zeros(1 << 16, np.int64))
    run = Program(lambda: [Step(add_one, {"dst": Arg(0)}, 1 << 16)], 3).bind([x], None)
    for _ in range(3):
        run(CPU.stream())
        end = time.monotonic() + 30
        while len(pool().asleep) < 2:
            assert time.monotonic() < end, "the helpers do not fall asleep"
            time.sleep(0.001)
    assert (x.numpy() == 3).all()


def test_a_program_of_one_thread_wakes_no_helper(monkeypatch):
    woken = []
    sleeping = [types.SimpleNamespace(wake=lambda: woken.append(1)) for _ in range(3)]
    monkeypatch.setattr(pool(), "asleep", sleeping)
    pool().wake(0)
    assert not woken
    pool().wake(2)
    assert len(woken) == 2


def test_helpers_wait_longer_for_the_next_step_than_for_the_next_program():
    state = np.zeros(STATE.nbytes // 8, np.int64)
    running = STATE.field("running").slot

    def waited():
        start = time.perf_counter()
        pool()._wait_for_work(state.ctypes.data, 2000)
        return time.perf_counter() - start

    between = min(waited() for _ in range(9))
    state[running] = 1
    assert waited() > 8 * between  # 64 times as many checks


@pytest.mark.parametrize(("steps", "running"), [(1, 0), (2, 1)])
def test_a_program_of_several_steps_says_that_it_runs(steps, running):
    word = pool().state + 8 * STATE.field("running").slot
    seen = memory(np.full(1, 7, np.int64))
    step = Step(look_up, {"dst": Arg(0), "table": Table(np.zeros(1)), "offset": 0}, 1)
    last = Step(look_up, {"dst": Arg(0), "table": word, "offset": 0}, 1)
    execute([step] * (steps - 1) + [last], seen)
    assert seen.numpy().tolist() == [running]
    execute([last], seen)
    assert seen.numpy().tolist() == [0]


def test_a_thread_that_waited_for_the_pool_makes_no_other_one():
    own = pool()
    pool_module._make()
    assert pool_module._made == [own]


def test_nothing_is_allocated_by_a_run():
    desc = dnn.MemoryDesc((64, 33, 7), "f32", "aBc16b")
    src, dst = (dnn.Memory(desc, CPU) for _ in range(2))
    src.fill(0.5)
    relu = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    softmax = dnn.SoftmaxForward("forward_inference", "log", src=desc, dst=desc, axis=1)
    calls = [
        dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive().bind(src=src, dst=dst)
        for op in (relu, softmax)
    ]
    calls.append(dnn.Sequence(calls))
    stream = CPU.stream()
    for call in calls:
        call(stream)
    # tracemalloc counts all threads, so a few kB of other threads' work are in the figures. One
    # object kept by each run would be 72 kB or more; a copy of a tensor would be 59 kB.
    kept, peaks = zip(*(traced_growth(calls, stream) for _ in range(3)), strict=True)
    assert min(kept) < 16_000
    assert min(peaks) < 24_000


def traced_growth(calls, stream):
    """Bytes kept after 1000 rounds of `calls`, and bytes at the peak."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            for call in calls:
                call(stream)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - before


# -- the store -------------------------------------------------------------------------------------


USE_EVERYTHING = """
    import threading
    import numpy as np
    import dnncore as dnn
    cpu = dnn.engine("cpu")
    desc = dnn.MemoryDesc((4, 20, 30, 30), "f32", "nChw16c")
    plain = dnn.MemoryDesc((4, 20, 30, 30), "f32", "nchw")
    array = np.random.default_rng(0).standard_normal(desc.dims, np.float32)
    stream = cpu.stream()
    x = dnn.reorder(dnn.Memory.from_numpy(array), desc)
    def softmax():
        y = dnn.Memory(desc, cpu)
        for op in (dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc),
                   dnn.SoftmaxForward("forward_training", "accurate", src=desc, dst=desc, axis=1)):
            pd = dnn.PrimitiveDesc(op, cpu, impl="cpu_numba:*")
            pd.primitive().execute(stream, src=x, dst=y)
        e = np.exp(array - array.max(1, keepdims=True))
        assert np.allclose(dnn.reorder(y, plain).numpy(), e / e.sum(1, keepdims=True), atol=1e-6)
    threads = [threading.Thread(target=softmax) for _ in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    softmax()
"""
STATISTICS = """
    counts = dnn.cache.stats()
    print(counts["compiled"], counts["from_disk"])
"""


def run_python(code, folder, **environment):
    """Run code in a process of its own; returns the words that it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "DNNCORE_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_without_numba_the_backend_is_unavailable(tmp_path):
    code = """
        import importlib.util
        find_spec = importlib.util.find_spec
        importlib.util.find_spec = lambda n, *rest: None if n == "numba" else find_spec(n, *rest)
        import dnncore as dnn
        status = {b.name: b for b in dnn.backends()}["cpu_numba"]
        print(status.status, status.reason)
    """
    words = run_python(code, tmp_path)
    assert words[0] == "unavailable"
    assert " ".join(words[1:]).endswith("pip install numba")


def test_importing_compiles_nothing(tmp_path):
    code = """
        import importlib, pkgutil
        import dnncore as dnn
        import dnncore_cpu_numba
        for module in pkgutil.walk_packages(dnncore_cpu_numba.__path__, "dnncore_cpu_numba."):
            importlib.import_module(module.name)
    """
    assert run_python(code + textwrap.indent(STATISTICS, "    "), tmp_path) == ["0", "0"]


def test_a_second_process_compiles_nothing_and_damage_is_a_miss(tmp_path):
    compiled, loaded = map(int, run_python(USE_EVERYTHING + STATISTICS, tmp_path))
    assert compiled > 0
    assert loaded == 0
    assert run_python(USE_EVERYTHING + STATISTICS, tmp_path) == ["0", str(compiled)]
    files = sorted((tmp_path / "cpu_numba").iterdir())
    assert len(files) == compiled
    symbols = [b"NRT_", b"Py_", b"PyErr"]  # numba's allocator and Python's interface
    assert not any(symbol in file.read_bytes() for file in files for symbol in symbols)
    content = bytearray(files[0].read_bytes())
    content[len(content) // 2] ^= 0xFF
    files[0].write_bytes(content)
    files[1].write_bytes(files[1].read_bytes()[:-100])
    files[2].write_bytes(b"")
    expected = ["3", str(compiled - 3)]
    assert run_python(USE_EVERYTHING + STATISTICS, tmp_path) == expected
    assert run_python(USE_EVERYTHING + STATISTICS, tmp_path) == ["0", str(compiled)]


def test_a_forked_child_works(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """
        import os
        import numpy as np
        import dnncore as dnn
        cpu = dnn.engine("cpu")
        desc = dnn.MemoryDesc((100_000,))
        x = dnn.Memory.from_numpy(np.ones(desc.dims, np.float32))
        op = dnn.Sum((2.0,), srcs=(desc,), dst=desc)
        double = dnn.PrimitiveDesc(op, cpu, impl="cpu_numba:*").primitive().bind(src0=x, dst=x)
        double(cpu.stream())
        child = os.fork()
        double(cpu.stream())
        if not child:
            os._exit(int(x.numpy()[-1]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(x.numpy()[-1]))
    """
    assert run_python(code, tmp_path)[-2:] == ["4", "4"]


# -- errors ----------------------------------------------------------------------------------------


def test_errors_of_translations_are_wrapped():
    with pytest.raises(dnn.BuildError, match=r"cannot compile task .*cannot_compile: Unknown attr"):
        Program(lambda: [Step(cannot_compile, {"dst": 0}, 1)], 1)


def test_llvms_errors_are_wrapped():
    with pytest.raises(dnn.BuildError, match="LLVM refuses dnncore_nonsense"):
        native.function("nonsense", lambda symbol: f"define {symbol}")


def test_an_object_without_its_function_is_an_error(monkeypatch):
    other = native._emit("other", "define void @other() { ret void }", BEST)
    monkeypatch.setattr(native._store, "get", lambda _key: other)
    with pytest.raises(dnn.BuildError, match="missing is not in its own object; clear the disk"):
        native.function("missing", lambda symbol: f"define void @{symbol}() {{ ret void }}")


def test_a_nest_of_too_many_loops_is_refused():
    nest = Nest((0,), (Loop(2, (1,)),) * (MAX_LOOPS + 1))
    with pytest.raises(dnn.BuildError, match=f"at most {MAX_LOOPS} loops; got {MAX_LOOPS + 1}"):
        nest.table([4])


def test_the_driver_stays_loaded_when_the_first_program_is_freed():
    """Else the second program would run unloaded code and end the process."""
    program = """
import collections, gc
import numpy as np
import dnncore as dnn
from dnncore_cpu_numba.codegen import native

native._recent = collections.deque(maxlen=0)  # unload what no program uses
for algorithm in ("abs", "square", "abs"):
    dnn.cache.primitives.clear()
    gc.collect()
    print(getattr(dnn.functional, algorithm)(np.float32([-3])))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["[3.]", "[9.]", "[3.]"]), done.stderr


FLUSHED = """
    import ctypes, sys
    import numpy as np
    import dnncore as dnn

    dnn.set_num_threads(2)
    desc = dnn.MemoryDesc((512, 4096))
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    call = dnn.PrimitiveDesc(op, impl="cpu_numba:*").primitive()
    memories = {"src": dnn.Memory(desc), "dst": dnn.Memory(desc)}
    memories["src"].numpy()[:] = np.float32(2.0**-140)
    run, stream = call.bind(**memories), dnn.engine().stream()
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    usual = environment[7]
    environment[7] |= int(sys.argv[1], 16)
    libm.fesetenv(environment)
    for _ in range(5):
        run(stream).wait()
    libm.fegetenv(environment)
    print(hex(environment[7] & ~0x3F ^ usual & ~0x3F))  # without the flags of exceptions
    environment[7] = usual
    libm.fesetenv(environment)
    print(np.unique(memories["dst"].numpy().view(np.uint32)))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the program writes x86's control word by the libm of Linux",
)
@pytest.mark.parametrize("bits", ["0x8040", "0x2000"], ids=["flushing", "rounding down"])
def test_the_callers_control_of_arithmetic_has_no_effect_and_is_kept(bits):
    program = [sys.executable, "-c", textwrap.dedent(FLUSHED), bits]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:2] == [bits, f"[{2**9}]"]
