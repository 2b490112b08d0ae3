"""Winograd's convolution of the CPU backend: matrices, blocks, formats, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba")

from checks import Target, check, run
from dnncore_cpu_numba.codegen.isa import AVAILABLE, BEST
from dnncore_cpu_numba.convolution.geometry import ONES, Geometry
from dnncore_cpu_numba.convolution.winograd.blocks import WinogradLoop

import dnncore as dnn
from dnncore.cache import MemoryCache
from dnncore.comparison.fills import fill_inputs, fill_normal
from dnncore.engines.peaks import Peaks
from dnncore.planning.toom_cook import F43, error_factor
from dnncore.problem import read

WINOGRAD = Target("cpu", "cpu", impl="cpu_numba:winograd:*")
CPU = dnn.engine("cpu")


def operation(text):
    ((problem,)) = read(f"--conv --alg=wino {text}")
    return problem.op


def winograd(op):
    """The implementation for this processor."""
    return dnn.PrimitiveDesc(op, CPU, impl=f"cpu_numba:winograd:{BEST.name}")


# -- errors ----------------------------------------------------------------------------------------


def test_errors_are_larger_than_the_direct_ones_by_less_than_the_factor():
    op = operation("--dir=FWD_D mb1ic64ih16oc16kh3ph1")
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    exact = {name: array.astype(np.float64) for name, array in inputs.items()}
    padded = np.pad(exact["src"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("ncyxrs,ocrs->noyx", seen, exact["weights"])
    direct = dnn.PrimitiveDesc(replace(op, algorithm="direct"), CPU, impl="cpu_numba:brgemm:*")
    errors = [
        np.sqrt(np.mean((run(pd, inputs)["dst"] - expected) ** 2)) for pd in (winograd(op), direct)
    ]
    assert 1 < errors[0] / errors[1] < error_factor(F43, F43, 64)


# -- results ---------------------------------------------------------------------------------------

SHAPES = {
    "several_blocks": "mb3ic20ih30oc24kh3ph1_iw45kw3pw1",
    "one_block_and_groups_of_panels": "mb1ic40ih7oc200kh3ph1",
    "a_long_share": "mb9ic3ih44oc5kh3ph0",
    "padding_on_one_side": "mb2ic17ih9oh9oc33kh3ph0_iw10ow9kw3pw1",
    "no_borders": "mb2ic5ih10oc7kh3ph0",
    "no_images": "mb0ic4ih6oc4kh3ph1",
    "one_group": "g1mb1ic5ih6oc18kh3ph1",
}


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes_larger_than_the_kits(shape, direction):
    check(WINOGRAD, operation(f"--dir={direction} --stag=any --dtag=any {shape}"))


@pytest.mark.parametrize("dims", [(2, 40, 10, 11), (1, 40, 10, 11), (2, 40, 1, 11), (2, 1, 10, 1)])
@pytest.mark.parametrize("tag", ["abcd", "acdb"])
def test_operands_of_each_pixel_and_of_some(dims, tag):
    """Operands of whole vectors of 16 channels and of a last one of 8, for images of 9 tiles."""
    op = operation("--dir=FWD_D --stag=acdb --dtag=acdb mb2ic5ih10oc40kh3ph1_iw11ow11kw3pw1")
    operand = dnn.MemoryDesc(dims, "f32", tag)
    steps = (dnn.PostOp.binary("sub", operand), dnn.PostOp.sum(0.5), dnn.PostOp.prelu(operand))
    check(WINOGRAD, op, dnn.Attributes(steps))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("tiles", [1, 2, 47, 48, 500, 10000])
@pytest.mark.parametrize("columns", [1, 64, 1000])
def test_shares_are_work_for_each_thread_and_blocks_hold_all_tiles(threads, tiles, columns):
    sizes = {"src": (1, 4, 4), "dst": (1, 4, 4), "kernel": (1, 3, 3), "padding": (0, 1, 1)}
    channels = {"groups": 1, "ic": 64, "oc": columns}
    g = Geometry(tiles, **channels, **sizes, stride=ONES, dilation=ONES, backward=False)
    loop = WinogradLoop.of(BEST, g, threads)
    assert (loop.blocks - 1) * loop.block < tiles <= loop.blocks * loop.block
    assert loop.shares == min(threads, loop.blocks * loop.groups)
    assert loop.groups <= loop.panels
    if tiles >= threads:
        assert loop.shares > threads // 2


def test_nan_stays_in_the_tiles_that_read_it():
    op = operation("--dir=FWD_D mb1ic2ih16oc2kh3ph1")
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    inputs["src"][0, 1, 5, 6] = np.nan
    is_nan = np.isnan(run(winograd(op), inputs)["dst"])
    assert is_nan[:, :, 4:7, 5:8].all()
    assert not is_nan[:, :, 8:].any()
    assert not is_nan[:, :, :, 8:].any()


# -- formats ---------------------------------------------------------------------------------------


def test_the_filter_is_opaque_and_made_by_a_reorder():
    op = operation("--dir=FWD_D --stag=any --dtag=any mb1ic5ih6oc7kh3ph1")
    pd = winograd(op)
    lanes = BEST.lanes
    assert pd.weights_desc.tag == f"cpu_numba:winograd:4x3:forward:{lanes}"
    assert pd.weights_desc.nbytes == 4 * 36 * 5 * -(-7 // lanes) * lanes
    plain = dnn.Memory.from_numpy(np.ones((7, 5, 3, 3), np.float32))
    transformed = dnn.reorder(plain, pd.weights_desc)
    with pytest.raises(dnn.NoImplementation, match="makes cpu_numba:winograd:4x3 of strides"):
        dnn.reorder(transformed, plain.desc)


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
@pytest.mark.parametrize("groups", ["", "g1"])
def test_filters_of_strides_are_transformed_by_the_convolution(groups, direction):
    for tag in ("abx", "xba"):
        shape = f"{groups}mb1ic5ih6oc18kh3ph1"
        check(WINOGRAD, operation(f"--dir={direction} --wtag={tag} {shape}"))


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
def test_images_whose_blocks_are_not_of_channels_alone_are_copied(direction):
    layouts = "--stag=aBCd4b2c --dtag=ABcd2a8b"
    check(WINOGRAD, operation(f"--dir={direction} {layouts} mb3ic5ih6oc18kh3ph1"))


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
def test_a_transformed_filter_is_taken(direction):
    op = operation(f"--dir={direction} --stag=acdb --dtag=acdb mb1ic5ih6oc18kh3ph1")
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    chosen = winograd(op)
    given = winograd(op.with_descs(weights=chosen.weights_desc))
    (name,) = (a.name for a, _ in chosen.arguments if a.direction == "out")
    np.testing.assert_array_equal(run(given, inputs)[name], run(chosen, inputs)[name])


def test_the_filters_reorder_refuses_all_else():
    desc = winograd(operation("--dir=FWD_D mb1ic5ih6oc7kh3ph1")).weights_desc
    src = dnn.MemoryDesc(desc.dims)
    larger = dnn.MemoryDesc(desc.dims, "f32", desc.tag, nbytes=desc.nbytes + 64)
    relu = dnn.Attributes([dnn.PostOp.eltwise("relu")])
    for op, attr, reason in (
        (dnn.Reorder(src=desc, dst=desc), None, "format: makes cpu_numba:winograd:4x3 of strides"),
        (
            dnn.Reorder(src=src.with_data_type("s8"), dst=desc),
            None,
            "type: .* bf16; got s8",
        ),
        (dnn.Reorder(src=src, dst=larger), None, f"format: .* got {larger.nbytes} bytes"),
        (dnn.Reorder(src=src, dst=desc), relu, "attribute: no post-ops; got 1"),
    ):
        with pytest.raises(dnn.NoImplementation, match=reason):
            dnn.PrimitiveDesc(op, CPU, attr, impl="cpu_numba:winograd")


def test_a_filter_of_another_direction_is_refused():
    forward = operation("--dir=FWD_D mb1ic8ih6oc8kh3ph1")
    backward = operation("--dir=BWD_D mb1ic8ih6oc8kh3ph1")
    desc = winograd(backward.with_descs(weights=backward.weights.with_format("any"))).weights_desc
    with pytest.raises(dnn.NoImplementation, match=r"format: weights must have .*backward_data"):
        dnn.PrimitiveDesc(replace(forward, weights=desc), CPU, impl="cpu_numba:winograd:*")


@pytest.mark.parametrize(
    ("shape", "reason"),
    {
        "ic4ih5oc4kh5ph2": r"shape: kernel must be (3, 3); got (5, 5)",
        "ic4iw5oc4kw3pw1": r"shape: kernel must be (3, 3); got (3,)",
        "ic4ih5oc4kh3sh2ph1": r"shape: strides must be (1, 1); got (2, 2)",
        "ic4ih7oc4kh3dh1ph2": r"shape: dilations must be (0, 0); got (1, 1)",
        "g2ic4ih5oc4kh3ph1": r"shape: groups must be 1; got 2",
    }.items(),
)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
def test_what_is_refused(direction, shape, reason):
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(operation(f"--dir={direction} {shape}"), CPU, impl="cpu_numba:*")
    reasons = {refusal.impl_name: str(refusal) for refusal in caught.value.refusals}
    assert all(reason in reasons[f"cpu_numba:winograd:{isa.name}"] for isa in AVAILABLE)


# -- selection -------------------------------------------------------------------------------------


@pytest.fixture
def two_cores(monkeypatch):
    """Rates of two cores with AVX-512, whatever else these here do when they are measured."""
    peaks = Peaks({"f32": 225e9, "f64": 112e9}, bandwidth=25e9, launch=3e-6)
    monkeypatch.setattr("dnncore.engines.cpu_peaks.cpu_peaks", lambda _threads: peaks)
    monkeypatch.setattr("dnncore.selection.ranking._selections", MemoryCache(1))


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("direction", ["FWD_I", "BWD_D"])
@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        ("mb4ic128ih28oc128kh3ph1", "winograd"),
        ("mb1ic64ih56oc64kh3ph1", "winograd"),
        ("mb1ic512ih7oc512kh3ph1", "direct"),  # a filter of 38 MB for four tiles
        ("mb32ic512ih7oc512kh3ph1", "winograd"),
        ("mb4ic3ih224oc64kh3ph1", "direct"),  # all time would go into transforms
    ],
)
def test_auto_is_what_is_estimated_to_be_faster(direction, shape, algorithm):
    op = operation(f"--dir={direction} --stag=any --dtag=any {shape}")
    pd = dnn.PrimitiveDesc(replace(op, algorithm="auto"), CPU, impl="cpu_numba:*")
    assert pd.op.algorithm == algorithm
    assert (":winograd:" in pd.impl_name) == (algorithm == "winograd")


def test_what_it_claims():
    pd = winograd(operation("--dir=FWD_D mb1ic8ih6oc8kh3ph1"))
    assert not pd.exact
    assert pd.error_factor == error_factor(F43, F43, 8)
    assert pd.scratchpad_bytes > 0
