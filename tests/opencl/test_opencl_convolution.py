"""OpenCL's convolutions for CPUs, direct and Winograd's: where plans change, and formats."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import Target, check, run
from conftest import TARGETS
from dnncore_opencl.convolution import direct_weights as convolution_direct_weights
from dnncore_opencl.convolution import lines as convolution_lines
from dnncore_opencl.convolution.direct_weights import Pixels, Sums
from dnncore_opencl.convolution.lines import Lines
from dnncore_opencl.convolution.views import View
from dnncore_opencl.convolution.winograd import cpu as convolution_winograd
from dnncore_opencl.gemm.cpu import CpuFamily

import dnncore as dnn
from dnncore.comparison.fills import fill_inputs, fill_normal
from dnncore.planning.toom_cook import F43, error_factor
from dnncore.problem import read
from dnncore.testing import run_case

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]


@pytest.fixture(params=OPENCL, ids=str)
def target(request) -> Target:
    """Each CPU."""
    if not request.param.engine.is_cpu:
        pytest.skip("GPUs have other convolutions")
    return request.param


def operation(text):
    ((problem,)) = read(f"--conv --stag=any --dtag=any {text}")
    return problem.op


def own(target, kind):
    """The target with one implementation."""
    return replace(target, impl=f"opencl:{kind}:simd")


# -- direct ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
@pytest.mark.parametrize("shape", ["mb3ic40ih9oc70kh3ph1", "mb2ic33ih15oc34kh1sh2"])
def test_chunks_shorter_than_a_share(target, direction, shape, monkeypatch):
    monkeypatch.setattr(convolution_lines, "CHUNK_BYTES", 1)
    monkeypatch.setattr(convolution_lines, "TASKS_PER_CORE", 1 / 8)
    check(own(target, "direct"), operation(f"--dir={direction} {shape}"))


@pytest.mark.parametrize(
    "shape", ["mb3ic50ih9oc70kh3ph1", "mb2ic35ih15oc34kh1", "mb5ic3ih9oc20kh3"]
)
def test_sums_over_lines_that_do_not_fit_and_in_several_shares(target, shape, monkeypatch):
    monkeypatch.setattr(convolution_direct_weights, "LINE_BYTES", 1)
    monkeypatch.setattr(convolution_direct_weights, "SUM_BYTES", 1)
    monkeypatch.setattr(convolution_direct_weights, "LONGEST_LINE", 20)
    check(own(target, "direct"), operation(f"--dir=BWD_WB {shape}"))


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
def test_groups_of_whole_blocks_of_channels(target, direction):
    check(target, operation(f"--dir={direction} g2mb1ic32ih6oc32oh6kh3ph1"))


def lines(groups=1, columns=64, depth=64, out=(1, 1, 14, 14), taps=(1, 3, 3)):
    view = View(0, 0, 0, 0, 1, (0, 0, 0, 16))
    sizes = dict.fromkeys(("at", "n", "k"), (1, 1, 1)) | {"size": out[1:]}
    views = dict.fromkeys(("src", "weights", "dst"), view)
    flags = {"is_blocked": True, "src_is_blocked": True}
    channels = (groups, columns, depth)
    return Lines(16, channels, out, taps=taps, **sizes, **views, **flags)


@pytest.mark.parametrize("units", [1, 2, 64])
@pytest.mark.parametrize("columns", [1, 64, 1000])
@pytest.mark.parametrize("out", [(1, 1, 1, 1), (1, 1, 7, 7), (32, 1, 56, 56)])
def test_shares_are_work_for_all_cores(out, columns, units):
    sweep = lines(columns=columns, out=out)
    ((launch,), scratch) = vars(sweep.plan(CpuFamily(units, 16, True), 0)).values()
    items = math.prod(launch.global_size)
    assert items >= min(units, sweep.panels * sweep.runs // 2)
    assert scratch >= items * 2 * 4 * 16


@pytest.mark.parametrize(("width", "run"), {1: 1, 3: 4, 5: 6, 13: 7, 16: 4, 24: 6, 56: 7}.items())
def test_runs_waste_little_of_a_line(width, run):
    assert lines(out=(1, 1, 32, width)).run == run


def test_images_whose_pixels_follow_each_other_are_one_line():
    pointwise = replace(lines(taps=(1, 1, 1)), at=(0, 0, 0))
    views = {n: replace(pointwise.src, pixels=(999, 0, 224, 16)) for n in ("src", "dst")}
    assert replace(pointwise, **views).merged().out == (1, 1, 1, 196)
    views["dst"] = replace(pointwise.src, pixels=(999, 0, 240, 16))
    assert replace(pointwise, **views).merged().out == (1, 1, 14, 14)


def test_lines_of_a_pointwise_sum_are_neither_long_nor_short():
    view = View(0, 0, 0, 0, 1, (1 << 20, 0, 56 * 16, 16))
    pixels = Pixels((4, 1, 56, 56), (1, 56, 56), view, view).relined()
    assert pixels.out == (4, 1, 28, 112)
    assert pixels.src.pixels == (1 << 20, 0, 112 * 16, 16)


@pytest.mark.parametrize("units", [1, 2, 64])
@pytest.mark.parametrize(
    "shape", ["mb1ic2048ih7oc512kh1", "mb32ic64ih56oc64kh1", "mb1ic3ih1oc1kh1"]
)
def test_sums_cover_all_channels_and_lines(shape, units):
    op = operation(f"--dir=BWD_W {shape}")
    size = op.diff_dst.dims[2:]
    view = View(0, 0, 0, 0, 1, (0, 0, 0, 16))
    sums = Sums.of(
        op, Pixels((op.src.dims[0], 1, *size), (1, *size), view, view), CpuFamily(units, 16, True)
    )
    count = op.src.dims[0] * size[0]
    assert (sums.parts - 1) * sums.share < count <= sums.parts * sums.share
    assert sums.own_blocks <= sums.blocks
    assert sums.own_pairs <= sums.pairs
    assert sums.parts * sums.items >= min(units, count)


# -- Winograd's ------------------------------------------------------------------------------------


def test_filters_beyond_what_32_bits_count_are_refused(target):
    op = operation("--dir=FWD_D --alg=wino --wtag=abx mb1ic8192ih4oc8192kh3ph1")
    with pytest.raises(pytest.fail.Exception, match="scratchpad must span 2147418112 floats"):
        own(target, "winograd").primitive_descs(op)


def test_errors_are_larger_than_the_direct_ones_by_less_than_the_factor(target):
    op = operation("--dir=FWD_D --alg=auto mb1ic64ih16oc16kh3ph1")
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    exact = {name: array.astype(np.float64) for name, array in inputs.items()}
    padded = np.pad(exact["src"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("ncyxrs,ocrs->noyx", seen, exact["weights"])
    plain = op.with_descs(**{n: d.with_format(None) for n, d in vars(op).items() if n in inputs})
    errors = [
        np.sqrt(np.mean((run(pd, inputs)["dst"] - expected) ** 2))
        for kind in ("winograd", "direct")
        for pd in own(target, kind).primitive_descs(plain)
    ]
    assert 1 < errors[0] / errors[1] < error_factor(F43, F43, 64)


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D"])
@pytest.mark.parametrize(
    "shape", ["mb3ic20ih30oc24kh3ph1_iw45kw3pw1", "mb2ic17ih9oh9oc33kh3ph0_iw10ow9kw3pw1"]
)
def test_chunks_of_tiles(target, direction, shape, monkeypatch):
    monkeypatch.setattr(convolution_winograd, "CHUNK_BYTES", 1 << 18)
    check(own(target, "winograd"), operation(f"--dir={direction} --alg=wino {shape}"))


def test_nan_stays_in_the_tiles_that_read_it(target):
    op = operation("--dir=FWD_D --alg=wino --stag=abx --wtag=abx --dtag=abx mb1ic2ih16oc2kh3ph1")
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    inputs["src"][0, 1, 5, 6] = np.nan
    (pd,) = own(target, "winograd").primitive_descs(op)
    is_nan = np.isnan(run(pd, inputs)["dst"])
    assert is_nan[:, :, 4:7, 5:8].all()
    assert not is_nan[:, :, 8:].any()
    assert not is_nan[:, :, :, 8:].any()


def test_the_filter_is_opaque_and_made_by_a_reorder(target):
    op = operation("--dir=FWD_D --alg=wino mb1ic5ih6oc7kh3ph1")
    (pd,) = own(target, "winograd").primitive_descs(op)
    lanes = CpuFamily.of(target.engine).vector
    assert pd.weights_desc.tag == f"opencl:winograd:4x3:forward:{lanes}"
    assert pd.weights_desc.nbytes == 4 * 36 * 5 * -(-7 // lanes) * lanes
    ones = np.ones((7, 5, 3, 3), np.float32)
    plain = dnn.Memory.from_numpy(ones, engine=target.engine)
    transformed = dnn.reorder(plain, pd.weights_desc)
    with pytest.raises(dnn.NoImplementation, match="makes opencl:winograd:4x3"):
        dnn.reorder(transformed, plain.desc)


@pytest.mark.parametrize(
    ("shape", "reason"),
    {
        "ic4ih5oc4kh5ph2": r"shape: kernel must be (3, 3); got (5, 5)",
        "ic4iw5oc4kw3pw1": r"shape: kernel must be (3, 3); got (3,)",
        "ic4ih5oc4kh3sh2ph1": r"shape: strides must be (1, 1); got (2, 2)",
        "g2ic4ih5oc4kh3ph1": r"shape: groups must be 1; got 2",
    }.items(),
)
def test_what_winograd_refuses(target, shape, reason):
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(operation(f"--dir=FWD_D --alg=wino {shape}"), target.engine)
    assert f"opencl:winograd:simd: {reason}" in [str(r) for r in caught.value.refusals]


@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [("mb4ic128ih28oc128kh3ph1", "winograd"), ("mb4ic3ih224oc64kh3ph1", "direct")],
)
def test_auto_is_what_is_estimated_to_be_faster(target, shape, algorithm):
    op = operation(f"--dir=FWD_D --alg=auto {shape}")
    assert dnn.PrimitiveDesc(op, target.engine, impl="opencl:*").op.algorithm == algorithm


def test_padding_of_weights_stays_zero_behind_post_ops(target):
    """Blocks of 16 output and 16 input channels, of which 13 are padding."""
    text = "--dir=BWD_W --wtag=ABcd16b16a --attr-post-ops=linear:1:1 ic3oc16ih5kh3ph1"
    (problem,) = read(f"--conv {text}")
    result = run_case(problem, target.engine, impl="opencl:direct:*", checks=["padding", "random"])
    assert (result.status, result.failures) == ("passed", ())
