"""The engine whose memory and kernels are in another process, and what happens when this ends."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import dnncore_remote
import numpy as np
import pytest
from dnncore_remote import engine as remote_engine

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case

WAIT = 30.0  # seconds in which each wait must end
LOST = r"exit status -9.*open the engine again with dnncore.engine\('remote:0'\)"


@pytest.fixture
def engine():
    dnn.register(dnncore_remote)
    yield dnn.engine("remote")
    dnn.unregister(dnncore_remote)


def relu(engine, values):
    """Return a bound call with its memories."""
    src = dnn.Memory.from_numpy(np.asarray(values, np.float32), engine=engine)
    dst = dnn.Memory(src.desc, engine)
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=src.desc)
    return dnn.PrimitiveDesc(op, engine).primitive().bind(src=src, dst=dst), dst


def computes(engine):
    call, dst = relu(engine, [-1, 2])
    call(engine.stream()).wait(WAIT)
    return dst.numpy().tolist() == [0, 2]


def suspend(engine):
    """Let the device process begin no more commands."""
    os.kill(engine.native.pid, signal.SIGSTOP)


def kill(engine):
    os.kill(engine.native.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "text",
    [
        "--eltwise --alg=tanh --tag=acb 2x17x3",
        "--eltwise --dir=BWD_D --alg=logistic 2x17x3",
        "--binary --alg=max 2x17x3:2x1x3",
        "--matmul --bia-dt=f32 3x5:5x7",
        "--reorder --stag=abc --dtag=cab 2x5x3",
    ],
)
def test_a_part_of_the_kit(engine, text):
    (problem,) = read(text)
    result = run_case(problem, engine, impl="remote:*")
    assert (result.status, result.failures) == ("passed", ())


def test_a_launch_returns_before_the_device_has_computed(engine):
    call, dst = relu(engine, [-1, 2])
    stream = engine.stream()
    suspend(engine)
    event = call(stream)
    with pytest.raises(TimeoutError):
        event.wait(0.05)
    with pytest.raises(TimeoutError):
        stream.wait(0.05)
    assert not event.done
    os.kill(engine.native.pid, signal.SIGCONT)
    event.wait(WAIT)
    assert event.done
    assert dst.numpy().tolist() == [0, 2]


def test_the_cpu_serves_what_the_device_lacks_and_the_device_takes_its_result(engine):
    (problem,) = read("--conv --dir=FWD_D --wtag=any --dtag=any mb2ic16ih9oc32oh7kh3ph0")
    pd = dnn.PrimitiveDesc(problem.op, engine, host_fallback=True)
    memories = {name: dnn.Memory(desc, engine) for name, desc in pd.descs.items()}
    rng = np.random.default_rng(0)
    for name in ("src", "weights"):
        with memories[name].map(mode="w") as data:
            values = rng.standard_normal(pd.descs[name].dims).astype(np.float32)
            pd.descs[name].pack(values, data)
    stream = engine.stream()
    found = dnn.against_reference(pd, memories, stream)
    assert all(comparison.ok for comparison in found.values()), found
    op = dnn.EltwiseForward("forward_inference", "relu", src=pd.dst_desc, dst=pd.dst_desc)
    relu = dnn.PrimitiveDesc(op, engine, host_fallback=True)
    assert relu.impl_name == "remote:numpy"
    before = memories["dst"].numpy()
    relu.primitive().execute(stream, src=memories["dst"], dst=memories["dst"]).wait(WAIT)
    assert (memories["dst"].numpy() == np.maximum(before, 0)).all()


# -- a device process that ends --------------------------------------------------------------------


def test_the_error_of_a_device_that_dies_in_mid_command_surfaces_at_the_wait(engine):
    call, dst = relu(engine, [-1, 2])
    stream, other = engine.stream(), engine.stream()
    suspend(engine)
    events = [call(stream), call(stream), call(other)]
    kill(engine)
    for event in events:
        with pytest.raises(dnn.ExecutionError, match=LOST):
            event.wait(WAIT)
        assert event.done
    for each in (stream, other):
        with pytest.raises(dnn.ExecutionError, match=LOST):
            each.wait(WAIT)
    away = functools.partial(dnn.reorder, dst, engine=dnn.engine("cpu"))
    for use in (dst.numpy, engine.stream, lambda: call(stream), lambda: dst.fill(0), away):
        with pytest.raises(dnn.ExecutionError, match=LOST):
            use()
    assert engine.is_lost


def test_other_engines_go_on_and_the_engine_can_be_opened_again(engine):
    call, dst = relu(engine, [-1, 2])
    stream, cpu = engine.stream(), dnn.engine("cpu")
    suspend(engine)
    event = call(stream)
    on_cpu, _ = relu(cpu, [-1, 2])
    kill(engine)
    with pytest.raises(dnn.ExecutionError, match=LOST):
        on_cpu(cpu.stream(), [event])
    assert computes(cpu)
    new = dnn.engine("remote")
    assert new is not engine
    assert computes(new)
    with pytest.raises(dnn.DescriptorError, match="must be one of remote:0"):
        dst.numpy(new.stream())


def test_an_opencl_command_behind_a_lost_device_fails_and_the_next_one_computes(engine):
    opencl = dnn.engine("opencl:0")
    call, _ = relu(engine, [-1, 2])
    on_opencl, _ = relu(opencl, [-1, 2])
    stream = engine.stream()
    suspend(engine)
    event = on_opencl(opencl.stream(), [call(stream)])
    kill(engine)
    with pytest.raises(dnn.ExecutionError):
        event.wait(WAIT)
    assert computes(opencl)


def test_all_threads_that_wait_get_the_error(engine):
    call, _ = relu(engine, [-1, 2])
    suspend(engine)
    event, found = call(engine.stream()), []

    def wait():
        try:
            event.wait(WAIT)
        except dnn.ExecutionError as error:
            found.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    kill(engine)
    for thread in threads:
        thread.join(WAIT)
    assert len(found) == 4


def test_a_device_that_dies_while_it_rests_is_opened_again(engine):
    call, _ = relu(engine, [-1, 2])
    kill(engine)
    engine.native.wait(WAIT)
    with pytest.raises(dnn.ExecutionError, match=LOST):
        call(engine.stream())
    with pytest.raises(dnn.ExecutionError, match=LOST):
        dnn.Memory(dnn.MemoryDesc((4,)), engine)
    assert computes(dnn.engine("remote"))


def test_a_device_that_cannot_start_is_unavailable(engine, monkeypatch, tmp_path):
    kill(engine)
    engine.native.wait(WAIT)
    monkeypatch.setattr(remote_engine, "PROGRAM", tmp_path / "missing.py")
    with pytest.raises(dnn.EngineUnavailable, match=r"does not answer: .* exit status 2"):
        dnn.engine("remote")
    monkeypatch.undo()
    assert computes(dnn.engine("remote"))


# -- errors of single commands ---------------------------------------------------------------------


def test_a_late_error_surfaces_at_the_wait_and_the_stream_goes_on(engine):
    buffer, stream = engine.allocate(8), engine.stream()
    event = engine.copy_in(stream, np.zeros(9, np.uint8), buffer)
    with pytest.raises(dnn.ExecutionError, match="write failed on the device: ValueError"):
        event.wait(WAIT)
    engine.copy_in(stream, np.zeros(8, np.uint8), buffer).wait(WAIT)
    with pytest.raises(dnn.ExecutionError, match="write failed"):
        stream.wait(WAIT)
    stream.wait(WAIT)
    assert not engine.is_lost
    assert computes(engine)
    engine.free(buffer)


def test_a_device_without_room_says_so_and_goes_on(engine):
    with pytest.raises(dnn.ExecutionError, match=r"allocate failed on the device: .*Memory"):
        dnn.Memory(dnn.MemoryDesc((1 << 50,)), engine)
    assert computes(engine)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory from /proc")
def test_freed_buffers_do_not_pile_up_in_the_device(engine):
    def pages():
        return int(Path(f"/proc/{engine.native.pid}/statm").read_text().split()[1])

    desc = dnn.MemoryDesc((1 << 22,))  # 16 MiB
    before = pages()
    for _ in range(20):
        dnn.Memory(desc, engine).fill(1)
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 100 << 20


# -- processes -------------------------------------------------------------------------------------


def run(program):
    """Run a program; return what it printed."""
    begin = f"""
        import gc, os, signal, sys, threading, time
        import numpy as np, dnncore as dnn
        sys.path[:0] = {sys.path!r}
        import dnncore_remote
        dnn.register(dnncore_remote)
        engine = dnn.engine("remote")
        x = np.array([-1, 2], np.float32)
        """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(begin) + textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def has_ended(pid):
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "ending",
    ["", "stream = engine.stream(); stream.lag = 0.5; engine.copy_in(stream, x.view('u1'), b)",
     "os._exit(0)"],
    ids=["exit", "in-flight", "abrupt"],
)  # fmt: skip
def test_the_device_ends_with_the_program(ending):
    printed = run(f"b = engine.allocate(8); print(engine.native.pid, flush=True); {ending}")
    assert has_ended(int(printed))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_a_device_of_its_own_and_leaves_that_of_its_parent():
    printed = run(
        """
        memory, stream = dnn.Memory.from_numpy(x, engine=engine), engine.stream()
        stream.lag = 0.3
        event = engine.copy_in(stream, x.view("u1"), memory.buffer)
        child = os.fork()
        if child == 0:
            new_memory = lambda: dnn.Memory(memory.desc, engine)
            for use in (memory.numpy, event.wait, stream.wait, new_memory):
                try:
                    use()
                except dnn.ExecutionError as error:
                    assert "belongs to the parent" in str(error), error
                else:
                    os._exit(2)
            new = dnn.engine("remote")
            assert new is not engine
            right = dnn.functional.relu(x, engine=new).tolist() == [0, 2]
            del memory
            gc.collect()
            sys.stdout.flush()
            new.native.stdin.close()
            os._exit(0 if right else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        event.wait()
        print(memory.numpy().tolist(), dnn.engine("remote") is engine)
        """
    )
    assert printed == "0\n[-1.0, 2.0] True\n"


def test_an_interrupt_of_a_wait_leaves_the_engine_usable():
    printed = run(
        """
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        os.kill(engine.native.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            dnn.Memory(dnn.MemoryDesc((4,)), engine)
        except KeyboardInterrupt:
            os.kill(engine.native.pid, signal.SIGCONT)
        print(dnn.functional.relu(x, engine=engine).tolist())
        """
    )
    assert printed == "[0.0, 2.0]\n"


def test_signal_handlers_may_use_the_engine_at_any_place():
    printed = run(
        """
        right = []
        def handle(*_):
            right.append(dnn.functional.relu(x, engine=engine).tolist() == [0, 2])
            signal.setitimer(signal.ITIMER_REAL, 0.003)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            memory = dnn.Memory.from_numpy(x, engine=engine)
            assert memory.numpy().tolist() == [-1, 2]
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        print(all(right), len(right) > 20)
        """
    )
    assert printed == "True True\n"
