"""Inputs that are hard on kernels: misaligned, NaN and infinite, far apart in memory, long chains.

Every algorithm of the CPU backend that accepts a problem is tried, beside the kit's checks.
"""

import mmap
import sys
from functools import cache

import numpy as np
import pytest
from combinations import every
from instruction_sets import names_in_turn

import dnncore as dnn
from dnncore import problem
from dnncore.testing import run_case
from dnncore.testing.checks.case import Case
from dnncore.testing.problems.cases import cases

pytest.importorskip("numba")

from dnncore_cpu_numba.softmax import implementations

CPU = dnn.engine("cpu")
OWN = "cpu_numba:*"
DRIVERS = sorted({str(p).split()[0] for p in cases("smoke", more=False)})


@cache
def problems_of(driver):
    """The kit's small problems of one operation, all directions, formats and attributes."""
    return [p for p in cases("smoke", more=False) if str(p).split()[0] == driver]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.strip("-"))
def driver(request):
    """Each operation's word in the problem text."""
    return request.param


# -- misaligned, NaN and infinity ------------------------------------------------------------------


def test_misaligned_memories_and_nan(driver):
    """About four problems of each operation, since building the kernels takes most of the time."""
    checks = ["special", "shifted", "guards", "inputs", "padding"]
    results = [
        run_case(p, CPU, impl=names_in_turn(p, CPU, OWN), checks=checks)
        for p in problems_of(driver)[:: max(4, len(problems_of(driver)) // 4)]
    ]
    assert not [str(result) for result in results if result.failures]
    assert any(result.impl_names for result in results)


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


@pytest.mark.parametrize("types", ["", "--sdt=bf16 --ddt=bf16", "--ddt=f16"])
@pytest.mark.parametrize("direction", ["FWD_D --alg=log", "FWD_D", "BWD_D"])
def test_rows_past_the_caches_begin_at_any_byte(monkeypatch, direction, types):
    """A store past the caches needs a whole line, which no f32 at an odd address begins with."""
    monkeypatch.setattr(implementations, "STREAM_BYTES", 0)
    [given] = problem.read(f"--softmax --dir={direction} {types} --axis=1 7x1187")
    result = run_case(given, CPU, impl=OWN, checks=["shifted"])
    assert result.impl_names
    assert not result.failures


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
    case = Case(p, CPU, names_in_turn(p, CPU, OWN))
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


@every(3, ("text", CHAINED), ("chain", CHAINS))
def test_chains_of_32_steps(text, chain):
    (p,) = problem.read(text.format(f"--attr-post-ops={CHAINS[chain]}"))
    assert len(p.attr.post_ops) == 32
    case = Case(p, CPU, names_in_turn(p, CPU, OWN))
    assert case.trials, case.refusals
    for trial in case.trials:
        assert not trial.wrong(case.round("random"), trial.outputs("random")), trial.pd.impl_name


# -- few rows beside a matrix larger than a core's cache -------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 13, 20, 33, 64])
def test_few_rows_of_a_large_product(rows):
    (p,) = problem.read(f"--ip --dir=FWD_B mb{rows}ic1100oc420")
    case = Case(p, CPU, names_in_turn(p, CPU, OWN))
    assert case.trials, case.refusals
    for trial in case.trials:
        assert not trial.wrong(case.round("random"), trial.outputs("random")), trial.pd.impl_name
