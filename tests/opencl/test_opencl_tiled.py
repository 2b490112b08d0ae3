"""OpenCL's family for GPUs: how products become rows, columns and k, its tiles and its rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import Target, check
from conftest import TARGETS
from dnncore_opencl.convolution.implementations import BackwardData, BackwardWeights, Forward
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.tiled.family import TILES, Tiled
from dnncore_opencl.gemm.tiled.launch import TiledTile
from dnncore_opencl.gemm.tiled.view import TiledProduct
from dnncore_opencl.matmul import MatMulImplementation
from dnncore_opencl.runtime.build import Builder
from dnncore_opencl.runtime.launch import Launch

import dnncore as dnn
from dnncore.backend import Accepted
from dnncore.problem import read

IMPLEMENTATIONS = {
    dnn.ConvolutionForward: Forward,
    dnn.ConvolutionBackwardData: BackwardData,
    dnn.ConvolutionBackwardWeights: BackwardWeights,
    dnn.MatMul: MatMulImplementation,
}
UNITS = 132
DEVICES = [
    Target(str(t), t.engine_name, impl="opencl:tiled")
    for t in TARGETS
    if t.engine_name.startswith("opencl")
]
devices = pytest.mark.parametrize("target", DEVICES, ids=str)


def gemms(text):
    (problem,) = read(text.split())
    implementation = IMPLEMENTATIONS[type(problem.op)](Tiled)
    op = problem.op.resolve_any(**implementation.formats(problem.op))
    return list(implementation.gemms(op, problem.attr))


def product(text):
    return TiledProduct.of(gemms(text)[0])


def loads(side):
    return ("k" if side.along_k else "rows", side.width)


@pytest.mark.parametrize("depth", [12, 20, 24, 48])
def test_tiles_whose_depth_does_not_divide_a_table_cannot_be(depth):
    with pytest.raises(dnn.DescriptorError):
        TiledTile(64, 64, depth=depth)


# -- rows, columns and k ---------------------------------------------------------------------------


def test_channels_last_convolution_has_rows_of_pixels_and_counts_channels_fastest():
    p = product("--conv --stag=any --dtag=any mb2ic8oc12_ih9kh3ph1")
    assert (p.rows.sizes, p.columns.sizes, p.k.sizes) == ((2, 9, 9), (12,), (3, 3, 8))
    assert loads(p.a) == loads(p.b) == ("k", 4)
    assert (p.c_width, p.window_is_a, p.k_is_plain) == (4, True, False)
    assert p.window == ((-1, -1), (0, 1, 1), (1, 1, 0), (9, 9))


def test_pointwise_convolution_has_no_window_and_one_stride_along_k():
    p = product("--conv --stag=any --dtag=any mb2ic8oc12_ih9kh1")
    assert p.window is None
    assert p.k_is_plain


def test_a_window_that_is_never_left_is_none():
    assert product("--conv --stag=any --dtag=any ic8oc12_ih9kh3ph0").window is None
    assert product("--conv --stag=any --dtag=any ic8oc12_ih9oh4kh3sh2ph1prh0").window is not None


def test_backward_data_reads_weights_along_columns():
    p = product("--conv --dir=BWD_D --stag=any --dtag=any mb2ic8oc12_ih9kh3ph1")
    assert (p.columns.sizes, p.k.sizes) == ((8,), (3, 3, 12))
    assert (loads(p.a), loads(p.b)) == (("k", 4), ("rows", 4))


def test_backward_weights_reads_both_along_channels():
    p = product("--conv --dir=BWD_W --stag=any --dtag=any mb2ic8oc12_ih9kh3ph1")
    assert (p.rows.sizes, p.columns.sizes, p.k.sizes) == ((12,), (3, 3, 8), (2, 9, 9))
    assert loads(p.a) == loads(p.b) == ("rows", 4)
    assert (p.c_width, p.window_is_a) == (4, False)


@pytest.mark.parametrize(
    ("text", "left", "right", "c_width"),
    [
        ("68x72:72x76", ("k", 4), ("rows", 4), 4),
        ("--stag=ba --wtag=ba 68x72:72x76", ("rows", 4), ("k", 4), 4),
        ("67x71:71x76", ("k", 1), ("rows", 4), 4),
        ("68x72:72x75", ("k", 4), ("rows", 1), 1),
        ("--stag=ab@73x1 68x72:72x76", ("k", 1), ("rows", 4), 4),
        ("--stag=ab@76x1@2 68x72:72x76", ("k", 1), ("rows", 4), 4),
    ],
)
def test_vectors_are_aligned(text, left, right, c_width):
    p = product(f"--matmul {text}")
    assert (loads(p.a), loads(p.b), p.c_width) == (left, right, c_width)


def test_columns_are_what_lies_side_by_side_in_the_result():
    p = product("--matmul --dtag=ba 68x72:72x76")
    assert (p.rows.sizes, p.columns.sizes) == ((76,), (68,))


# -- tiles and parts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 256, "columns": 128},  # too many work-items
        {"rows": 64, "columns": 32},  # too few to locate values of k
        {"rows": 128, "columns": 128, "depth": 16},  # too much local memory
        {"rows": 128, "columns": 32},  # no eight work-items side by side
    ],
)
def test_tiles_that_cannot_be_are_refused(wrong):
    with pytest.raises(dnn.DescriptorError):
        TiledTile(**wrong)


def test_a_large_product_takes_the_largest_tile_whole():
    tile, part = Tiled(UNITS).choose(product("--matmul 4096x4096:4096x4096"))
    assert (tile.rows, tile.columns, part) == (128, 128, 4096)


def test_few_columns_take_a_narrow_tile():
    p = product("--conv --stag=any --dtag=any mb64ic64ih56oc64oh56kh3ph1")
    tile, _ = Tiled(UNITS).choose(p)
    assert tile.columns == 64


def test_a_long_k_is_cut_for_all_multiprocessors():
    text = "--conv --dir=BWD_W --stag=any --dtag=any mb64ic64ih56oc256oh56kh1"
    tile, part = Tiled(UNITS).choose(product(text))
    parts = math.ceil(64 * 56 * 56 / part)
    assert part % tile.depth == 0
    assert tile.groups(product(text)) * parts > 3 * UNITS
    first, second = Tiled(UNITS).plan(gemms(text)[0]).launches
    assert (first.kernel, second.kernel) == ("gemm_tiled", "gemm_reduce")


def test_one_tile_and_its_parts_are_kept():
    tile = TiledTile(64, 64)
    chosen, part = Tiled(UNITS, (tile,), 3).choose(product("--matmul 512x1000:1000x512"))
    assert (chosen, part) == (tile, 336)


STRIDED = "--conv --dir=BWD_D mb1ic4ih16oc8oh4kh4sh4ph0"  # 16 products of one size


def test_products_of_one_size_have_one_choice(monkeypatch):
    asked = []

    def choice(_, one):
        asked.append(one)
        return TILES[0], 8

    monkeypatch.setattr(Tiled, "_choice", choice)
    family = Tiled(UNITS)
    assert len([family.plan(gemm) for gemm in gemms(STRIDED)]) == 16
    assert len(asked) == 1


@devices
@pytest.mark.parametrize("family", [Tiled, CpuFamily])
def test_launches_are_made_when_they_are_built(target, family, monkeypatch):
    monkeypatch.setattr(family, "refusal", lambda _: None)
    (problem,) = read(STRIDED)
    made = []
    monkeypatch.setattr(Launch, "__post_init__", made.append)
    answer = BackwardData(family).accept(problem.op, problem.attr, target.engine, None)
    assert isinstance(answer, Accepted)
    assert not made


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize("tile", [TILES[0], TILES[4], TILES[5]], ids="{0.rows}x{0.columns}".format)
@pytest.mark.parametrize("parts", [1, 3])
def test_every_tile_multiplies(target, tile, parts, monkeypatch):
    family = Tiled(4, (tile,), parts)
    monkeypatch.setattr(Tiled, "of", classmethod(lambda _cls, _engine: family))
    rows, columns = 130 + 2 * tile.rows // 32 + parts, 132 + 4 * tile.columns // 32
    shapes = (rows, 204), (204, columns), (rows, columns)
    src, weights, dst = map(dnn.MemoryDesc, shapes)
    attr = dnn.Attributes(post_ops=[dnn.PostOp.sum(0.5), dnn.PostOp.eltwise("relu")])
    check(target, dnn.MatMul(src=src, weights=weights, dst=dst), attr)


@devices
def test_nothing_is_read_beyond_tensors_that_are_not_finite_elsewhere(target):
    """Rows and columns beyond the last must not reach results, whatever they would read."""
    src, weights = np.ones((5, 12), np.float32), np.ones((12, 9), np.float32)
    weights[:, 8] = np.inf
    src[4] = np.nan
    engine = target.engine
    descs = [dnn.MemoryDesc(shape) for shape in ((5, 12), (12, 9), (5, 9))]
    op = dnn.MatMul(src=descs[0], weights=descs[1], dst=descs[2])
    primitive = dnn.PrimitiveDesc(op, engine, impl="opencl:tiled").primitive()
    result = dnn.Memory(descs[2], engine)
    x, w = (dnn.Memory.from_numpy(array, engine=engine) for array in (src, weights))
    primitive.execute(engine.stream(), src=x, weights=w, dst=result).wait()
    np.testing.assert_array_equal(result.numpy()[:4, :8], 12)
    assert np.isinf(result.numpy()[:4, 8]).all()
    assert np.isnan(result.numpy()[4]).all()


# -- compiling ------------------------------------------------------------------------------------

LITTLE = ["--matmul 4x5:5x6", "--matmul 64x64:64x64", "--conv mb1ic2ih4oc3oh4kh3ph1",
          "--softmax 2x8", "--softmax --axis=0 --stag=ab 900x9"]  # fmt: skip
MUCH = ["--matmul 64x65:65x64", "--matmul 65x64:64x64", "--softmax 16x1000"]


def options_of_compilers(target, text, monkeypatch):
    """The options of the programs that a problem needs."""
    options = []
    monkeypatch.setattr(Builder, "program", lambda _, __, own, *___, **____: options.extend(own))
    (problem,) = read(text.split())
    (pd,) = dnn.primitive_descs(problem.op, target.engine, problem.attr, impl=target.impl)
    dnn.cache.primitives.clear()
    try:
        pd.primitive()
    finally:
        dnn.cache.primitives.clear()
    return options


@devices
@pytest.mark.parametrize("text", [*LITTLE, *MUCH])
def test_cpus_do_not_optimize_what_takes_longer_to_compile_than_to_run(target, text, monkeypatch):
    options = options_of_compilers(target, text, monkeypatch)
    is_cpu = target.engine.is_cpu
    assert ("-cl-opt-disable" in options) == (is_cpu and text in LITTLE)


@devices
@pytest.mark.parametrize("text", LITTLE)
def test_gpus_optimize_all(target, text, monkeypatch):
    monkeypatch.setattr("dnncore_opencl.runtime.build.device_type", lambda _device: "gpu")
    assert "-cl-opt-disable" not in options_of_compilers(target, text, monkeypatch)
