"""f16 and bf16: which types go together, who is asked for them, and how exact a result must be."""

import ml_dtypes
import numpy as np
import pytest
from dnncore_cpu_numba.elementwise.implementation import ElementWise
from toy import Relu, ToyEngine, registered

import dnncore as dnn
from dnncore.backend import Refused
from dnncore.comparison.compare import expected_outputs
from dnncore.engines.peaks import Peaks
from dnncore.problem import Unsupported, read

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
PLAIN = dnn.Attributes()


def the(text):
    (problem,) = read(text)
    return problem.op


def relu(data_type):
    desc = dnn.MemoryDesc((4, 5), data_type)
    return dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)


# -- which types go together -----------------------------------------------------------------------

LAYERS = ("--conv {} ic3oc4ih5kh3", "--deconv {} ic3oc4ih5kh3", "--ip {} ic3oc4")
TOGETHER = [
    *(layer.format(f"--dir={words}") for layer in LAYERS for words in (
        "FWD_B --dt=f16", "FWD_B --dt=bf16 --bia-dt=bf16", "FWD_B --dt=f16:f16:f32 --bia-dt=f16",
        "BWD_D --dt=bf16", "BWD_D --dt=f32:f16:f16",
        "BWD_WB --dt=f16", "BWD_WB --dt=bf16:f32:bf16 --bia-dt=bf16",
    )),
    "--matmul --dt=bf16 --bia-dt=f32 2x3:3x4", "--matmul --dt=bf16:bf16:f32 --bia-dt=bf16 2x3:3x4",
    "--softmax --sdt=f16 --ddt=f32 2x3", "--softmax --sdt=f32 --ddt=bf16 2x3",
    "--bnorm --flags=CH --dt=f16 ic3ih4", "--lnorm --flags=CH --dt=f16:f32 --ss_dt=bf16 2x3",
    "--gnorm --dir=BWD_DW --dt=bf16:f16 g1ic3ih4",
    "--reduction --sdt=f32 --ddt=f16 2x3:2x1", "--sum --sdt=f32:bf16 --ddt=f32 2x3",
    "--prelu --sdt=bf16:f16 2x3:1x3", "--prelu --dir=BWD_DW --sdt=f16:f32 2x3:1x3",
    "--prelu --sdt=s8 2x3:1x3",
    "--sdpa --dt=f16 --mask_type=buffer --mdt=f32 1x1x2x3:1x1x3x4:1x1x4x2",
    "--concat --sdt=f16:bf16 --ddt=f32 2x3:2x1", "--shuffle --dt=f16 2x3",
    "--resampling --sdt=f16 --ddt=bf16 ic3ih3oh5",
    "--binary --sdt=f16:f32 --ddt=f16 2x3:2x1", "--binary --alg=select --sdt=bf16 2x3:2x3:2x3",
]  # fmt: skip
APART = [
    *(layer.format(f"--dir={words}") for layer in LAYERS for words in (
        "FWD_D --dt=f16:bf16:f16", "FWD_D --dt=f32:f16:f32", "FWD_D --dt=f32:f32:f16",
        "FWD_B --dt=f16 --bia-dt=bf16", "BWD_D --dt=f16:f16:f32", "BWD_W --dt=f16:f32:bf16",
    )),
    "--matmul --dt=f16:f32:f16 2x3:3x4", "--eltwise --dt=f16:f32 2x3",
    "--pool --dt=f16:f32 ic3ih4kh2", "--lrn --dt=f16:f32 ic3ih4", "--sum --sdt=f16:f64 2x3",
    "--sdpa --dt=f16:f16:bf16:f16 1x1x2x3:1x1x3x4:1x1x4x2",
    "--bnorm --dt=f16:f32 ic3ih4", "--bnorm --dt=s8 ic3ih4", "--lnorm --dt=f64 2x3",
    "--gnorm --dir=BWD_D --dt=s8 g1ic3ih4",
    "--softmax --sdt=f16 --ddt=f64 2x3", "--binary --sdt=f16:f32 --ddt=f64 2x3:2x3",
    "--concat --sdt=f16:f64 2x3:2x1", "--shuffle --dt=f16:f32 2x3",
    "--shuffle --dir=BWD_D --dt=s8 2x3",
    "--resampling --dir=BWD_D --sdt=s8 ic3ih3oh5",
    "--eltwise --dt=s8 --alg=tanh 2x3", "--reduction --sdt=f64 2x3:2x1",
    "--prelu --sdt=f64 2x3:1x3", "--prelu --sdt=f32:s8 2x3:1x3",
    "--prelu --dir=BWD_DW --sdt=s8 2x3:1x3",
]  # fmt: skip


