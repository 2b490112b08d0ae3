"""The CPU backend's window, reduction and copy loops where they change their way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import checks
import ml_dtypes
import numpy as np
import pytest
from checks import Target, check, reference_outputs, run

import dnncore as dnn
from dnncore.comparison.fills import fill_integers, fill_normal
from dnncore.problem import read
from dnncore.testing import run_case

pytest.importorskip("numba")

from dnncore_cpu_numba.copies import reformat as copies
from dnncore_cpu_numba.pooling import plan as pooling_plan
from dnncore_cpu_numba.reduction.implementations import TABLE
from dnncore_cpu_numba.runtime import tensor

CPU = Target("cpu", "cpu", impl="cpu_numba:*")


def assert_passed(text):
    """Check problems as the kit does."""
    for problem in read(text):
        result = run_case(problem, CPU.engine, impl=CPU.impl, checks=["integers", "random"])
        assert not result.failures, str(result)
        assert result.impl_names


# -- pooling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [600, 1600, 4900])
@pytest.mark.parametrize("tag", ["abc", "acb"])
def test_kernels_beyond_the_tables(kernel, tag):
    """Of more taps than a table holds, and windows wider than a buffer."""
    src = dnn.MemoryDesc((1, 2, 5000), "f32", tag)
    dst = dnn.MemoryDesc((1, 2, (5000 - kernel) // 700 + 1), "f32", tag)
    window = {"kernel": kernel, "strides": 700}
    forward = dnn.PoolingForward("forward_training", "max", src=src, dst=dst, **window)
    check(CPU, forward)
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **window)
    place = reference_outputs(forward, {"src": fill_normal(src, 1)})["workspace"]
    check(CPU, backward, inputs={"diff_dst": fill_integers(dst, 2), "workspace": place})
    average = "avg_include_padding"
    check(CPU, dnn.PoolingForward("forward_inference", average, src=src, dst=dst, **window))
    check(CPU, dnn.PoolingBackward(average, diff_src=src, diff_dst=dst, **window))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("width", [15, 16, 33])
def test_windows_are_vectors_where_columns_are_not(stride, width):
    """Whole vectors, parts of them, and windows that hang over on both sides."""
    src = dnn.MemoryDesc((1, 2, 5, (width - 1) * stride - 1))
    dst = dnn.MemoryDesc((1, 2, 5, width))
    window = {"kernel": (3, 5), "strides": (1, stride), "padding_l": (1, 3), "padding_r": (1, 3)}
    check(CPU, dnn.PoolingForward("forward_training", "max", src=src, dst=dst, **window))


def test_minus_infinity_wins_where_there_is_nothing_else():
    """Along windows the first tap is known, not compared; it differs at the borders."""
    src = np.full((1, 1, 3, 40), -np.inf, np.float32)
    desc = dnn.MemoryDesc(src.shape)
    window = {"kernel": 3, "padding_l": 1}
    op = dnn.PoolingForward("forward_training", "max", src=desc, dst=desc, **window)
    check(CPU, op, inputs={"src": src})


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
def test_windows_higher_than_the_buffers(direction):
    """A row of results reads more than fits into them, and columns are no neighbours."""
    text = f"--pool --dir={direction} --alg=max,avg_np --tag=abx mb1ic20_ih110oh11kh100_iw64ow64kw1"
    assert_passed(text)


def test_gradients_of_averages_in_any_format():
    any_ = (dnn.MemoryDesc((2, 5, *size), "f32", "any") for size in ((7, 9), (5, 7)))
    src, dst = any_
    op = dnn.PoolingBackward("avg_include_padding", diff_src=src, diff_dst=dst, kernel=3)
    check(CPU, op)


# -- reduction -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ((300007,), (1,)),  # one result in parts, and a rest
        ((100003, 3), (1, 3)),  # short rows, several at a time
        ((3, 20000, 5), (3, 1, 5)),
        ((8, 19001), (1, 19001)),  # parts of strided rows, folded in one piece
        ((2, 70, 3000), (2, 1, 3000)),
        ((40000, 7), (40000, 1)),
    ],
)
@pytest.mark.parametrize("algorithm", ["sum", "max", "mean"])
@pytest.mark.parametrize("reverse", [False, True])
def test_all_ways_to_fold(src, dst, algorithm, reverse):
    letters = "abc"[: len(src)]
    tag = letters[::-1] if reverse else letters
    op = dnn.Reduction(
        algorithm, src=dnn.MemoryDesc(src, "f32", tag), dst=dnn.MemoryDesc(dst, "f32", letters)
    )
    check(CPU, op)


def test_folding_does_not_depend_on_the_number_of_threads():
    op = dnn.Reduction("sum", src=dnn.MemoryDesc((1000003,)), dst=dnn.MemoryDesc((1,)))
    src = dnn.Memory.from_numpy(fill_normal(op.src, 1), engine=CPU.engine)
    dst = dnn.Memory(op.dst, CPU.engine)
    found = set()
    for threads in (1, 2, 5):
        engine = SimpleNamespace(num_threads=threads)
        accepted = TABLE[0].accept(op, dnn.Attributes(), engine, None)
        scratchpad = np.empty(accepted.scratchpad_bytes, np.uint8)
        accepted.build().bind([src, dst], scratchpad)(CPU.engine.stream())
        found.add(dst.numpy().item())
    assert len(found) == 1


# -- local response normalisation ------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["nchw", "nhwc", "nChw8c"])
@pytest.mark.parametrize("local_size", [5, 90, 1201])
def test_windows_of_many_places(tag, local_size):
    """As many as fit into a vector's buffer, or a ring."""
    desc = dnn.MemoryDesc((1, 650, 2, 3), "f32", tag)
    op = dnn.LRNForward(
        "forward_training", "across_channels", src=desc, dst=desc, local_size=local_size, alpha=0.1
    )
    check(CPU, op)


