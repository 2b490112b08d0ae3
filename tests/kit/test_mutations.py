"""Thousands of changed calls end in the library's errors or in right answers, in good time."""

import pytest

import dnncore as dnn
from dnncore.testing.bad_input import mutated_programs, mutations, valid_calls
from dnncore.testing.bad_input.examination import examine, examine_in, examiner

pytestmark = pytest.mark.long

SEED = 1
CPU = dnn.engine("cpu")
CALL = "int('x')"  # raises ValueError


def devices():
    """Name one OpenCL device per platform; PoCL's kernels are run, others' only chosen."""
    found = [d for d in dnn.devices() if d.status == "ok" and d.name.startswith("opencl")]
    by_version = {"PoCL" in d.device.version: d.name for d in reversed(found)}
    return by_version.get(True), by_version.get(False)


def survey(*tasks):
    report = mutations.survey(tasks, SEED)
    assert not report.faults, f"{len(report.faults)} faults:\n\n{report}"
    return report.counts


def test_descriptors_are_refused_or_right():
    pocl, other = devices()
    tasks = [("cpu", "described", 3_000)]
    tasks += [(name, "described", 1_000) for name in (pocl, other) if name]
    counts = survey(*tasks)
    assert sum(counts.values()) == sum(count for *_, count in tasks)
    assert counts["described", "refused"] > 1_500
    assert counts["described", "passed"] > 250


def test_executions_are_refused_or_right():
    pocl, _ = devices()
    tasks = [("cpu", "executed", 800), *([(pocl, "executed", 200)] if pocl else [])]
    counts = survey(*tasks)
    assert counts["executed", "refused"] > 300
    assert counts["executed", "passed"] > 100


@pytest.mark.parametrize("place", range(len(valid_calls.OPERATIONS)))
def test_unchanged_programs_end_well(place):
    """Else their mutations would show little."""
    chosen, executed = valid_calls.described()[2], valid_calls.executed()[1]
    each = len(executed) // len(valid_calls.OPERATIONS)
    ends = [examine(executed[place * each], CPU)]
    ends += [examine(chosen[place * len(valid_calls.WISHES) * 6], CPU)]
    assert ends == [("passed", "")] * 2


@pytest.mark.parametrize(
    "program", [*valid_calls.DESCRIPTORS, *valid_calls.MEMORIES, *valid_calls.ACROSS]
)
def test_unchanged_programs_of_memories_end_well(program):
    assert examine(program, CPU) == ("passed", "")


def test_a_seed_gives_the_same_programs():
    programs = [mutated_programs.mutation("executed", 5, i) for i in range(50)]
    assert programs == [mutated_programs.mutation("executed", 5, i) for i in range(50)]
    assert len(set(programs)) == 50


@pytest.mark.parametrize(
    ("program", "end", "reason"),
    [
        ("dnn.MemoryDesc((2,), 'f31')", "refused", ""),
        ("dnn.MemoryDesc((2,), colour='red')", "python", ""),
        ("dnn.backend.HostEngine().owns(np.zeros(9, 'u1'), 'x')", "raised", "TypeError"),
        (f"exec(compile({CALL!r}, '/home/me/dnncore/.venv/numpy.py', 'exec'), {{}})", "python", ""),
        ("raise dnn.DescriptorError('bad')", "refused", "says too little: 'bad'"),
        ("pd = dnn.PrimitiveDesc(5, engine)", "refused", ""),
    ],
)
def test_what_is_right_and_what_is_at_fault(program, end, reason):
    got = examine(program, CPU)
    assert got[0] == end
    assert reason in got[1]
    assert bool(reason) == bool(got[1])


def test_a_wrong_answer_is_a_fault():
    """As an implementation that fills dst with something else would give."""
    program = next(p for p in valid_calls.executed()[1] if "EltwiseForward" in p)
    _, reason = examine(program + "\narguments['dst'].fill(7)", CPU)
    assert "dst: WRONG" in reason


def test_crashes_and_hangs_are_found():
    """The process is replaced; the other programs run."""
    programs = ("x = 1", "import ctypes; ctypes.string_at(0)", "while True: pass", "x = 2")
    with examiner() as process:
        ends = [
            examine_in(process, p, "cpu", "executed", timeout=8 if "while" in p else 100)
            for p in programs
        ]
    assert [end for end, _ in ends] == ["passed", "died", "died", "passed"]
    assert "SIGSEGV" in ends[1][1]
    assert "no reply within 8 s" in ends[2][1]


def test_a_slow_program_is_a_fault():
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    with examiner() as process:
        slow, _ = examine_in(process, busy, "cpu", "described")
        assert slow == "slow"
        assert examine_in(process, "x = 1", "cpu", "described") == ("passed", "")