@pytest.mark.parametrize("text", TOGETHER)
def test_types_that_go_together(text):
    (problem,) = read(text)
    assert read(str(problem)) == [problem]


@pytest.mark.parametrize("text", APART)
def test_types_that_do_not_go_together(text):
    with pytest.raises(Unsupported, match="must be of type") as caught:
        read(text)
    assert all(feature.startswith("data type") for feature in caught.value.features)


@pytest.mark.parametrize("text", TOGETHER[:21])
def test_the_forward_operation_of_a_gradient_is_of_its_inputs_type(text):
    op = the(text)
    forward = op.forward_op or op
    assert forward.src.data_type == forward.weights.data_type == op.data_type


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
@pytest.mark.parametrize("data_type", DTYPES)
def test_what_lrn_keeps_is_f32_in_the_layout_of_dst(direction, data_type):
    workspace = the(f"--lrn --dir={direction} --dt={data_type} --tag=axb ic3ih4").workspace_desc()
    assert workspace == dnn.MemoryDesc((2, 3, 4, 4), "f32", "acdb")


# -- who is asked ----------------------------------------------------------------------------------


def test_an_implementation_is_not_asked_for_types_that_it_does_not_name():
    for_f32, for_halves = Relu("toybackend:f32"), Relu("toybackend:halves")
    for_halves.data_types = ("f16", "bf16")
    with registered(for_f32, for_halves):
        pd = dnn.PrimitiveDesc(relu("f16"), dnn.engine("cpu"), impl="toybackend:*")
    assert pd.impl_name == "toybackend:halves"
    assert (for_f32.asked, for_halves.asked) == (0, 1)
    assert [str(r) for r in pd.refusals if r.kind != "filter"] == [
        "toybackend:f32: type: takes f32; got src of f16"
    ]


def test_integers_are_not_meant():
    op = the("--binary --alg=select 2x3:2x3:2x3")
    assert op.src2.data_type == "s8"
    answer = Relu("toybackend:f32").answer(op, PLAIN, dnn.engine("cpu"), None)
    assert answer == Refused("shape", "computes relu; got select")


class Remote(ToyEngine):
    kind = "halfless"
    is_host = False


def test_the_host_serves_by_the_reference_where_its_others_do_not_know_the_type(monkeypatch):
    monkeypatch.setattr(ElementWise, "data_types", ("f32",))
    engines = {"halfless": f"{__name__}:Remote"}
    with registered(Relu("toybackend:f32"), kind="halfless", engines=engines):
        engine = dnn.engine("halfless")
        with pytest.warns(dnn.ReferenceWarning):
            pd = dnn.PrimitiveDesc(relu("f64"), engine, host_fallback=True)
        assert pd.impl_name == "host:reference:eltwise"
        src, dst = (dnn.Memory(desc, engine) for desc in (pd.src_desc, pd.dst_desc))
        x = np.linspace(-1, 1, 20).reshape(4, 5)
        src = dnn.Memory.from_numpy(x, engine=engine)
        pd.primitive().execute(engine.stream(), src=src, dst=dst).wait()
        np.testing.assert_array_equal(dst.numpy(), np.maximum(x, x.dtype.type(0)))


class Measured(ToyEngine):
    kind = "measured"
    peaks = Peaks({"f32": 1e9, "f16": 4e9}, bandwidth=1e15, launch=0.0)


