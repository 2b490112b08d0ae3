"""Scenarios end as their model says, and show faults that checks of single problems cannot show."""

import itertools
import re

import pytest
from click.testing import CliRunner

import dnncore as dnn
from dnncore.execution import primitive, sequence
from dnncore.selection import host_fallback, transfer
from dnncore.testing.scenarios import model, run

pytestmark = pytest.mark.long

CPU = dnn.engine("cpu")
SEEDS = range(40)


def pocl():
    return dnn.engine("pocl")


@pytest.fixture
def reference(monkeypatch):
    """Scenarios use the reference, which compiles nothing."""
    monkeypatch.setenv("DNNCORE_PREFER", "reference")


def first_failure(engines, seeds=SEEDS):
    return next((text for seed in seeds if (text := run.failure(engines, seed))), "")


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desc", "places"),
    [
        (dnn.MemoryDesc((2, 3)), [[0, 1, 2], [3, 4, 5]]),
        (dnn.MemoryDesc((2, 3), "f32", "ba", offset0=7), [[7, 9, 11], [8, 10, 12]]),
        (dnn.MemoryDesc((2, 3), strides=(0, 2)), [[0, 2, 4], [0, 2, 4]]),
        (dnn.MemoryDesc((2, 3), "f32", "aB2b"), [[0, 1, 2], [4, 5, 6]]),
        (dnn.MemoryDesc((3, 2), "f32", "AB2a2b"), [[0, 1], [2, 3], [4, 5]]),
        (dnn.MemoryDesc((2, 8), "f32", "AB2b2a2b"),
         [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
    ],
)  # fmt: skip
def test_places_of_elements(desc, places):
    """Counted by hand."""
    assert model.places(desc, desc.dims).tolist() == places


@pytest.mark.usefixtures("reference")
def test_a_seed_gives_the_same_scenario():
    assert run.run([CPU], 5) == run.run([CPU], 5) != run.run([CPU], 6)


@pytest.mark.usefixtures("reference")
def test_an_engine_may_lack_streams_out_of_order_and_with_profiling(monkeypatch):
    opened = type(CPU).stream

    def stream(engine, order="in", *, profiling=False):
        if profiling:
            raise dnn.DescriptorError("no profiling")
        return opened(engine, order)

    monkeypatch.setattr(type(CPU), "stream", stream)
    assert not first_failure([CPU], range(4))


def test_a_backend_is_preferred():
    log = "\n".join(line for seed in range(6) for line in run.run([CPU], seed, impl="reference:*"))
    assert log.count("by reference:") > 3 * log.count("by cpu_numba:")


@pytest.mark.usefixtures("reference")
def test_all_kinds_of_steps_are_drawn():
    log = "\n".join(line for seed in range(12) for line in run.run([CPU], seed))
    words = ("eltwise by", "binary by", "sum by", "matmul by", "convolution by", "pooling by",
             "reduction by", "reorder by", "eltwise backward by",
             "pooling backward by", "ran a sequence", "read t", "wrote t", "copy of",
             "dropped", "opened", "was refused", "repeats a part", "(part)", "(beside)", "(placed)",
             "+sum", "cleared", "deleted", "number of threads")  # fmt: skip
    assert [word for word in words if word not in log] == []
    assert re.search(r"convolution by \S+\(diff_dst=", log), "the gradient of data"
    assert re.search(r"convolution by \S+\(src=t\d+, diff_dst=", log), "the gradient of weights"


# -- right libraries -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_cpu_engine_does_as_the_model_says(seed):
    assert run.failure([CPU], seed) == ""


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_the_reference_does_as_the_model_says(first):
    assert first_failure([CPU], range(first, first + 10)) == ""


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_engines_do_as_the_model_says(seed):
    assert run.failure([CPU, pocl()], seed) == ""


def test_host_fallbacks_are_drawn():
    log = "\n".join(line for seed in range(2) for line in run.run([pocl()], seed))
    assert "by host:" in log


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("reference")
def test_writes_beside_a_part(monkeypatch):
    pack = dnn.MemoryDesc.pack

    def clears_gaps(desc, array, buffer):
        buffer[desc.offset0 * desc.itemsize : desc.nbytes] = 0
        pack(desc, array, buffer)

    monkeypatch.setattr(dnn.MemoryDesc, "pack", clears_gaps)
    assert "wrong on cpu: " in first_failure([CPU])


@pytest.mark.usefixtures("reference")
def test_parts_at_a_wrong_place(monkeypatch):
    submemory = dnn.MemoryDesc.submemory

    def at_the_start(desc, dims, offsets):
        return submemory(desc, dims, [0 for _ in offsets])

    monkeypatch.setattr(dnn.MemoryDesc, "submemory", at_the_start)
    assert "is not the part of" in first_failure([CPU])


@pytest.mark.usefixtures("reference")
def test_a_sequence_in_another_order(monkeypatch):
    attach = sequence.Sequence._attach

    def backwards(replayed, stream):
        replayed.calls = replayed.calls[::-1]
        return attach(replayed, stream)

    monkeypatch.setattr(sequence.Sequence, "_attach", backwards)
    assert "wrong on cpu: " in first_failure([CPU])


@pytest.mark.usefixtures("reference")
def test_memories_that_are_kept(monkeypatch):
    kept = []
    bind = primitive.BoundPrimitive.__init__

    def keeps(bound, owner, memories, scratchpad):
        kept.append(memories)
        bind(bound, owner, memories, scratchpad)

    monkeypatch.setattr(primitive.BoundPrimitive, "__init__", keeps)
    assert "still in memory although nothing uses them" in first_failure([CPU])


@pytest.mark.usefixtures("reference")
def test_overlaps_that_are_accepted(monkeypatch):
    monkeypatch.setattr(primitive, "_overlap", lambda *_: False)
    assert "accepted an overlap" in first_failure([CPU])


@pytest.mark.usefixtures("reference")
def test_events_that_are_ignored(monkeypatch):
    """Streams with a lag show it, unless building the next kernels takes longer than the lag.

    So the likely seeds run twice.
    """
    monkeypatch.setattr(primitive, "checked_events", lambda _: ())
    monkeypatch.setattr(sequence, "checked_events", lambda _: ())
    likely = (8, 33, 35)
    assert "wrong on opencl:" in first_failure([pocl()], (*likely, *likely, *SEEDS))


def test_results_of_host_fallbacks_that_are_lost(monkeypatch):
    """All outputs but the first, as the workspace of pooling."""
    bind = host_fallback._HostExecutable.bind

    def result_only(executable, memories, scratchpad):
        executable._outputs = executable._outputs & {"dst", "diff_src", "diff_weights"}
        return bind(executable, memories, scratchpad)

    monkeypatch.setattr(host_fallback._HostExecutable, "bind", result_only)
    assert "wrong on opencl:" in first_failure([pocl()], (8, 12, 28, 41))  # nine of 61 show it


@pytest.mark.usefixtures("reference")
def test_post_ops_that_are_lost_between_engines(monkeypatch):
    """A copy of the bytes serves only without them."""
    init = transfer._CrossingExecutable.__init__
    monkeypatch.setattr(
        transfer._CrossingExecutable,
        "__init__",
        lambda crossing, op, _, *others: init(crossing, op, dnn.Attributes(), *others),
    )
    assert "wrong on " in first_failure([CPU, pocl()])


# -- reduction and the command ---------------------------------------------------------------------


@pytest.mark.usefixtures("reference")
def test_a_failure_is_reduced(monkeypatch):
    fill = dnn.Memory.fill
    monkeypatch.setattr(dnn.Memory, "fill", lambda memory, value: fill(memory, value + 1))
    seed = next(seed for seed in itertools.count() if run.failure([CPU], seed))
    steps, text = run.shortest([CPU], seed)
    assert len(steps) <= 2
    assert "wrote t" in text
    assert run.failure([CPU], seed, steps) == text


@pytest.mark.usefixtures("reference")
def test_the_command(monkeypatch):
    result = CliRunner().invoke(run.main, ["--engines=cpu", "--count=3", "--seed=2"])
    assert (result.exit_code, result.output) == (
        0,
        "3 scenarios of 30 steps ended as the model says\n",
    )
    monkeypatch.setattr(dnn.Memory, "fill", lambda memory, value: None)
    result = CliRunner().invoke(run.main, ["--engines=cpu", "--count=40"])
    assert result.exit_code == 1
    assert (
        "repeat: python -m dnncore.testing.scenarios --engines=cpu --impl='' --seed="
        in result.output
    )
    result = CliRunner().invoke(run.main, ["--engines=abacus"])
    assert result.exit_code == 1
    assert "unknown engine 'abacus'" in result.output
