"""Inputs that are hard on kernels: misaligned, NaN and infinite, far apart in memory, long chains.

Every implementation of the CPU backend that accepts a problem is tried, beside the kit's checks.
"""

import mmap
import sys
from functools import cache

import numpy as np
import pytest

import dnncore as dnn
from dnncore import problem
from dnncore.comparison.compare import consistent_inputs, expected_outputs
from dnncore.comparison.fills import fill_normal
from dnncore.testing.checks import guarded
from dnncore.testing.checks.case import Case, Round, fill_random
from dnncore.testing.problems.cases import cases

pytest.importorskip("numba")

CPU = dnn.engine("cpu")
OWN = "cpu_numba:*"
DRIVERS = sorted({str(p).split()[0] for p in cases("smoke")})


@cache
def problems_of(driver):
    """The kit's small problems of one operation, all directions, formats and attributes."""
    return [p for p in cases("smoke") if str(p).split()[0] == driver]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.strip("-"))
def driver(request):
    """Each operation's word in the problem text."""
    return request.param


# -- misaligned ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, 4], ids=["by a byte", "by a float"])
def test_misaligned_memories(driver, shift, monkeypatch):
    monkeypatch.setattr(guarded, "HOST_GUARD", guarded.GUARD + shift)
    wrong = []
    for p in problems_of(driver):
        case = Case(p, CPU, OWN)
        for trial in case.trials:
            reason = trial.wrong(case.round("random"), trial.outputs("random"))
            wrong += [f"{trial.pd.impl_name} {p}: {reason}"] * bool(reason)
            wrong += [f"{trial.pd.impl_name} {p}: {found.message}" for found in trial.findings]
    assert not wrong


@pytest.mark.parametrize("shift", [1, 4])
def test_views_of_a_users_array_are_shared_where_they_lie(shift):
    raw = np.zeros(4 * 1000 + shift, np.uint8)
    array = raw[shift:].view(np.float32).reshape(40, 25)
    array[:] = np.arange(1000).reshape(40, 25)
    src = dnn.Memory.from_numpy(array)
    assert src.address == raw.ctypes.data + shift
    op = dnn.EltwiseForward("forward_inference", "square", src=src.desc, dst=src.desc)
    dnn.PrimitiveDesc(op, CPU, impl=OWN).primitive().execute(CPU.stream(), src=src, dst=src)
    np.testing.assert_array_equal(raw[shift:].view(np.float32), np.arange(1000.0) ** 2)


# -- NaN, infinity and denormals -------------------------------------------------------------------

SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e-40, -1e-40, -0.0, 1.4e-45], np.float32)


