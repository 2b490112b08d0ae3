"""OpenCL's Winograd convolution by planes: slices, chains, formats, and who may choose it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import check, run
from conftest import TARGETS
from dnncore_opencl.convolution.winograd import gpu as winograd

import dnncore as dnn
from dnncore.comparison.fills import fill_inputs, fill_normal
from dnncore.planning.toom_cook import F23, F43, error_factor
from dnncore.problem import read

pytestmark = pytest.mark.quick_builds

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
devices = pytest.mark.parametrize("target", OPENCL, ids=str)
directions = pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])


def problem(text):
    ((found,)) = read(f"--conv --stag=any --dtag=any {text}")
    return found


def own(target, name="?x?x3"):
    """The target with the implementations by planes alone."""
    return replace(target, impl=f"opencl:winograd:{name}:*")


@pytest.mark.in_turn(2)
@devices
@directions
@pytest.mark.parametrize(
    ("weights", "shape"),
    [
        ("any", "mb2ic8ih7oc12kh3ph1"),  # vectors, tiles at the border
        ("abx", "mb2ic8ih7oc12kh3ph1"),
        ("axb", "mb2ic8ih7oc12kh3ph1"),
        ("any", "mb3ic3ih6oh6oc5kh3ph1_iw9ow7kw3pw0"),  # no vectors
        ("any", "mb2ic4ih5oh7oc8kh3ph2_iw4ow6kw3pw2"),  # all of the filter beside the image
        ("any", "mb1ic4ih7oh8oc8kh3ph1_iw5ow5kw3pw1"),  # one more row of padding behind
        ("any", "mb1ic1ih4oc1kh3ph1"),
        ("any", "mb2ic8ih1oc4kh3ph1"),  # taps that see padding alone
        ("any", "mb1g1ic4ih5oc8kh3ph0"),
        ("any", "mb0ic4ih5oc8kh3ph1"),
    ],
)
def test_every_image_and_filter(target, direction, weights, shape):
    text = f"--dir={direction} --alg=wino --wtag={weights} {shape}"
    check(own(target), problem(text).op)


@devices
@directions
def test_slices_of_images(target, direction, monkeypatch):
    monkeypatch.setattr(winograd, "SLICE_BYTES", 30_000)
    found = problem(f"--dir={direction} --alg=wino --attr-post-ops=sum:0.5+add:f32:per_tensor "
                    "mb5ic8ih9oc12kh3ph1")  # fmt: skip
    (pd, *_) = own(target).primitive_descs(found.op, found.attr)
    assert len(pd.primitive().executable.launches) > 3
    check(own(target), found.op, found.attr)


@devices
def test_a_chain_and_images_of_another_layout(target):
    found = problem(
        "--dir=FWD_B --alg=wino --stag=abx --dtag=aBx8b --attr-post-ops=relu+mul:f32:per_oc+sum:2"
        " mb2ic8ih6oc16kh3ph1"
    )
    check(own(target), found.op, found.attr)


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize("channels", [4, 5])
def test_slices_of_sums(target, channels, monkeypatch):
    monkeypatch.setattr(winograd, "SLICE_BYTES", 10_000)
    found = problem("--dir=BWD_WB --alg=wino --wtag=any --attr-post-ops=sum:0.5+mul:f32:per_oc "
                    f"mb5ic{channels}ih7oc12kh3ph1")  # fmt: skip
    for pd in own(target).primitive_descs(found.op, found.attr):
        kernels = [launch.kernel for launch in pd.primitive().executable.launches]
        assert kernels.count("winograd_planes_points") == 10
        assert kernels.count("winograd_planes_taps") == 1
    check(own(target), found.op, found.attr)


@pytest.mark.in_turn
@pytest.mark.usefixtures("planned_for_gpus")
@devices
@pytest.mark.parametrize("tag", ["abx", "axb", "aBx8b"])
@pytest.mark.parametrize("weights", ["abx", "axb", "ABx8b8a"])
def test_gradients_in_every_layout(target, tag, weights):
    text = f"--conv --dir=BWD_WB --alg=wino --stag={tag} --dtag={tag} --wtag={weights}"
    ((found,)) = read(f"{text} mb2ic8ih5oc16kh3ph1")
    check(own(target), found.op)


@devices
def test_gradients_are_as_before_each_time(target):
    op = problem("--dir=BWD_WB --alg=wino --wtag=any mb3ic8ih9oc12kh3ph1").op
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    for pd in own(target).primitive_descs(op):
        first, second = (run(pd, inputs) for _ in range(2))
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name])


@devices
@pytest.mark.parametrize("name", ["src", "diff_dst"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_gradients_of_what_is_not_finite_are_not(target, name, odd):
    op = problem("--dir=BWD_W --alg=wino --wtag=abx mb1ic4ih6oc4kh3ph1").op
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    inputs[name][0, 1, 3, 2] = odd
    for pd in own(target).primitive_descs(op):
        made = np.moveaxis(run(pd, inputs)["diff_weights"], int(name == "src"), 0)
        assert not np.isfinite(made[1]).any()
        assert np.isfinite(made[[0, 2, 3]]).all()


@devices
def test_smaller_tiles_are_more_exact(target):
    op = problem("--dir=FWD_D --alg=wino --stag=axb --wtag=abx --dtag=axb mb1ic64ih16oc16kh3ph1").op
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    exact = {name: array.astype(np.float64) for name, array in inputs.items()}
    padded = np.pad(exact["src"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("ncyxrs,ocrs->noyx", seen, exact["weights"])
    for name, bound in (("2x2x3", 5e-7), ("2x4x3", 8e-7), ("4x4x3", 2e-6)):
        for pd in own(target, name).primitive_descs(op):
            error = np.linalg.norm(run(pd, inputs)["dst"] - expected) / np.linalg.norm(expected)
            assert error < bound


def test_factors_of_errors():
    small, middle, large = winograd.TILES
    assert small.error_factor(1) == error_factor(F23, F23, 1)
    assert middle.error_factor(1) < winograd.AUTO_ERROR_FACTOR < large.error_factor(1)
    assert large.error_factor(64) == error_factor(F43, F43, 64)
    assert [tile.is_exact for tile in winograd.TILES] == [True, False, False]


@devices
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_W"])
def test_the_claimed_factor_is_that_of_the_tile_and_the_depth(target, direction):
    op = problem(f"--dir={direction} --alg=wino mb2ic5ih9oc7kh3ph1").op
    depths = {"FWD_D": (5, 5, 5), "BWD_W": (2 * 5 * 5, 2 * 5 * 3, 2 * 3 * 3)}[direction]
    for tile, depth in zip(winograd.TILES, depths, strict=True):
        claim = tile.gradient_error_factor if direction == "BWD_W" else tile.error_factor
        for pd in own(target, tile.name).primitive_descs(op):
            assert pd.error_factor == claim(depth)


@devices
def test_filters_are_opaque_and_made_by_a_reorder(target):
    op = problem("--dir=FWD_D --alg=wino mb1ic5ih6oc7kh3ph1").op
    (pd,) = own(target, "2x2x3").primitive_descs(op)
    assert pd.weights_desc.tag == "opencl:winograd:2x2x3:forward:planes"
    assert pd.weights_desc.nbytes == 4 * 16 * 5 * 7
    plain = dnn.Memory.from_numpy(np.ones((7, 5, 3, 3), np.float32), engine=target.engine)
    transformed = dnn.reorder(plain, pd.weights_desc)
    with pytest.raises(dnn.NoImplementation, match="planes of f32 with strides"):
        dnn.reorder(transformed, plain.desc)


@devices
@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "--alg=wino ic4ih5oc4kh5ph2": "shape: kernel must be (3, 3); got (5, 5)",
        "--alg=wino ic4ih5oc4kh3sh2ph1": "shape: strides must be (1, 1); got (2, 2)",
        "--alg=wino g2ic4ih5oc4kh3ph1": "shape: groups must be 1; got 2",
    }.items(),
)
def test_what_it_refuses(target, text, reason):
    for direction in ("FWD_D", "BWD_D", "BWD_W"):
        with pytest.raises(dnn.NoImplementation) as caught:
            dnn.PrimitiveDesc(problem(f"--dir={direction} {text}").op, target.engine)
        refusals = [str(r) for r in caught.value.refusals]
        assert f"opencl:winograd:2x2x3:tiled: {reason}" in refusals


@devices
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_scratchpads_beyond_32_bits_are_refused(target, direction):
    op = problem(f"--dir={direction} --alg=wino mb1ic64ih9000oc64kh3ph1_iw1700ow1700kw3pw1").op
    with pytest.raises(dnn.NoImplementation, match="scratchpad must span"):
        dnn.PrimitiveDesc(op, target.engine, impl="opencl:winograd:*:tiled")


@devices
def test_gradients_by_an_algorithm(target):
    text = "--dir=BWD_WB --alg={} --wtag=any mb1ic4ih6oc4kh3ph1"
    by_auto = own(target).primitive_descs(problem(text.format("auto")).op)
    assert {pd.impl_name.split(":")[2] for pd in by_auto} == {"2x2x3", "2x4x3"}
    assert {pd.op.algorithm for pd in by_auto} == {"winograd"}
    assert {pd.diff_weights_desc.tag for pd in by_auto} == {"acdb"}
    refusals = dnn.PrimitiveDesc(problem(text.format("auto")).op, target.engine).explain()
    assert "rounding errors are up to 15.1 times those of direct sums" in refusals
    refusals = dnn.PrimitiveDesc(problem(text.format("direct")).op, target.engine).explain()
    assert "opencl:winograd:2x2x3:tiled: algorithm: computes by algorithm winograd" in refusals


@devices
def test_larger_errors_are_for_those_who_ask(target):
    text = "--dir=FWD_D --alg={} mb1ic4ih6oc4kh3ph1"
    assert own(target, "4x4x3").primitive_descs(problem(text.format("wino")).op)
    refusals = dnn.PrimitiveDesc(problem(text.format("auto")).op, target.engine).explain()
    assert "rounding errors are up to 15.1 times those of direct sums" in refusals


@devices
@pytest.mark.parametrize(
    ("strides", "offset0"), [((400, 1, 50, 8), 0), ((401, 1, 56, 8), 0), ((400, 1, 56, 8), 2)]
)
def test_images_whose_vectors_are_not_aligned_are_copied(target, strides, offset0):
    op = problem("--dir=FWD_D --alg=wino mb2ic8ih6oc4kh3ph1").op
    src = dnn.MemoryDesc(op.src.dims, strides=strides, offset0=offset0)
    check(own(target), op.with_descs(src=src))
