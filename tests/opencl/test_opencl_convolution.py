"""OpenCL's convolutions for CPUs, direct and Winograd's: where plans change, and formats."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

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
from dnncore_opencl.convolution.winograd.cpu_weights import WinogradFilter
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.runtime.launch import _templates, template

import dnncore as dnn
from dnncore.comparison.fills import fill_inputs, fill_normal
from dnncore.planning.toom_cook import F43, error_factor
from dnncore.problem import read
from dnncore.testing import run_case
from dnncore.testing.running.worker import Worker

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


# PoCL 3.0 dropped the condition of the last work-group's items beyond the last image.
STRIDED = "--stag=abcd@82x12x6x1@5 --wtag=abcde@19x9x6x3x2@64 --dtag=abcd@244x20x10x1@3"


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_groups_write_no_image_beyond_the_last(target, direction):
    text = f"{STRIDED} --attr-post-ops=clip:-1:2+relu g6mb40_ic6oc12_ih2oh2kh1_iw5ow5kw1"
    ((problem,)) = read(f"--conv --dir={direction} {text}")
    result = run_case(
        problem, target.engine, impl="opencl:direct:groups", checks=("guards", "random")
    )
    assert result.executed
    assert not result.failures


@pytest.mark.parametrize("stag", ["abx", "acdb"])
def test_sums_of_groups_leave_out_pixels_beyond_the_result(target, stag):
    """Their diff_dst counts as 0, which times an infinite src would be NaN."""
    shape = "g16mb2_ic16oc16_ih7oh7kh3dh1ph2_iw7ow7kw3dw1pw2"
    ((problem,)) = read(f"--conv --dir=BWD_WB --stag={stag} --dtag={stag} {shape}")
    result = run_case(problem, target.engine, impl="opencl:direct:groups", checks=("special",))
    assert result.executed
    assert not result.failures


def test_grouped_kernels_with_long_epilogues_are_compiled(target):
    """Intel's compiler crashed for this kernel until it compiled no lanes of work-items."""
    shape = "g9mb66_ic9oc27_id1od2kd1sd1dd0pd0_ih1oh2kh1sh2dh0ph1_iw7ow7kw1sw1dw0pw0"
    options = "--dtag=caEbD2d4e16e2e --attr-post-ops=linear:1+gelu_erf"
    problem = f"--conv --stag=aceBd16b6b4b --wtag=eFabcd4f4f {options} {shape}"
    with Worker() as worker:
        result = worker.run(problem, target.engine_name, "opencl:direct:groups", ("integers",))
    assert result.status == "passed", str(result)