def fill_special(desc, seed):
    """Random numbers, one in forty of them special."""
    values = fill_random(desc, seed).reshape(-1)
    if values.dtype.kind not in "iu" and values.size:
        rng = np.random.default_rng(seed)
        places = rng.integers(0, values.size, max(1, values.size // 40))
        values[places] = rng.choice(SPECIAL, places.size).astype(values.dtype)
    return values.reshape(desc.dims)


def special_inputs(case):
    """What the case reads. Where padding meets a factor that is infinite or NaN, it may count as
    zeros or as nothing, so that in a convolution only one factor is special, src or diff_dst.
    """
    with np.errstate(all="ignore"):
        inputs = consistent_inputs(case.op, case.attr, fill_special, case.seed)
    if case.op.KIND.startswith("convolution"):
        plain = consistent_inputs(case.op, case.attr, fill_normal, case.seed)
        special = "src" if "src" in inputs else "diff_dst"
        inputs = plain | {special: inputs[special]}
    return inputs


def undefined(case, inputs):
    """Where a gradient is infinity times 0 in the formula, but has a limit."""
    if case.op.KIND != "eltwise backward":
        return False
    saved = inputs.get("src", inputs.get("dst"))
    return np.isinf(saved)


def test_nan_infinity_and_denormals(driver):
    wrong, tried = [], 0
    for p in problems_of(driver):
        case = Case(p, CPU, OWN)
        if not case.trials:
            continue
        inputs = special_inputs(case)
        expected = expected_outputs(case.op, case.attr, inputs)
        given = Round(case.op, case.attr, inputs, expected, exact=False)
        for trial in case.trials:
            if ":winograd" in trial.pd.impl_name:
                continue  # its transforms mix each pixel into all of a tile
            outputs = trial.execute(inputs)
            for name, right in expected.items():
                skipped = undefined(case, inputs) & np.isnan(right.values)
                outputs[name] = np.where(skipped, right.values, outputs[name])
            reason = trial.wrong(given, outputs)
            wrong += [f"{trial.pd.impl_name} {p}: {reason}"] * bool(reason)
            tried += 1
    assert not wrong
    assert tried


# -- far apart -------------------------------------------------------------------------------------

FAR = 2**31 + 64  # elements: no offset beyond the first fits 32 bits

NORESERVE = 0x4000  # Linux; mmap has the name from Python 3.13 on

FAR_APART = {
    "eltwise": "--eltwise --alg=tanh --stag={0} --dtag={0} 3x5x4x6",
    "binary": "--binary --stag={0}:{0} --dtag={0} 3x5x4x6:3x5x4x6",
    "softmax": "--softmax --axis=1 --stag={0} --dtag={0} 3x5x4x6",
    "softmax over it": "--softmax --axis=0 --stag={0} --dtag={0} 3x5x4x6",
    "reduction": "--reduction --alg=sum --stag={0} --dtag=abcd 3x5x4x6:1x5x4x1",
    "lrn": "--lrn --tag={0} mb3ic5ih4iw6",
    "pooling": "--pool --alg=max --tag={0} mb3ic5_ih4oh4kh3sh1ph1_iw6ow6kw3sw1pw1",
    "reorder": "--reorder --stag={0} --dtag={1} 3x5x4x6",
    "reorder of types": "--reorder --sdt=s8 --stag={0} --dtag={1} 3x5x4x6",
    "transposing": "--reorder --stag={0} --dtag={1} 3x40x4x6",
    "matmul": "--matmul --stag={2} --wtag={2} --dtag={2} 3x40:40x33",
    "inner product": "--ip --stag={0} --wtag=abcd --dtag={2} mb3ic5ih4iw6oc9",
    "convolution": "--conv --stag={0} --wtag=any --dtag={0} mb3ic5oc5_ih4oh4kh3ph1_iw6ow6kw3pw1",
    "by data": "--conv --dir=BWD_D --stag={0} --wtag=any --dtag={0}"
    " mb3ic5oc5_ih4oh4kh3ph1_iw6ow6kw3pw1",
    "by weights": "--conv --dir=BWD_W --stag={0} --wtag=any --dtag={0}"
    " mb3ic5oc5_ih4oh4kh3ph1_iw6ow6kw3pw1",
}
FORMATS = (f"abcd@{FAR}x24x6x1", f"acdb@{FAR}x1x500x50", f"ab@{FAR}x1")


class Sparse:
    """A memory of any size, of which only the pages that are touched exist."""

    def __init__(self, desc, array=None):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        buffer = np.frombuffer(mmap.mmap(-1, max(1, desc.nbytes), flags=flags), np.uint8)
        if array is not None:
            desc.pack(array, buffer)
        self.memory = dnn.Memory(desc, CPU, buffer)


@pytest.mark.skipif(sys.platform != "linux", reason="asks for memory without storage")
@pytest.mark.parametrize("name", FAR_APART)
def test_elements_that_are_farther_apart_than_32_bits_count(name):
    text = FAR_APART[name].format(*FORMATS)
    (p,) = problem.read(text)
    case = Case(p, CPU, OWN)
    given = case.round("random")
    assert case.trials, case.refusals
    for trial in case.trials:
        boxes = {a.name: Sparse(d, given.inputs.get(a.name)) for a, d in trial.pd.arguments}
        memories = {name: box.memory for name, box in boxes.items()}
        assert max(memory.nbytes for memory in memories.values()) > 2 * FAR
        trial.primitive.execute(CPU.stream(), **memories)
        outputs = {name: np.array(memories[name].numpy()) for name in given.expected}
        assert not trial.wrong(given, outputs), trial.pd.impl_name


@pytest.mark.skipif(sys.platform != "linux", reason="asks for memory without storage")
def test_more_elements_than_32_bits_count():
    desc = dnn.MemoryDesc((2**31 + 70,), "s8")
    src, dst = Sparse(desc), Sparse(desc)
    places = np.array([0, 1, 2**30, 2**31 - 1, 2**31, 2**31 + 63, 2**31 + 69])
    src.memory.buffer[places] = np.arange(1, 8, dtype=np.uint8)
    reorder = dnn.PrimitiveDesc(dnn.Reorder(src=desc, dst=desc), CPU, impl=OWN).primitive()
    reorder.execute(CPU.stream(), src=src.memory, dst=dst.memory)
    np.testing.assert_array_equal(dst.memory.buffer[places], np.arange(1, 8))
    assert np.count_nonzero(dst.memory.buffer) == places.size


# -- long chains -----------------------------------------------------------------------------------

CHAINS = {
    "functions": "+".join(
        4 * ["relu:0.5", "linear:0.5:0.25", "tanh", "abs", "square", "clip:-1:1",
             "hardswish:0.2:0.5", "logistic"]
    ),
    "every kind": "+".join(
        4 * ["add:f32:per_oc", "relu:0.5", "mul:f32:per_tensor", "sum:0.5", "prelu:per_oc",
             "linear:0.5:1", "max:f32:common", "tanh"]
    ),
    "operands": "+".join(16 * ["add:f32:per_tensor", "mul:f32:per_oc"]),
}  # fmt: skip
CHAINED = [
    "--conv --dir=FWD_B {} mb2ic16oc35_ih9kh3ph1",
    "--conv --dir=BWD_D {} mb2ic16oc35_ih9kh3ph1",
    "--conv --dir=BWD_W {} mb2ic16oc35_ih9kh3ph1",
    "--conv {} g32mb2ic32oc32_ih9kh3ph1",
    "--ip --dir=FWD_B {} mb3ic70oc37",
    "--ip --dir=BWD_D {} mb3ic70oc37",
    "--matmul {} 9x70:70x37",
    "--eltwise --alg=tanh {} 2x17x9x9",
    "--eltwise --dir=BWD_D --alg=tanh {} 2x17x9x9",
    "--binary {} 2x17x9x9:2x17x9x9",
    "--sum --sdt=f32:f32 {} 2x17x9x9",
    "--pool --alg=max {} mb2ic17_ih9kh3ph1",
    "--pool --dir=BWD_D --alg=max {} mb2ic17_ih9kh3ph1",
    "--lrn {} mb2ic17ih9",
    "--lrn --dir=BWD_D {} mb2ic17ih9",
    "--softmax --axis=1 {} 2x17x9x9",
    "--softmax --dir=BWD_D --dtag=abx --axis=1 {} 2x17x9x9",
    "--reduction --alg=sum {} 2x17x9x9:2x17x1x1",
    "--reorder {} 2x17x9x9",
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("text", CHAINED)
def test_chains_of_32_steps(text, chain):
    (p,) = problem.read(text.format(f"--attr-post-ops={CHAINS[chain]}"))
    assert len(p.attr.post_ops) == 32
    case = Case(p, CPU, OWN)
    assert case.trials, case.refusals
    for trial in case.trials:
        assert not trial.wrong(case.round("random"), trial.outputs("random")), trial.pd.impl_name


# -- few rows beside a matrix larger than a core's cache -------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 13, 20, 33, 64])
def test_few_rows_of_a_large_product(rows):
    (p,) = problem.read(f"--ip --dir=FWD_B mb{rows}ic1100oc420")
    case = Case(p, CPU, OWN)
    assert case.trials, case.refusals
    for trial in case.trials:
        assert not trial.wrong(case.round("random"), trial.outputs("random")), trial.pd.impl_name
