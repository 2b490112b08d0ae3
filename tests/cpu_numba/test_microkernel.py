"""The CPU backend's microkernels against numpy, on each instruction set that this machine has."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.isa import AVAILABLE, BEST, DOT_ISAS
from dnncore_cpu_numba.elementwise.epilogue import (
    INLINE,
    Call,
    Correction,
    Eltwise,
    Operand,
    Sum,
    call_rows,
)
from dnncore_cpu_numba.elementwise.post_ops import eltwise
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.microkernel import MICROKERNEL, Microkernel

GUARD = np.float32(7.5)


def call(kernel, **arguments):
    """Call a kernel with arrays (their addresses are passed) and numbers; those left out are 0."""
    values = [arguments.get(name, 0) for name in MICROKERNEL.fields]
    values = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in values]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(kernel.address)(*values)


def operand_table(kernel, operands=()):
    """What an epilogue reads: (address, row, block) of operands, then the rows of its calls."""
    kept.extend(calls := call_rows(kernel.epilogue))
    return np.array([*operands, *((row.ctypes.data, 0, 0) for row in calls), (0, 0, 0)], np.int64)


kept = []  # alive until the last call


class Problem:
    """Random operands of a tile in the layouts that a kernel expects, and the right answer.

    C is a plain matrix with a guard column behind the tile; lanes: valid ones of the last vector.
    """

    def __init__(self, kernel, *, k=7, batch=2, lanes=None, seed=0):
        rng = np.random.default_rng(seed)
        width = kernel.isa.lanes
        self.kernel, self.lanes = kernel, lanes or width
        self.columns = (kernel.vectors - 1) * width + self.lanes
        self.a = rng.standard_normal((batch, kernel.rows, k), dtype=np.float32)
        self.b = rng.standard_normal((batch, k, kernel.vectors * width), dtype=np.float32)
        if not kernel.panel:
            self.b = self.b[..., : self.columns]
        padded = kernel.vectors * width if kernel.edge == "zeroed" else self.columns
        self.c = np.full((kernel.rows, padded + 1), GUARD)
        self.c[:, : self.columns] = rng.standard_normal((kernel.rows, self.columns))
        self.before = self.c[:, : self.columns].copy()

    @property
    def product(self):
        b = self.b[..., : self.columns].astype(np.float64)
        return np.einsum("imx,ixn->mn", self.a.astype(np.float64), b)

    def run(self, *, accumulate=False, operands=None):
        """The tile of C after a call; checks that nothing around it was touched."""
        kernel, width = self.kernel, self.kernel.isa.lanes
        batch, rows, k = self.a.shape
        a = self.a if kernel.along == "k" else self.a.transpose(0, 2, 1)
        a = np.ascontiguousarray(a)
        b = self.b
        if kernel.panel:
            b = b.reshape(batch, k, kernel.vectors, width).transpose(0, 2, 1, 3)
        b = np.ascontiguousarray(b)
        places = np.arange(batch)[:, None]
        places = np.concatenate([places * 4 * rows * k, places * b.strides[0]], axis=1)
        table = [batch, k, *places.ravel()]
        call(
            kernel,
            a=a,
            b=b,
            c=self.c,
            batch_table=np.array(table, np.int64),
            blocks=1,
            a_stride=4 * (k if kernel.along == "k" else rows),
            b_row=4 * (width if kernel.panel else self.columns),
            b_block=4 * width * (k if kernel.panel else 1),
            c_row=self.c.strides[0],
            c_block=4 * width,
            accumulate=int(accumulate),
            lanes=self.lanes,
            operands=operand_table(kernel, operands or ()),
        )
        assert (self.c[:, -1] == GUARD).all()
        assert (self.c[:, self.columns : -1] == 0).all()  # zeroed padding, where there is any
        return self.c[:, : self.columns]


def assert_close(got, expected, factor=1.0):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=factor * 2e-6 * scale)


@pytest.fixture(params=AVAILABLE, ids=lambda isa: isa.name)
def isa(request):
    return request.param


@pytest.mark.parametrize("along", ["k", "rows"])
@pytest.mark.parametrize("panel", [True, False], ids=["panel", "matrix"])
def test_every_tile_width(isa, along, panel):
    for vectors, most in isa.rows.items():
        for rows in {1, 2, most}:
            problem = Problem(Microkernel(isa, rows, vectors, along, panel))
            assert_close(problem.run(), problem.product)


@pytest.mark.parametrize(
    "ahead", [{"a_ahead": "tile"}, {"a_ahead": "block"}, {"b_ahead": 2}, {"c_ahead": True}]
)
@pytest.mark.parametrize("panel", [True, False], ids=["panel", "matrix"])
def test_prefetches_change_nothing(isa, ahead, panel):
    problem = Problem(Microkernel(isa, 5, 2, panel=panel, **ahead), k=37)
    assert_close(problem.run(), problem.product)


@pytest.mark.parametrize("k", [0, 4, 16, 36])
def test_depths_without_remainder(isa, k):
    problem = Problem(Microkernel(isa, 4, 2, whole=True), k=k)
    assert_close(problem.run(), problem.product)


WITH_PRODUCTS = [one for one in (*DOT_ISAS, *AVAILABLE) if not one.obstacle]
ALL_OF = {"u8": np.arange(256), "s8": np.arange(-128, 128)}
NUMPY = {"u8": np.uint8, "s8": np.int8, "s32": np.int32, "sums": np.int32, "f32": np.float32}


@pytest.mark.parametrize("any_isa", WITH_PRODUCTS, ids=lambda one: one.name)
@pytest.mark.parametrize(("a_type", "b_type"), [("u8", "s8"), ("s8", "s8"), ("s8", "u8")])
@pytest.mark.parametrize("result", ["sums", "s32", "u8", "s8", "f32"])
def test_products_of_integers_are_exact(any_isa, a_type, b_type, result):
    arithmetic = Arithmetic(a_type, b_type)
    if any_isa in DOT_ISAS and not arithmetic.is_native(any_isa):
        pytest.skip("it has no such instruction")
    rng = np.random.default_rng(1)
    rows, vectors, k, lanes = 3, 2, 5, any_isa.lanes
    chain = (Correction((False, True)),) if result != "sums" else ()
    kernel = Microkernel(
        any_isa, rows, vectors, epilogue=chain, arithmetic=arithmetic, result=result
    )
    a = rng.choice(ALL_OF[a_type], (rows, 4 * k)).astype(NUMPY[a_type])
    b = rng.choice(ALL_OF[b_type], (vectors, k, lanes, 4)).astype(NUMPY[b_type])
    b[0, :, 0] = ALL_OF[b_type][0]  # with the extremes of A, saturating instructions would saturate
    a[0] = ALL_OF[a_type][-1]
    terms = rng.integers(-1000, 1000, vectors * lanes).astype(np.int32)
    factor = np.array([2**31 - 1], np.int32)
    columns = b.astype(np.int64).transpose(1, 3, 0, 2).reshape(4 * k, vectors * lanes)
    sums = a.astype(np.int64) @ columns
    if chain:
        sums = (sums - terms.astype(np.int64) * factor).astype(np.int32)
    c = np.zeros((rows, vectors * lanes), NUMPY[result])
    operands = [(terms.ctypes.data, 0, 4 * lanes), (factor.ctypes.data, 0, 0)] if chain else []
    call(
        kernel, a=a, b=b, c=c, batch_table=np.array([1, k, 0, 0]), blocks=1, a_stride=4 * k,
        b_row=4 * lanes, b_block=4 * lanes * k, c_row=c.strides[0], c_block=c.itemsize * lanes,
        operands=operand_table(kernel, operands),
    )  # fmt: skip
    expected = sums.astype(np.int32)
    if result != "sums":
        expected = expected.astype(np.float32)
    if result in ("s32", "u8", "s8"):
        limits = np.iinfo(result.replace("s", "int").replace("u", "uint"))
        expected = np.clip(expected.astype(np.float64), limits.min, limits.max)
    np.testing.assert_array_equal(c, expected.astype(NUMPY[result]))


@pytest.mark.parametrize("any_isa", DOT_ISAS, ids=lambda one: one.name)
def test_products_of_bf16(any_isa):
    arithmetic = Arithmetic("bf16", "bf16")
    if any_isa.obstacle or not arithmetic.is_native(any_isa):
        pytest.skip("it has no such instruction")
    rng = np.random.default_rng(2)
    rows, vectors, k, lanes = 3, 2, 5, any_isa.lanes
    kernel = Microkernel(any_isa, rows, vectors, arithmetic=arithmetic)
    a = rng.integers(-99, 99, (rows, 2 * k)).astype(np.float32)
    b = rng.integers(-99, 99, (vectors, k, lanes, 2)).astype(np.float32)
    halves = [np.ascontiguousarray(x.view(np.uint16)[..., 1::2]) for x in (a, b)]
    c = np.zeros((rows, vectors * lanes), np.float32)
    call(
        kernel, a=halves[0], b=halves[1], c=c, batch_table=np.array([1, k, 0, 0]), blocks=1,
        a_stride=4 * k, b_row=4 * lanes, b_block=4 * lanes * k, c_row=c.strides[0],
        c_block=4 * lanes, operands=operand_table(kernel),
    )  # fmt: skip
    expected = a @ b.transpose(1, 3, 0, 2).reshape(2 * k, vectors * lanes)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("offset", range(0, 68, 4))
def test_streamed_stores_at_every_address(isa, offset):
    kernel = Microkernel(isa, 3, 2, streamed=True)
    a, b = np.ones((3, 4), np.float32), np.ones((2, 4, isa.lanes), np.float32)
    buffer = np.zeros(4096, np.uint8)
    start = -buffer.ctypes.data % 64 + offset
    c = buffer[start : start + 3 * 256].view(np.float32).reshape(3, 64)
    call(
        kernel, a=a, b=b, c=c, batch_table=np.array([1, 4, 0, 0]), blocks=1, a_stride=16,
        b_row=b.strides[1], b_block=b.strides[0], c_row=256, c_block=4 * isa.lanes,
    )  # fmt: skip
    assert (c[:, : 2 * isa.lanes] == 4).all()
    assert not c[:, 2 * isa.lanes :].any()


@pytest.mark.parametrize("rows", range(1, 7))
def test_every_remainder_of_rows(isa, rows):
    problem = Problem(Microkernel(isa, rows, isa.most_vectors), k=16)
    assert_close(problem.run(), problem.product)


@pytest.mark.parametrize("k", [0, 1, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_every_depth(isa, k, batch):
    problem = Problem(Microkernel(isa, 4, 2), k=k, batch=batch)
    assert_close(problem.run(), problem.product)


def test_accumulates(isa):
    problem = Problem(Microkernel(isa, 3, 2))
    assert_close(problem.run(accumulate=True), problem.product + problem.before)


@pytest.mark.parametrize("a_ahead", ["", "block"])
def test_blocks_of_segments_of_some_rows(isa, a_ahead):
    """Rows 3, 0 and 7 of A; the second segment's elements are for the first and the last."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 8, 9), dtype=np.float32)  # block, row, column
    b = rng.standard_normal((5, 7, isa.lanes), dtype=np.float32)
    segments = [((0, 1, 2), 4, [(0, 1), (2, 3)]), ((0, 2), 3, [(5, 4)])]  # rows, k, (column, row)
    table, expected = [], np.zeros((3, isa.lanes))
    for rows, k, elements in segments:
        table += [len(elements), k, *(4 * n for x, y in elements for n in (x, y * isa.lanes))]
        for x, y in elements:
            product = np.einsum("qmx,qxn->mn", a[:, [3, 0, 7], x : x + k], b[:, y : y + k])
            expected[list(rows)] += product[list(rows)]
    c = np.empty((3, isa.lanes), np.float32)
    kernel = Microkernel(
        isa, 3, 1, a_rows=(3 * 36, 0, 7 * 36), segments=((0, 1, 2), (0, 2)), a_ahead=a_ahead
    )
    call(
        kernel, a=a, b=b, c=c, batch_table=np.array(table, np.int64), blocks=5,
        a_advance=a.strides[0], b_advance=b.strides[0], b_row=b.strides[1], c_row=c.strides[0],
        operands=operand_table(kernel),
    )  # fmt: skip
    assert_close(c, expected)


