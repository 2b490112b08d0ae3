"""The primitive cache."""

import threading
import time
from functools import partial

import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.cache import MemoryCache

CPU = dnn.engine("cpu")


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
