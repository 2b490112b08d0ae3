"""Scratchpads of out-of-order streams: which command gets which, on a host engine with events."""

import gc
import weakref

import pytest

import dnncore as dnn
from dnncore.backend import Event, ExecutionError
from dnncore.engines.scratchpads import MOST, Scratchpads

CPU = dnn.engine("cpu")


class Command(Event):
    """A command that ends when the test says so."""

    __slots__ = ("__weakref__", "ended", "held_up")

    def __init__(self, *, held_up=False):
        self.ended = False
        self.held_up = held_up

    @property
    def done(self):
        return self.ended

    @property
    def is_held_up(self):
        return self.held_up


class Pads(Scratchpads):
    """Launches commands and returns what they got: the event, the buffer, what they wait for."""

    def start(self, nbytes=64, wait_for=(), *, held_up=False):
        got = []

        def launch(buffer, behind):
            got.extend((buffer, tuple(behind)))
            return Command(held_up=held_up)

        event = self.launch(nbytes, wait_for, launch)
        return event, *got


@pytest.fixture
def pads():
    return Pads(CPU)


def buffers(launches):
    return {id(buffer) for _, buffer, _ in launches}


def test_commands_that_may_overlap_get_scratchpads_of_their_own(pads):
    launches = [pads.start() for _ in range(MOST)]
    assert len(buffers(launches)) == MOST
    assert all(behind == () for _, _, behind in launches)


def test_a_scratchpad_is_used_again_when_its_command_has_ended(pads):
    first, second = pads.start(), pads.start()
    second[0].ended = True
    assert pads.start()[1] is second[1]
    first[0].ended = True
    assert pads.start(32)[1] is first[1]


def test_a_command_shares_with_one_that_it_waits_for(pads):
    event, buffer, _ = pads.start()
    for _ in range(20):
        event, again, behind = pads.start(wait_for=[event])
        assert again is buffer
        assert len(behind) == 1


def test_beyond_the_most_a_command_waits_for_the_oldest(pads):
    launches = [pads.start() for _ in range(3 * MOST)]
    assert len(buffers(launches)) == MOST
    for older, newer in zip(launches, launches[MOST:], strict=False):
        assert newer[1] is older[1]
        assert newer[2] == (older[0],)


def test_no_command_waits_for_one_that_another_engine_holds_up(pads):
    held = [pads.start(held_up=True) for _ in range(2 * MOST)]
    after = pads.start()
    assert after[2] == ()
    assert len(buffers([*held, after])) == 2 * MOST + 1
    assert pads.start()[2] == (after[0],)


def test_what_is_beyond_the_most_is_dropped_again(pads):
    held = [pads.start(held_up=True) for _ in range(2 * MOST)]
    kept = [weakref.ref(buffer) for _, buffer, _ in held]
    for event, _, _ in held:
        event.ended = True
    del held
    pads.start()
    assert sum(ref() is not None for ref in kept) == MOST


def test_the_smallest_that_is_large_enough_is_taken_or_the_largest_replaced(pads):
    launches = [pads.start(nbytes) for nbytes in (100, 300, 200)]
    for event, _, _ in launches:
        event.ended = True
    assert pads.start(150)[1] is launches[2][1]
    large = pads.start(1000)
    assert large[1].size >= 1000
    replaced = weakref.ref(launches[1][1])
    del launches
    assert replaced() is None


def test_where_memory_runs_out_a_command_waits_for_another(pads, monkeypatch):
    first = pads.start()

    def fail(nbytes):
        raise ExecutionError(f"cannot allocate {nbytes} bytes")

    with monkeypatch.context() as patch:
        patch.setattr(CPU, "allocate", fail)
        _, buffer, behind = second = pads.start()
        assert buffer is first[1]
        assert behind == (first[0],)
        with pytest.raises(ExecutionError, match="cannot allocate 1000 bytes"):
            pads.start(1000)
    assert pads.start()[2] == (second[0],)


def test_the_scratchpad_of_a_launch_that_failed_is_not_used_again(pads):
    got = []

    def fail(buffer, _wait_for):
        got.append(buffer)
        raise ValueError("the second kernel")

    with pytest.raises(ValueError, match="the second kernel"):
        pads.launch(64, (), fail)
    assert pads.start()[1] is not got[0]


def test_settled_scratchpads_keep_no_event_that_has_ended(pads):
    ended, running = pads.start()[0], pads.start()[0]
    ended.ended = True
    refs = [weakref.ref(ended), weakref.ref(running)]
    del ended, running
    pads.settle()
    gc.collect()
    assert [ref() is None for ref in refs] == [True, False]