@pytest.mark.parametrize("edge", ["masked", "zeroed"])
@pytest.mark.parametrize("panel", [True, False], ids=["panel", "matrix"])
def test_edge_lanes(isa, edge, panel):
    for lanes in range(1, isa.lanes + 1):
        kernel = Microkernel(isa, 3, 2, panel=panel, edge=edge, epilogue=(Sum(0.5),))
        problem = Problem(kernel, lanes=lanes)
        assert_close(problem.run(), problem.product + 0.5 * problem.before)


def test_padding_is_zero_after_a_function_that_has_no_zero(isa):
    kernel = Microkernel(isa, 2, 1, edge="zeroed", epilogue=(Call(eltwise("logistic")),))
    problem = Problem(kernel, lanes=1)
    assert_close(problem.run(), 1 / (1 + np.exp(-problem.product)))


@pytest.mark.parametrize("splat", [False, True], ids=["vector", "splat"])
@pytest.mark.parametrize("algorithm", ["add", "mul"])
def test_operands_of_any_strides(isa, algorithm, splat):
    kernel = Microkernel(isa, 3, 2, edge="masked", epilogue=(Operand(algorithm, (splat,)),))
    problem = Problem(kernel, lanes=max(1, isa.lanes - 1))
    operand = np.random.default_rng(1).standard_normal((3, problem.columns), dtype=np.float32)
    function = {"add": np.add, "mul": np.multiply}[algorithm]
    for per_row in (True, False):
        values = operand if per_row else operand[:1]
        row = operand.strides[0] if per_row else 0
        block = 0 if splat else 4 * isa.lanes
        got = problem.run(operands=[(operand.ctypes.data, row, block)])
        assert_close(got, function(problem.product, values[:, :1] if splat else values))