def test_windows_that_need_the_whole_ring_of_a_slab():
    """255 channels for each sum, and 64 columns at once."""
    src = dnn.MemoryDesc((1, 300, 7, 11))
    op = dnn.LRNForward(
        "forward_inference", "across_channels", src=src, dst=src, local_size=255, alpha=1.0,
        beta=1.0, k=1.0,
    )  # fmt: skip
    values = fill_normal(src, 1)
    squares = np.pad(values.astype(np.float64) ** 2, ((0, 0), (127, 127), (0, 0), (0, 0)))
    sums = np.lib.stride_tricks.sliding_window_view(squares, 255, axis=1).sum(-1)
    expected = values / (1 + sums / 255)
    for pd in CPU.primitive_descs(op):
        np.testing.assert_allclose(run(pd, {"src": values})["dst"], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
@pytest.mark.parametrize("tag", ["abcd", "abdc", "acdb", "abcde", "abced", "abdec"])
def test_sums_within_channels_along_any_contiguous_dim(tag, direction):
    size = "id4" if len(tag) == 5 else ""
    assert_passed(
        f"--lrn --alg=WITHIN --dir={direction} --tag={tag} mb2ic3{size}ih5iw40ls3alpha0.5"
    )


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
@pytest.mark.parametrize("numbers", ["alpha0.5beta70k1", "alpha3e18beta0.75k1"])
def test_powers_of_bases_that_leave_the_quick_range(numbers, direction):
    assert_passed(f"--lrn --dir={direction} --tag=acdb,aBcd16b mb2ic32ih5ls3{numbers}")


@pytest.mark.parametrize("dims", [(2, 300_000), (3, 70_000, 3), (5, 100, 900)])
@pytest.mark.parametrize("algorithm", ["sum", "max", "mean"])
def test_few_results_are_folded_in_parts_by_several_threads(dims, algorithm):
    src = dnn.MemoryDesc(dims)
    dst = dnn.MemoryDesc((dims[0], 1, *dims[2:]))
    check(CPU, dnn.Reduction(algorithm, src=src, dst=dst))


@pytest.mark.parametrize("channels", [5, 16, 40])
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b"])
def test_nan_is_the_maximum_wherever_it_is_in_a_window(tag, channels):
    """Each window of 3 x 3 has NaN at another place, or has none."""
    src = dnn.MemoryDesc((2, channels, 12, 12), "f32", tag)
    dst = dnn.MemoryDesc((2, channels, 4, 4), "f32", tag)
    op = dnn.PoolingForward(
        "forward_training", "max", src=src, dst=dst, kernel=(3, 3), strides=(3, 3)
    )
    values = fill_normal(src, 1)
    for place in range(9):
        down, across = divmod(place, 4)
        values[:, ::2, 3 * down + place // 3, 3 * across + place % 3] = np.nan
    check(CPU, op, inputs={"src": values})


@pytest.mark.parametrize("beta", [-2.0, -0.5, 0.0, 0.5, 0.75, 1.0, 1.3, 2.0, 3.0])
def test_powers_of_bases_of_either_sign(beta):
    desc = dnn.MemoryDesc((2, 9, 4, 5))
    op = dnn.LRNForward(
        "forward_training", "across_channels", src=desc, dst=desc, alpha=-0.8, k=0.4, beta=beta
    )
    check(CPU, op)


@pytest.mark.parametrize("beta", [-2.0, -0.6, 0.0, 0.5, 0.75, 1.0, 1.3, 2.0, 3.0])
@pytest.mark.parametrize(
    ("algorithm", "tag"),
    [("across_channels", "abcd"), ("across_channels", "acdb"), ("within_channel", "abcd")],
)
def test_special_bases(algorithm, tag, beta):
    """0, tiny, infinite, negative and NaN, among others; forward also where src is 0."""
    src = dnn.MemoryDesc((1, 32, 3, 5), "f32", tag)
    fields = {"local_size": 3, "beta": beta}
    op = dnn.LRNBackward(algorithm, src=src, diff_dst=src, diff_src=src, alpha=0.1, **fields)
    tiny = 10.0 ** (-72 / max(1.8, beta + 1))  # the term, 1e-37 * tiny**(-beta - 1), is finite
    for base in (0.0, tiny, 3e38, np.inf, -np.inf, -1.0, -1e30, np.nan):
        inputs = {"src": fill_normal(src, 1), "diff_dst": fill_normal(src, 2)}
        inputs["workspace"] = 1 + np.abs(fill_normal(src, 3))
        inputs["workspace"][0, 5, 1, 2] = base
        inputs["diff_dst"][0, 4:7, 1, 2] *= np.float32(1e-37)
        check(CPU, op, inputs=inputs)
    forward = dnn.LRNForward("forward_training", algorithm, src=src, dst=src, alpha=0.0, **fields)
    values = fill_normal(src, 1)
    values[0, 3, 1, 1], values[0, 8, 0, 0] = 0.0, np.inf
    for k in (0.0, 1e-38, 1e-20, -1e-20, -2.0, 3e38):
        check(CPU, replace(forward, k=k), inputs={"src": values})


# -- reorder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", ["f16", "bf16", "s8", "s32"])
@pytest.mark.parametrize(("src", "dst"), [("abcd", "acdb"), ("aBcd16b", "abcd")])
def test_conversions_that_transpose(data_type, src, dst):
    """Large enough to go through the scratchpad."""
    dims = (2, 50, 15, 13)
    for types in (("f32", data_type), (data_type, "f32"), (data_type, data_type)):
        a, b = (
            dnn.MemoryDesc(dims, type_, tag) for type_, tag in zip(types, (src, dst), strict=True)
        )
        check(CPU, dnn.Reorder(src=a, dst=b), inputs={"src": fill_integers(a, 1)})


@pytest.mark.parametrize("data_type", ["f16", "bf16"])
def test_f64_is_rounded_once(data_type):
    """Just beside the middle of two numbers, where float32 in between would round to the middle."""
    dtype = np.float16 if data_type == "f16" else ml_dtypes.bfloat16
    grid = np.arange(1, 0x7B00, dtype=np.uint16).view(dtype).astype(np.float64)
    lower, upper = grid[:-1], grid[1:]
    middle = (lower + upper) / 2
    src = np.concatenate([middle * (1 + 1e-13), middle * (1 - 1e-13)])
    op = dnn.Reorder(src=dnn.MemoryDesc(src.shape, "f64"), dst=dnn.MemoryDesc(src.shape, data_type))
    for pd in CPU.primitive_descs(op):
        got = run(pd, {"src": src})["dst"].astype(np.float64)
        assert np.array_equal(got, np.concatenate([upper, lower])), pd.impl_name
    check(CPU, op, inputs={"src": src})


WINDOWS = {  # of tiles of rows with shared places, without, and of boxes
    "overlapping": {"kernel": 3, "strides": 1, "padding_l": 1},
    "strided": {"kernel": 3, "strides": 2, "padding_l": 1, "padding_r": 1},
    "apart": {"kernel": 2, "strides": 2},
    "wide": {"kernel": 9, "strides": 1, "padding_l": 4},
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b"])
@pytest.mark.parametrize("data_type", ["f64", "f32", "bf16"])
def test_maxima_of_values_that_are_not_finite(data_type, tag, window):
    src = dnn.MemoryDesc((1, 70, 12, 22), data_type, tag)
    size = (6, 11) if window["strides"] == 2 else (12, 22)
    dst = dnn.MemoryDesc((1, 70, *size), data_type, tag)
    rng = np.random.default_rng(5)
    values = rng.integers(-2, 3, src.dims).astype(src.dtype)
    for special, share in ((np.nan, 0.01), (-np.inf, 0.1), (np.inf, 0.01)):
        values[rng.random(src.dims) < share] = special
    for prop_kind in ("forward_inference", "forward_training"):
        op = dnn.PoolingForward(prop_kind, "max", src=src, dst=dst, **window)
        got = run(dnn.PrimitiveDesc(op, CPU.engine, impl=CPU.impl), {"src": values})
        for name, expected in reference_outputs(op, {"src": values}).items():
            assert np.array_equal(got[name].astype(float), expected.astype(float), equal_nan=True)


# -- results that go past the caches ---------------------------------------------------------------


@pytest.fixture(params=[0, 16])
def everything_streamed(request, monkeypatch):
    """Results of any size are stored past the caches where they are aligned; images prefetched.

    The parameter is the distance of tensors from an aligned address.
    """
    monkeypatch.setattr(checks, "shift", request.param)
    monkeypatch.setattr(copies, "STREAM_BYTES", 0)
    monkeypatch.setattr(tensor, "STREAM_RESULT_BYTES", 0)
    monkeypatch.setattr(pooling_plan, "_FETCH_BYTES", 0)


@pytest.mark.usefixtures("everything_streamed")
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("tag", ["acdb", "aBcd16b"])
def test_streamed_pooling_and_lrn(tag, images):
    src = dnn.MemoryDesc((images, 32, 9, 11), "f32", tag)
    dst = dnn.MemoryDesc((images, 32, 5, 6), "f32", tag)
    window = {"kernel": 3, "strides": 2, "padding_l": 1}
    average = "avg_include_padding"
    for kind in ("forward_inference", "forward_training"):
        forward = dnn.PoolingForward(kind, "max", src=src, dst=dst, **window)
        check(CPU, forward)
    values = fill_normal(src, 1)
    place = reference_outputs(forward, {"src": values})["workspace"]
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **window)
    check(CPU, backward, inputs={"diff_dst": fill_integers(dst, 2), "workspace": place})
    check(CPU, dnn.PoolingBackward(average, diff_src=src, diff_dst=dst, **window))
    lrn = dnn.LRNForward("forward_training", "across_channels", src=src, dst=src)
    check(CPU, lrn)
    base = reference_outputs(lrn, {"src": values})["workspace"]
    inputs = {"src": values, "diff_dst": fill_normal(src, 2), "workspace": base}
    lrn_backward = dnn.LRNBackward("across_channels", src=src, diff_dst=src, diff_src=src)
    check(CPU, lrn_backward, inputs=inputs)


@pytest.mark.usefixtures("everything_streamed")
def test_results_with_gaps_are_not_streamed():
    src = dnn.MemoryDesc((2, 32, 9, 11), "f32", "acdb")
    gaps = dnn.MemoryDesc((2, 32, 5, 6), strides=(1200, 1, 240, 40))
    window = {"kernel": 3, "strides": 2, "padding_l": 1}
    check(CPU, dnn.PoolingForward("forward_inference", "max", src=src, dst=gaps, **window))
    gaps = dnn.MemoryDesc(src.dims, strides=(9 * 11 * 40, 1, 11 * 40, 40))
    check(CPU, dnn.LRNForward("forward_inference", "across_channels", src=src, dst=gaps))


@pytest.mark.usefixtures("everything_streamed")
@pytest.mark.parametrize("types", [("f32", "f32"), ("f32", "bf16"), ("u8", "f32")])
@pytest.mark.parametrize("tags", [("abcd", "aBcd16b"), ("aBcd16b", "acdb"), ("abcd", "abcd")])
def test_streamed_copies(types, tags):
    src, dst = (dnn.MemoryDesc((3, 64, 9, 16), *kind) for kind in zip(types, tags, strict=True))
    check(CPU, dnn.Reorder(src=src, dst=dst))


@pytest.mark.usefixtures("everything_streamed")
@pytest.mark.parametrize("types", [("f32", "f32"), ("f32", "bf16"), ("u8", "f32"), ("s8", "u8")])
@pytest.mark.parametrize("channels", [(104, 152), (67, 301, 64), (300, 1, 299)])
def test_streamed_rows_that_begin_and_end_within_a_line(types, channels):
    src_type, dst_type = types
    sources = [dnn.MemoryDesc((2, count, 3, 5), src_type, "acdb") for count in channels]
    dst = dnn.MemoryDesc((2, sum(channels), 3, 5), dst_type, "acdb")
    if src_type == dst_type:
        check(CPU, dnn.Concat(axis=1, srcs=sources, dst=dst))
    place = dst.submemory((2, channels[0], 3, 5), (0, channels[-1] // 2, 0, 0))
    check(CPU, dnn.Reorder(src=sources[0], dst=place))


# -- maxima among NaN ------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b"])
def test_the_first_nan_wins_in_every_place_of_a_tile(tag):
    """Tiles in which sums show NaN are folded again, point by point; infinities may show some."""
    random = np.random.default_rng(3)
    src = random.integers(-3, 4, (2, 19, 12, 21)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        src[random.random(src.shape) < 0.03] = value
    desc = dnn.MemoryDesc(src.shape, "f32", tag)
    window = {"kernel": 3, "padding_l": 1}
    op = dnn.PoolingForward("forward_training", "max", src=desc, dst=desc, **window)
    check(CPU, op, inputs={"src": src})
