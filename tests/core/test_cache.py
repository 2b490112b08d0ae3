"""The primitive cache and the disk store."""

import os
import stat
import threading
import time
from functools import partial

import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.cache import DiskStore, MemoryCache

CPU = dnn.engine("cpu")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    return DiskStore("test")


def test_equal_problems_share_one_executable_and_are_counted():
    toy = Relu("toybackend:a", 9.0)
    with registered(toy):
        before = dnn.cache.stats()
        first = dnn.PrimitiveDesc(relu_op((7, 3)), CPU).primitive()
        second = dnn.PrimitiveDesc(relu_op((7, 3)), CPU).primitive()
        other = dnn.PrimitiveDesc(relu_op((7, 4)), CPU).primitive()
    after = dnn.cache.stats()
    assert first.executable is second.executable is not other.executable
    assert after["built"] - before["built"] == 2
    assert after["from_memory"] - before["from_memory"] == 1


def test_the_least_recently_used_is_evicted():
    cache = MemoryCache(2)
    built = []
    for key in ["a", "b", "a", "c", "a", "b"]:
        cache.get(key, partial(built.append, key))
    assert built == ["a", "b", "c", "b"]
    cache.capacity = 0
    assert len(cache) == 0
    cache.get("a", lambda: built.append("again"))
    cache.get("a", lambda: built.append("again"))
    assert built[-2:] == ["again", "again"]
    with pytest.raises(dnn.DescriptorError, match="at least 0; got -1"):
        cache.capacity = -1


def test_one_thread_builds_while_the_others_wait():
    cache, built = MemoryCache(8), []

    def build():
        built.append(1)
        time.sleep(0.05)
        return "value"

    got = []
    threads = [
        threading.Thread(target=lambda: got.append(cache.get("key", build))) for _ in range(6)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (got, len(built)) == (["value"] * 6, 1)


def test_a_failed_build_reaches_all_who_wait_and_is_not_kept():
    cache = MemoryCache(8)

    def fail():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cache.get("key", fail)
    assert cache.get("key", lambda: 5) == 5


def test_what_is_put_is_got_by_another_store(store):
    assert store.get("key") is None
    store.put("key", b"content")
    assert DiskStore("test").get("key") == b"content"
    assert DiskStore("other").get("key") is None
    store.put("key", b"newer")
    assert store.get("key") == b"newer"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: b"",
        lambda data: data + b"x",
    ],
    ids=["truncated", "flipped-bit", "empty", "longer"],
)
def test_damaged_files_are_misses(store, damage):
    store.put("key", b"0123456789" * 10)
    (path,) = store.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("key") is None


def test_a_file_under_another_key_is_a_miss(store):
    store.put("a", b"content")
    (path,) = store.folder.iterdir()
    store.put("b", b"other")
    (target,) = set(store.folder.iterdir()) - {path}
    target.write_bytes(path.read_bytes())
    assert store.get("b") is None


def test_the_folder_is_private(store):
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    store.folder.chmod(0o755)
    assert stat.S_IMODE(DiskStore("test").folder.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_not_used(store, monkeypatch):
    assert store.folder
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(dnn.CacheWarning, match="belongs to user"):
        assert DiskStore("test").folder is None


def test_the_store_can_be_switched_off(store, monkeypatch):
    monkeypatch.setenv("DNNCORE_DISK_CACHE", "0")
    off = DiskStore("test")
    off.put("key", b"x")
    assert off.get("key") is None
    assert off.folder is None


def test_a_store_that_cannot_be_written_warns_and_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "file"))
    blocked = DiskStore("test")
    with pytest.warns(dnn.CacheWarning, match="DNNCORE_CACHE_DIR"):
        blocked.put("key", b"x")
    assert blocked.get("key") is None
