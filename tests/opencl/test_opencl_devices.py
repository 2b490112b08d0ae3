"""Lists of OpenCL devices, faults of drivers, and handles at the end of a process."""

from __future__ import annotations

import ctypes
import io
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from opencl_engine import DEVICES, run_python

import dnncore as dnn

cl = pytest.importorskip("pyopencl")

from dnncore_opencl.devices import discovery, handles, intel, pocl  # noqa: E402

NAMED = pocl.RELEASE + "  x86_64"
KINDS = {"cpu": 2, "gpu": 4, "accelerator": 8}  # cl_device_type


def device(kind: str = "cpu", version: str = "OpenCL 3.0", extensions: str = "", **fields: Any):
    """A device of a driver that does not exist."""
    platform = SimpleNamespace(version=version, vendor="Intel(R) Corporation", name=version)
    return SimpleNamespace(
        type=KINDS[kind], platform=platform, extensions=extensions, name=f"{kind} ",
        vendor="Maker ", driver_version="7", version=version, max_compute_units=3,
        global_mem_size=100, max_mem_alloc_size=50, local_mem_size=20,
        max_work_group_size=64, mem_base_addr_align=1024, **fields,
    )  # fmt: skip


# -- discovery -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_described_as_its_driver_does(kind):
    plain = discovery.describe(device(kind))
    assert (plain.name, plain.vendor, plain.type) == (kind, "Maker", kind)
    assert (plain.limits["alignment"], plain.limits["max_work_group"]) == (128, 64)
    assert not plain.limits["fp16"]
    assert not plain.limits["sub_groups"]
    able = discovery.describe(device(kind, extensions="cl_khr_fp16 cl_khr_subgroups"))
    assert able.limits["fp16"]
    assert able.limits["sub_groups"]


def test_gpus_are_first_within_a_platform(monkeypatch):
    kinds = (("cpu", "gpu", "accelerator", "gpu"), ("cpu",))
    platforms = [
        SimpleNamespace(name="Maker", version="OpenCL 3.0", get_devices=lambda found=found: found)
        for found in (tuple(map(device, own)) for own in kinds)
    ]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    found = discovery._cl_devices.__wrapped__()
    assert [one.name.strip() for one in found] == ["gpu", "gpu", "cpu", "accelerator", "cpu"]


# -- workarounds -----------------------------------------------------------------------------------


def test_the_hint_is_for_cpus_of_intel():
    assert intel.without_lanes_of_items(device("cpu"), "text") == intel.HINT + "text"
    assert intel.without_lanes_of_items(device("gpu"), "text") == "text"
    other = device("cpu")
    other.platform.vendor = "Another"
    assert intel.without_lanes_of_items(other, "text") == "text"


@pytest.mark.parametrize(("version", "wrong"), [("OpenCL 3.0 PoCL 5.0", True), (NAMED, False)])
def test_a_release_of_pocl_miscompiles_barriers(version, wrong):
    assert pocl.miscompiles_barriers(device(version=version)) == wrong


@pytest.mark.parametrize("name", ["POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME", ""])
def test_where_pocl_writes_code(monkeypatch, tmp_path, name):
    for each in ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, str(tmp_path))
    made = []
    monkeypatch.setattr(pocl.Path, "mkdir", lambda path, **_: made.append(str(path)))
    monkeypatch.setattr(pocl.tempfile, "TemporaryFile", lambda dir: io.BytesIO())
    assert pocl.unusable_cache(SimpleNamespace(version="PoCL")) == ""
    assert pocl.unusable_cache(SimpleNamespace(version="Another")) == ""
    folder = {
        "POCL_CACHE_DIR": tmp_path,
        "XDG_CACHE_HOME": tmp_path / "pocl" / "kcache",
        "HOME": tmp_path / ".cache" / "pocl" / "kcache",
        "": "/tmp/pocl/kcache",  # PoCL's own choice
    }[name]
    assert made == [str(folder)]

    def full(**_):
        raise OSError("no room")

    monkeypatch.setattr(pocl.tempfile, "TemporaryFile", full)
    source = f"{name}={tmp_path}" if name else "HOME is not set"
    reason = pocl.unusable_cache(SimpleNamespace(version="PoCL"))
    assert f"cannot: no room ({source});" in reason


FLAGS = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
HASWELL = {"avx2", "fma", "f16c", "bmi2", "movbe", "sse2"}