def test_an_estimate_counts_with_the_peak_of_the_type():
    implementation = Relu("toybackend:all", 1.0)
    implementation.data_types = ("f32", "f16", "bf16")
    engines = {"measured": f"{__name__}:Measured"}
    with registered(implementation, kind="measured", engines=engines):
        engine = dnn.engine("measured")
        f32, f16, bf16 = (
            dnn.PrimitiveDesc(relu(t), engine).seconds for t in ("f32", "f16", "bf16")
        )
    assert f32 == bf16 == pytest.approx(4 * f16)


# -- what comes out --------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", DTYPES)
def test_the_reference_rounds_once(data_type):
    rng = np.random.default_rng(0)
    op = the(f"--matmul --dt={data_type} 9x300:300x7")
    src, weights = (rng.standard_normal(d.dims).astype(d.dtype) for d in (op.src, op.weights))
    right = expected_outputs(op, PLAIN, {"src": src, "weights": weights})["dst"]
    exact = src.astype(np.float64) @ weights.astype(np.float64)
    assert right.values.dtype == DTYPES[data_type]
    spacing = np.abs(right.values.astype(np.float64)) * float(ml_dtypes.finfo(op.dst.dtype).eps)
    assert np.all(np.abs(right.values.astype(np.float64) - exact) <= spacing / 2)


@pytest.mark.parametrize("data_type", DTYPES)
def test_the_bound_lets_f32_pass_and_fewer_bits_fail(data_type):
    """Sums in f32 that are rounded once are right, sums in the type itself are not."""
    rng = np.random.default_rng(0)
    op = the(f"--matmul --dt={data_type} 9x300:300x7")
    src, weights = (rng.standard_normal(d.dims).astype(d.dtype) for d in (op.src, op.weights))
    right = expected_outputs(op, PLAIN, {"src": src, "weights": weights})["dst"]
    in_f32 = (src.astype(np.float32) @ weights.astype(np.float32)).astype(op.dst.dtype)
    assert right.check(in_f32).ok
    total = np.zeros((9, 7), op.dst.dtype)
    for k in range(300):
        total += src[:, k : k + 1] * weights[k]
    assert not right.check(total).ok


def in_groups(src, weights, terms, store):
    """Exact sums of `terms` products, added up in f32; `store` ends each step."""
    total = np.zeros((len(src), weights.shape[1]))
    for k in range(0, src.shape[1], terms):
        part = src[:, k : k + terms].astype(np.float64) @ weights[k : k + terms].astype(np.float64)
        total = store(total + part).astype(np.float64)
    return total.astype(np.float32)


def cut_off(values):
    near = values.astype(np.float32)
    return np.where(np.abs(near) > np.abs(values), np.nextafter(near, np.float32(0)), near)


@pytest.mark.parametrize("terms", [100, 576, 4608, 25088])
def test_products_of_halves_may_be_cut_off_as_tensor_cores_do(terms):
    rng = np.random.default_rng(terms)
    shape = f"{terms}x16"
    half, single = (the(f"--matmul --dt={dt} 32x{terms}:{shape}") for dt in ("f16:f16:f32", "f32"))
    src, weights = (
        rng.standard_normal(d.dims).astype(np.float16) for d in (half.src, half.weights)
    )
    right = expected_outputs(
        half, PLAIN, {"src": src, "weights": weights}, random_order=True, judged=True
    )["dst"]
    got = in_groups(src, weights, 16, cut_off)
    assert right.check(got).ok
    assert not right.check(in_groups(src, weights, 16, lambda x: x.astype(np.float16))).ok
    strict = expected_outputs(
        single, PLAIN, {"src": src.astype("f4"), "weights": weights.astype("f4")},
        random_order=True, judged=True,
    )["dst"]  # fmt: skip
    assert strict.check(got).ok == (terms < 500)