def test_kernels_for_cpus_do_not_return_before_barriers():
    for_gpus = {
        "attention_mma",
        "attention_mma_backward",
        "groups_mma",
        "mma",
        "mma_plain",
        "mma_wide_plain",
    }  # and where all items return
    alike = {"pooling_planes", "transpose_tiled"}
    for name in _templates().keys() - for_gpus - alike:
        _, _, body = template(name).partition("$parameters")
        before, barrier, _ = body.rpartition("barrier(")
        assert not barrier or "return;" not in before, name


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
    plan = sweep.plan(CpuFamily(units, 16, True), 0)
    (launch,) = plan.launches
    items = math.prod(launch.global_size)
    assert items >= min(units, sweep.panels * sweep.runs // 2)
    assert plan.scratchpad >= items * 2 * 4 * 16


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


def image(strides, *dims):
    """A tensor of float32 with these strides."""
    return dnn.MemoryDesc(dims, strides=strides)


# Of a 1x1 convolution from 32 channels to 16: strides of src and of diff_dst, then the pixels
GAPS = {
    "rows of src": ((32 * 30, 1, 32 * 6, 32), (16 * 20, 1, 16 * 5, 16), (4, 5)),
    "rows of dst": ((32 * 20, 1, 32 * 5, 32), (16 * 30, 1, 16 * 6, 16), (4, 5)),
    "one row": ((32 * 9, 1, 32 * 7, 32), (16 * 9, 1, 16 * 7, 16), (1, 5)),
    "planes of src": ((3200, 1, 960, 160, 32), (960, 1, 320, 80, 16), (3, 4, 5)),
    "planes of dst": ((1920, 1, 640, 160, 32), (1600, 1, 480, 80, 16), (3, 4, 5)),
    "no gap": ((1920, 1, 640, 160, 32), (960, 1, 320, 80, 16), (3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_pointwise_gradients_of_images_with_gaps(target, name):
    src, dst, pixels = GAPS[name]
    op = dnn.ConvolutionBackwardWeights(
        src=image(src, 2, 32, *pixels),
        diff_weights=dnn.MemoryDesc((16, 32, *(1 for _ in pixels))),
        diff_dst=image(dst, 2, 16, *pixels),
    )
    check(own(target, "direct"), op)


def test_gradients_of_groups_behind_post_ops_of_each_group(target):
    op = operation("--dir=BWD_WB g2mb1ic32ih6oc32oh6kh3ph1")
    for dims in (op.weights_role.dims, (2, 1, 1, 1, 1)):
        factors = dnn.MemoryDesc(dims)
        check(own(target, "direct"), op, dnn.Attributes([dnn.PostOp.binary("mul", factors)]))


@pytest.mark.parametrize(
    ("algorithm", "implementation", "kernel"),
    [
        ("direct", "direct:simd", "kh1"), ("wino", "winograd:simd", "kh3ph1"),
        ("wino", "winograd:2x2x3:tiled", "kh3ph1"),
    ],
)  # fmt: skip
def test_images_beyond_what_32_bits_count_are_refused(target, algorithm, implementation, kernel):
    op = operation(f"--dir=FWD_D --alg={algorithm} mb1ic1ih50000oc1{kernel}")
    op = op.with_descs(src=op.src.with_format("abcd"), dst=op.dst.with_format("abcd"))
    with pytest.raises(dnn.NoImplementation, match="src must span 2147418112 elements at most"):
        dnn.PrimitiveDesc(op, target.engine, impl=f"opencl:{implementation}")


@pytest.fixture(params=[4, 8])
def narrow(request, monkeypatch):
    """Registers of fewer floats than this processor's, and no instructions that fetch."""
    of = CpuFamily.of

    def narrower(_family, engine):
        return replace(of(engine), vector=request.param, has_fetch=False)

    monkeypatch.setattr(CpuFamily, "of", classmethod(narrower))
    dnn.cache.primitives.clear()
    yield request.param
    dnn.cache.primitives.clear()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
@pytest.mark.parametrize("algorithm", ["direct", "wino"])
@pytest.mark.parametrize(
    "shape", ["mb2ic11ih9oc13kh3ph1", "mb1ic16ih6oc24kh3ph0", "g2mb1ic16ih6oc16oh6kh3ph1"]
)
def test_narrower_vectors(target, narrow, direction, algorithm, shape):
    if algorithm == "wino" and (direction == "BWD_WB" or shape[0] == "g"):
        pytest.skip("no such algorithm")
    check(
        replace(target, impl="opencl:*simd"),
        operation(f"--dir={direction} --alg={algorithm} {shape}"),
    )


def device_of(width, platform="Portable Computing Language", *, is_cpu=True):
    """An engine on a device with registers of `width` floats."""
    device = SimpleNamespace(native_vector_width_float=width, max_compute_units=3)
    native = SimpleNamespace(device=device, platform=SimpleNamespace(name=platform))
    return SimpleNamespace(is_cpu=is_cpu, native=native)


@pytest.mark.parametrize(
    ("width", "vector"), {1: 4, 4: 4, 7: 4, 8: 8, 15: 8, 16: 16, 32: 16}.items()
)
def test_vectors_are_as_wide_as_registers(width, vector):
    assert CpuFamily.of(device_of(width)) == CpuFamily(3, vector, True)


def test_who_fetches_and_who_unrolls():
    assert CpuFamily.of(device_of(8, "Intel(R) OpenCL")) == CpuFamily(3, 8, True)
    assert CpuFamily.of(device_of(8, "Another")) == CpuFamily(3, 8, False)
    gpu = device_of(1, "Intel(R) OpenCL", is_cpu=False)
    assert CpuFamily.of(gpu) == CpuFamily(3, 4, False, is_rolled=True)


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


def opaque(engine, direction="FWD_D", shape="ic5ih6oc7kh3ph1"):
    """The descriptor of filters as Winograd's convolution wants them."""
    op = operation(f"--dir={direction} --alg=wino mb1{shape}")
    return dnn.PrimitiveDesc(op, engine, impl="opencl:winograd:simd").weights_desc


def refusals(op, target, attr=None):
    """The reasons of the implementations of Winograd's algorithm."""
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(op, target.engine, attr or dnn.Attributes(), impl="opencl:*")
    return [str(refusal) for refusal in caught.value.refusals if "winograd" in str(refusal)]


def test_filters_that_cannot_be_transformed(target):
    dst, lanes = opaque(target.engine), CpuFamily.of(target.engine).vector
    src, name = dnn.MemoryDesc(dst.dims), f"opencl:winograd:4x3:forward:{lanes}"
    large = dnn.MemoryDesc((7680, 32768, 3, 3))
    short = dnn.MemoryDesc(dst.dims, "f32", dst.tag, nbytes=64)
    chain = dnn.Attributes([dnn.PostOp.eltwise("relu")])
    for op, attr, reason in (
        (dnn.Reorder(src=src.with_data_type("s8"), dst=dst), None, f"got abcd to {name}"),
        (dnn.Reorder(src=dst, dst=dst), None, f"got {name} to {name}"),
        (dnn.Reorder(src=src, dst=short), None, f"format: {name} of (7, 5, 3, 3); got 64 bytes"),
        (dnn.Reorder(src=src, dst=dst), chain, "attribute: no post-ops; got 1"),
        (
            dnn.Reorder(src=large, dst=WinogradFilter("forward", lanes).desc(large)),
            None,
            "shape: src must span 2147418112 elements at most; got 2264924160",
        ),
    ):
        assert any(reason in text for text in refusals(op, target, attr)), reason


def test_filters_without_elements_are_transformed_by_no_launch(target):
    src = dnn.MemoryDesc((7, 0, 3, 3))
    dst = WinogradFilter("forward", CpuFamily.of(target.engine).vector).desc(src)
    primitive = dnn.PrimitiveDesc(dnn.Reorder(src=src, dst=dst), target.engine).primitive()
    assert not primitive.executable.launches
    memories = {"src": dnn.Memory(src, target.engine), "dst": dnn.Memory(dst, target.engine)}
    primitive.execute(target.engine.stream(), **memories).wait()


def test_filters_of_another_direction_are_refused(target):
    op = operation("--dir=FWD_D --alg=wino mb1ic5ih6oc7kh3ph1")
    weights = opaque(target.engine, "BWD_D")
    op = op.with_descs(weights=weights)
    texts = refusals(op, target)
    assert f"opencl:winograd:simd: format: weights must have strides; got {weights.tag}" in texts
    assert weights.tag.startswith("opencl:winograd:4x3:backward_data:")


def test_opaque_filters_are_for_winograd_alone(target):
    op = operation("--dir=FWD_D --alg=auto mb1ic5ih6oc7kh3ph1")
    weights = opaque(target.engine)
    explained = dnn.PrimitiveDesc(op.with_descs(weights=weights), target.engine).explain()
    for name in ("direct:simd", "simd", "tiled"):
        assert f"opencl:{name}: format: weights must have strides; got {weights.tag}" in explained