@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        ("generic", HASWELL | FLAGS, "skylake-avx512"), ("generic", HASWELL, "haswell"),
        ("generic", {"sse2"}, "x86-64"), ("generic", set(), "x86-64"),
        ("znver3", HASWELL | FLAGS, "skylake-avx512"), ("znver3", HASWELL, "znver3"),
        ("haswell", HASWELL | FLAGS, "haswell"),
    ],
)  # fmt: skip
def test_pocl_gets_a_name_for_a_processor_that_it_does_not_know(monkeypatch, name, flags, named):
    monkeypatch.setattr(pocl, "_processor_flags", lambda: flags)
    monkeypatch.setattr(pocl, "_processor", pocl._processor.__wrapped__)
    own = ctypes.create_string_buffer(name.encode())
    record = (ctypes.c_uint64 * (pocl.NAME_OFFSET // 8 + 1))()
    record[-1] = ctypes.addressof(own)
    create, kept = ctypes.create_string_buffer, []

    def created(*arguments: Any) -> Any:
        kept.append(create(*arguments))
        return kept[-1]

    monkeypatch.setattr(ctypes, "create_string_buffer", created)
    for release, wanted in (("PoCL 6.0", name), (NAMED, named)):
        one = device(version=release, int_ptr=ctypes.addressof(record))
        one.version = f"OpenCL 1.2 pocl HSTR: pthread-{pocl.TARGET}{name}"
        pocl.name_the_processor(one)
        assert ctypes.string_at(record[-1]) == wanted.encode()


def test_a_record_that_is_not_as_known_is_left_alone(monkeypatch):
    monkeypatch.setattr(pocl, "_processor_flags", lambda: HASWELL)
    record = (ctypes.c_uint64 * (pocl.NAME_OFFSET // 8 + 1))()
    record[-1] = 8  # where no memory is
    one = device(version=NAMED, int_ptr=ctypes.addressof(record))
    one.version = f"pthread-{pocl.TARGET}generic"
    pocl.name_the_processor(one)
    assert record[-1] == 8
    assert pocl._peek(8, 4) is None


# -- handles ---------------------------------------------------------------------------------------


class Holder:
    """Attributes of each kind that may hold a handle."""

    __slots__ = ("__dict__", "slot")
    default = "default"

    @property
    def read_only(self):
        return "property"


@pytest.mark.parametrize("name", ["plain", "default", "slot", "read_only"])
def test_a_guarded_attribute_is_checked_and_otherwise_as_it_was(name):
    class Guarded(Holder):
        pass

    before, calls = Guarded(), []
    if name in ("plain", "slot"):
        setattr(before, name, "before")
    value, own = getattr(before, name), getattr(Guarded, name, None)
    guard = handles._Guarded(Guarded, name, lambda: calls.append(name))
    setattr(Guarded, name, guard)
    assert getattr(before, name) == value
    assert getattr(Guarded, name) is own
    assert len(calls) == 2
    if name == "read_only":
        with pytest.raises(AttributeError):
            setattr(before, name, "after")
    else:
        setattr(before, name, "after")
        assert getattr(before, name) == "after"
    assert len(calls) > 2


def stays(lock) -> bool:
    """Whether a thread is stopped that asks for a handle at the end, and holds this lock if any."""
    going = threading.Event()

    def ask() -> None:
        if lock is not None:
            with lock:
                handles._stop()
        else:
            handles._stop()
        going.set()

    threading.Thread(target=ask, daemon=True).start()
    return not going.wait(60 if lock is not None else 0.3)


def test_a_thread_that_holds_a_lock_is_not_stopped(monkeypatch):
    lock, end = threading.RLock(), threading.Event()
    monkeypatch.setattr(handles, "locks", [threading.RLock(), lock])
    monkeypatch.setattr(handles, "rest", lambda: end.wait(60))
    assert not stays(lock)
    assert stays(None)
    end.set()
    handles._stop()


@pytest.mark.parametrize(
    ("module", "file", "is_called"),
    [
        ("pyopencl.array", "array.py", True), ("dnncore_opencl.x", "x.py", True),
        ("another", "<generated code>", True), ("another", "another.py", False),
    ],
)  # fmt: skip
def test_a_thread_in_a_function_of_the_driver_is_seen(module, file, is_called):
    held = threading.Lock()
    held.acquire()
    names = {"__name__": module, "held": held}
    exec(compile("def call():\n    held.acquire()", file, "exec"), names)
    assert not handles._is_called()
    thread = threading.Thread(target=names["call"])
    thread.start()
    time.sleep(0.05)
    found = handles._is_called()
    held.release()
    thread.join()
    assert found == is_called


AT_EXIT = """
    import threading, time
    from dnncore_opencl.devices import handles

    handles.LONGEST_CALL = 0.5
    names = {"__name__": "pyopencl", "time": time}
    exec("def call(): time.sleep(60)", names)
    handles.begin_use()
    threading.Thread(target=names["call"], daemon=True).start()
"""


def test_the_end_of_a_process_does_not_wait_for_a_call_for_ever():
    start = time.monotonic()
    done = run_python(AT_EXIT, timeout=50)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 40


GRANDCHILD = """
    import os, sys
    import dnncore as dnn
    dnn.engine({name!r})
    def child(then):
        pid = os.fork()
        if not pid:
            os._exit(then())
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def refused():
        try:
            dnn.engine({name!r}).stream()
        except dnn.EngineUnavailable as error:
            return 3 if "forked after" in str(error) else 4
        return 5
    print(child(lambda: child(refused)))
"""


@pytest.mark.skipif(not DEVICES, reason="there is no OpenCL device")
def test_a_child_of_a_forked_child_is_refused_too():
    pytest.importorskip("posix")
    done = run_python(GRANDCHILD.format(name=DEVICES[0]), timeout=60)
    assert done.stdout == "3\n", done.stderr
    assert dnn.engine(DEVICES[0]).stream().engine is dnn.engine(DEVICES[0])