def test_the_bound_does_not_grow_where_sizes_leave_f16():
    """The sum of absolute values is infinite in f16; the result is not, and must be right."""
    op = the("--matmul --dt=f16 1x2:2x1")
    inputs = {"src": [[300, 300]], "weights": [[300], [-300]]}
    arrays = {name: np.array(values, np.float16) for name, values in inputs.items()}
    right = expected_outputs(op, PLAIN, arrays)["dst"]
    assert right.values == 0
    assert right.bound() < 0.2


@pytest.mark.parametrize(("data_type", "least"), [("f16", 2.0**-24), ("bf16", 2.0**-126)])
def test_small_numbers_count_where_f32_has_normal_ones(data_type, least):
    op = the(f"--eltwise --alg=square --dt={data_type} 2")
    src = np.array([0, 2.0**-10 if data_type == "f16" else 2.0**-60], op.src.dtype)
    bound = expected_outputs(op, PLAIN, {"src": src})["dst"].bound()
    assert np.asarray(bound)[0] == least
    right = expected_outputs(op, PLAIN, {"src": src})["dst"]
    assert not right.check(np.zeros_like(right.values)).ok


def test_maxima_are_exact_and_windows_without_cells_give_the_lowest_number():
    for name, dtype in DTYPES.items():
        op = the(f"--pool --dt={name} mb1ic1ih1iw1oh1ow3kh1kw1sh1sw1ph0pw1")
        right = expected_outputs(op, PLAIN, {"src": np.full((1, 1, 1, 1), 5, dtype)})
        lowest = ml_dtypes.finfo(dtype).min
        np.testing.assert_array_equal(right["dst"].values.ravel(), [lowest, dtype(5), lowest])
        assert right["dst"].bound() == 0.0
        assert right["workspace"].values.dtype == np.uint8


# -- fpmath ----------------------------------------------------------------------------------------

KEPT_BITS = {"tf32": 11, "f16": 11, "bf16": 8, "any": 8}


def rounded(values, bits):
    """To nearest, with so many bits, the leading one counted."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


@pytest.mark.parametrize("fpmath", ["strict", "ieee", *KEPT_BITS])
@pytest.mark.parametrize("bits", [8, 11, 24])
def test_the_bound_follows_what_factors_may_be_rounded_to(fpmath, bits):
    rng = np.random.default_rng(0)
    op = the("--matmul 9x30:30x70")
    src, weights = (rng.standard_normal(d.dims).astype(d.dtype) for d in (op.src, op.weights))
    inputs = {"src": src, "weights": weights}
    right = expected_outputs(op, dnn.Attributes(fpmath=fpmath), inputs)["dst"]
    got = rounded(src, bits) @ rounded(weights, bits)
    assert right.check(got).ok == (bits >= KEPT_BITS.get(fpmath, 24))


def test_what_is_rounded_on_the_way_is_f32_data_alone():
    inputs = {"src": np.ones((1, 2), np.float16), "weights": np.ones((2, 1), np.float16)}
    bounds = {
        expected_outputs(the("--matmul --dt=f16 1x2:2x1"), dnn.Attributes(fpmath=fpmath), inputs)[
            "dst"
        ]
        .bound()
        .item()
        for fpmath in ("strict", "any")
    }
    assert len(bounds) == 1


def test_operations_without_products_have_no_factors_to_round():
    op, inputs = the("--eltwise --alg=exp 2x3"), {"src": np.ones((2, 3), np.float32)}
    strict, free = (
        expected_outputs(op, dnn.Attributes(fpmath=fpmath), inputs)["dst"].bound()
        for fpmath in ("strict", "any")
    )
    np.testing.assert_array_equal(strict, free)


@pytest.mark.parametrize("text", ["--conv ic3oc4ih5kh3", "--matmul 3x4:4x5", "--eltwise 2x3"])
def test_arithmetic_of_f32_alone_is_what_ieee_asks_for(text):
    names = [
        [pd.impl_name for pd in dnn.primitive_descs(the(text), dnn.engine("cpu"), attr)]
        for attr in (dnn.Attributes(), dnn.Attributes(fpmath="ieee"))
    ]
    assert names[0] == names[1] != []