def test_a_long_chain(isa):
    chain = (
        Operand("add"),
        Eltwise("relu", alpha=0.25),
        Sum(0.5),
        Operand("mul", (True,)),
        Call(eltwise("tanh")),
        Eltwise("linear", alpha=2.0, beta=1.0),
    )
    problem = Problem(Microkernel(isa, 4, 2, epilogue=chain))
    bias = np.random.default_rng(2).standard_normal(problem.columns, dtype=np.float32)
    scale = np.random.default_rng(3).standard_normal((4, 1), dtype=np.float32)
    x = problem.product + bias
    x = np.where(x > 0, x, 0.25 * x) + 0.5 * problem.before
    expected = 2 * np.tanh(x * scale) + 1
    got = problem.run(operands=[(bias.ctypes.data, 0, 4 * isa.lanes), (scale.ctypes.data, 4, 0)])
    assert_close(got, expected, factor=4)


FUNCTIONS: dict[str, Any] = {
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x <= 0, 0.0, x),
    "linear": lambda x: 0.5 * x + 0.25,
}


def apply(isa, algorithm, values):
    """A function's values, applied to a tile that is nothing but C."""
    numbers = () if algorithm == "relu" else (0.5, 0.25)
    inline = algorithm in INLINE
    stage = Eltwise(algorithm, *numbers) if inline else Call(eltwise(algorithm, *numbers))
    kernel = Microkernel(isa, 1, 1, epilogue=(stage,))
    table = operand_table(kernel)
    padded = np.zeros(-(-len(values) // isa.lanes) * isa.lanes, np.float32)
    padded[: len(values)] = values
    for first in range(0, len(padded), isa.lanes):
        tile = padded[first : first + isa.lanes]
        call(kernel, c=tile, accumulate=1, lanes=isa.lanes, operands=table)
    return padded[: len(values)]


@pytest.mark.parametrize("algorithm", FUNCTIONS)
def test_functions_are_accurate(isa, algorithm):
    x = np.concatenate([np.linspace(-87, 87, 3001), np.linspace(-1, 1, 1001)]).astype(np.float32)
    expected = FUNCTIONS[algorithm](x.astype(np.float64))
    error = np.abs(apply(isa, algorithm, x) - expected)
    unit = np.spacing(np.maximum(np.abs(expected), 1e-37).astype(np.float32))
    assert (error / unit).max() <= 3


@pytest.mark.parametrize("algorithm", FUNCTIONS)
def test_functions_keep_nan_and_infinities(isa, algorithm):
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    with np.errstate(over="ignore"):
        expected = FUNCTIONS[algorithm](x.astype(np.float64))
    np.testing.assert_array_equal(apply(isa, algorithm, x), expected.astype(np.float32))


def test_names_tell_classes_apart():
    kernels = [
        Microkernel(BEST, 4, 2),
        Microkernel(BEST, 4, 1),
        Microkernel(BEST, 4, 2, "rows"),
        Microkernel(BEST, 4, 2, panel=False),
        Microkernel(BEST, 4, 2, edge="masked"),
        Microkernel(BEST, 4, 2, epilogue=(Sum(1.0),)),
        Microkernel(BEST, 4, 2, epilogue=(Sum(2.0),)),
        Microkernel(BEST, 4, 2, a_rows=(0, 4, 8, 12)),
        Microkernel(BEST, 4, 2, segments=((0, 1),)),
        Microkernel(BEST, 4, 2, a_ahead="block"),
        Microkernel(BEST, 4, 2, a_ahead="tile"),
        Microkernel(BEST, 4, 2, b_ahead=1),
        Microkernel(BEST, 4, 2, b_ahead=2),
        Microkernel(BEST, 4, 2, c_ahead=True),
        Microkernel(BEST, 4, 2, whole=True),
        Microkernel(BEST, 4, 2, streamed=True),
        Microkernel(BEST, 4, 2, arithmetic=Arithmetic("u8", "s8")),
        Microkernel(BEST, 4, 2, arithmetic=Arithmetic("s8", "s8")),
        Microkernel(BEST, 4, 2, arithmetic=Arithmetic("u8", "s8"), result="u8"),
    ]
    names = [kernel.name for kernel in kernels]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


SECOND_BUILD = """
import dnncore.cache
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.microkernel import Microkernel
assert Microkernel(BEST, 3, 1).address
stats = dnncore.cache.stats()
print(stats["compiled"], stats["from_disk"])
"""


def test_a_second_process_loads_it_from_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", SECOND_BUILD]
    counts = [subprocess.check_output(command, text=True).split() for _ in range(2)]
    assert counts == [["1", "0"], ["0", "1"]]
