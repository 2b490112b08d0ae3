"""Recurrent cells: messages of their rules, and relations between cells, directions and layers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from checks import reference_outputs

import dnncore as dnn
from dnncore.comparison.fills import fill_normal, reads
from dnncore.problem import read
from dnncore.problem.from_verbose import from_verbose


def the(text):
    (problem,) = read(text)
    return problem.op


def desc(*dims, type="f32", tag=None):
    return dnn.MemoryDesc(dims, type, tag)


def lstm(algorithm="vanilla_lstm", direction="left2right", prop_kind="forward_training", **changes):
    gates = {"vanilla_lstm": 4, "vanilla_rnn": 1}.get(algorithm, 3)
    fields = {
        "src_layer": desc(2, 3, 5), "weights_layer": desc(1, 1, 5, gates, 5),
        "weights_iter": desc(1, 1, 5, gates, 5), "dst_layer": desc(2, 3, 5), **changes,
    }  # fmt: skip
    return dnn.RNNForward(prop_kind, algorithm, direction, **fields)


def of_integers(own="u8", algorithm="vanilla_lstm", **changes):
    gates = 4 if algorithm == "vanilla_lstm" else 3
    weights = desc(1, 1, 5, gates, 5, type="s8")
    states = {"src_layer": desc(2, 3, 5, type=own), "dst_layer": desc(2, 3, 5, type=own)}
    fields = {"prop_kind": "forward_inference", "weights_layer": weights, "weights_iter": weights}
    return lstm(algorithm, **{**fields, **states, **changes})


def weights_qparams(scales, mask=0):
    return dnn.Attributes(rnn_weights_qparams=dnn.RNNWeightsQparams(scales, mask))


def backward(algorithm="vanilla_lstm", **changes):
    gates = {"vanilla_lstm": 4, "vanilla_rnn": 1}.get(algorithm, 3)
    weights = desc(1, 1, 5, gates, 5)
    fields = {
        "src_layer": desc(2, 3, 5), "diff_dst_layer": desc(2, 3, 5), "weights_layer": weights,
        "weights_iter": weights, "diff_weights_layer": weights, "diff_weights_iter": weights,
        **changes,
    }  # fmt: skip
    return dnn.RNNBackward(algorithm, "left2right", **fields)


STATE = desc(1, 1, 3, 5)
MESSAGES = {
    "rnn: prop_kind must be one of forward_training, forward_inference; got 'backward'":
        lambda: lstm(prop_kind="backward"),
    "rnn: unknown algorithm 'lstm'": lambda: lstm("lstm"),
    "rnn: direction must be one of left2right, right2left, bidirectional_concat,"
    " bidirectional_sum; got 'up'": lambda: lstm(direction="up"),
    "rnn: activation must be one of relu, tanh, logistic; got 'gelu'":
        lambda: lstm(activation="gelu"),
    "rnn: alpha must be a finite number": lambda: lstm(alpha=float("nan")),
    "rnn: alpha must be at least 0, as the gradient needs; got -1": lambda: lstm(alpha=-1),
    "rnn: src_layer must have a concrete format": lambda: lstm(src_layer=desc(2, 3, 5, tag="any")),
    "rnn: src_iter_c belongs to vanilla_lstm; leave it out for vanilla_gru":
        lambda: lstm("vanilla_gru", src_iter_c=STATE),
    "rnn: vanilla_lstm has no attention": lambda: lstm(attention=desc(2, 3, 1)),
    "rnn: vanilla_augru needs attention, of dims (T, N, 1)": lambda: lstm("vanilla_augru"),
    "rnn: src_iter and src_iter_c must be given together or not at all; got only src_iter":
        lambda: lstm(src_iter=STATE),
    "rnn: dst_iter and dst_iter_c must be given together or not at all; got only dst_iter_c":
        lambda: lstm(dst_iter_c=STATE),
    "rnn: weights_iter must have 5 dims; got (5, 5)": lambda: lstm(weights_iter=desc(5, 5)),
    "rnn: there must be at least one layer; got weights_layer (0, 1, 5, 4, 5)":
        lambda: lstm(weights_layer=desc(0, 1, 5, 4, 5)),
    "rnn: DIC of weights_iter must be DHC of weights_layer without weights_projection; got 4 and 5":
        lambda: lstm(weights_iter=desc(1, 1, 4, 4, 5)),
    "rnn: SLC must be DIC if there are several layers, because each layer reads the layer below, or"
    " 2 DIC for bidirectional_concat; got SLC 6, DIC 5":
        lambda: lstm(src_layer=desc(2, 3, 6), weights_layer=desc(2, 1, 6, 4, 5)),
    "rnn: vanilla_augru must have one layer and direction left2right":
        lambda: lstm("vanilla_augru", "right2left", attention=desc(2, 3, 1)),
    "rnn: dst_layer must be (2, 3, 10), that is (T, N, 2 DIC) with 2 DIC = 10 of weights_iter; got":
        lambda: lstm(direction="bidirectional_concat", weights_layer=desc(1, 2, 5, 4, 5),
                     weights_iter=desc(1, 2, 5, 4, 5)),
    "rnn: src_layer must be (2, 3, 6), that is (T, N, SLC) with SLC = 6 of weights_layer; got":
        lambda: lstm(weights_layer=desc(1, 1, 6, 4, 5)),
    "rnn: src_iter_c must be (1, 1, 3, 5), that is (L, D, N, DHC); got (3, 5)":
        lambda: lstm(src_iter=STATE, src_iter_c=desc(3, 5)),
    "rnn: weights_peephole must be (1, 1, 3, 5), that is (L, D, 3, DHC); got (1, 1, 2, 5)":
        lambda: lstm(weights_peephole=desc(1, 1, 2, 5)),
    "rnn: weights_layer must be (1, 1, 5, 4, 5), that is (L, D, SLC, G, DHC) with G = 4 of"
    " vanilla_lstm; got (1, 1, 5, 3, 5)":
        lambda: lstm(weights_layer=desc(1, 1, 5, 3, 5)),
    "rnn: bias must be (1, 1, 4, 5)": lambda: lstm("lbr_gru", bias=desc(1, 1, 3, 5)),
    "rnn: dst_layer must be of type f16, because src_layer is f16; got f32":
        lambda: lstm(src_layer=desc(2, 3, 5, type="f16"),
                     weights_layer=desc(1, 1, 5, 4, 5, type="f16"),
                     weights_iter=desc(1, 1, 5, 4, 5, type="f16")),
    "rnn: cells of u8 are for forward_inference; got forward_training":
        lambda: of_integers(prop_kind="forward_training"),
    "rnn: cells of s8 are vanilla_lstm; got vanilla_gru": lambda: of_integers("s8", "vanilla_gru"),
    "rnn: cells of u8 are vanilla_lstm, vanilla_gru; got lbr_gru":
        lambda: of_integers(algorithm="lbr_gru"),
    "rnn: cells of u8 have no weights_peephole; leave it out":
        lambda: of_integers(weights_peephole=desc(1, 1, 3, 5)),
    "rnn: dst_iter must be of type u8":
        lambda: of_integers(algorithm="vanilla_gru", src_iter=desc(1, 1, 3, 5, type="u8"),
                            dst_iter=STATE),
    "rnn: bias must be of type f32": lambda: of_integers(bias=desc(1, 1, 4, 5, type="s8")),
    "rnn backward: cells of u8 are for forward_inference; got backward":
        lambda: backward(src_layer=desc(2, 3, 5, type="u8")),
    "rnn_data_qparams: scale must be a finite number": lambda: dnn.RNNDataQparams(float("inf")),
    "rnn_data_qparams: scale must be above 0; got 0": lambda: dnn.RNNDataQparams(0),
    "rnn_data_qparams: shift must be a finite number": lambda: dnn.RNNDataQparams(1, "a"),
    "rnn_weights_qparams: scales must be a sequence of finite numbers above 0; got [0.0]":
        lambda: dnn.RNNWeightsQparams([0.0]),
    "rnn_weights_qparams: scales must be a sequence of finite numbers above 0; got 1":
        lambda: dnn.RNNWeightsQparams(1),
    "rnn_weights_qparams: scales must be a sequence of finite numbers above 0; got [1e+300]":
        lambda: dnn.RNNWeightsQparams([1e300]),
    "rnn_weights_qparams: mask must be one of 0, 8, 24; got 'a'":
        lambda: dnn.RNNWeightsQparams([1.0], "a"),
    "rnn_weights_qparams: mask must be one of 0, 8, 24; got 3":
        lambda: dnn.RNNWeightsQparams([1.0], 3),
    "attributes: rnn_data_qparams must be RNNDataQparams or None; got 3":
        lambda: dnn.Attributes(rnn_data_qparams=3),
    "rnn: rnn_data_qparams belong to recurrent cells of src_layer u8 or s8; leave them out":
        lambda: dnn.Attributes(rnn_data_qparams=dnn.RNNDataQparams()).check(lstm()),
    "rnn: rnn_weights_qparams: mask must be 0 or 24; got 8":
        lambda: weights_qparams([1.0], 8).check(of_integers()),
    "rnn: rnn_weights_qparams: mask 24 needs 20 scales; got 5":
        lambda: weights_qparams([1.0] * 5, 24).check(of_integers()),
    "rnn: rnn_weights_qparams: mask 0 needs 1 scale; got 20":
        lambda: weights_qparams([1.0] * 20).check(of_integers()),
    "rnn: rnn_weights_projection_qparams need weights_projection, which is absent":
        lambda: dnn.Attributes(
            rnn_weights_projection_qparams=dnn.RNNWeightsQparams()).check(of_integers()),
    "rnn: direction must be one of left2right, right2left, bidirectional_concat, bidi":
        lambda: lstm(direction=["left2right"]),
    "rnn: activation must be one of relu, tanh, logistic; got array":
        lambda: lstm(activation=np.ones(2)),
    "rnn backward: weights_peephole and diff_weights_peephole must be given together":
        lambda: backward(weights_peephole=desc(1, 1, 3, 5)),
    "rnn backward: diff_src_iter needs src_iter, which is absent":
        lambda: backward("vanilla_gru", diff_src_iter=STATE),
    "rnn backward: diff_dst_iter_c belongs to vanilla_lstm; leave it out for vanilla_rnn":
        lambda: backward("vanilla_rnn", diff_dst_iter_c=STATE),
}  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_messages(message):
    with pytest.raises(dnn.DnnError) as caught:
        MESSAGES[message]()
    assert str(caught.value).startswith(message)


@pytest.mark.filterwarnings("ignore::dnncore.errors.ReferenceWarning")
def test_a_gradient_needs_a_hint_with_a_workspace():
    forward = dnn.PrimitiveDesc(lstm(prop_kind="forward_inference"), dnn.engine("cpu"))
    with pytest.raises(dnn.DescriptorError, match="forward_training, which keeps the workspace"):
        dnn.PrimitiveDesc(backward(), dnn.engine("cpu"), hint=forward)


# -- algebra ---------------------------------------------------------------------------------------

CELLS = ("VANILLA_RNN", "VANILLA_LSTM", "VANILLA_GRU", "LBR_GRU")


def filled(op):
    return {n: fill_normal(d, i) for i, (n, d) in enumerate(reads(op, dnn.Attributes()).items())}


@pytest.mark.parametrize("cell", CELLS)
def test_the_other_direction_is_the_reversed_sequence(cell):
    op = the(f"--rnn --alg={cell} t4mb2_dhc3")
    inputs = filled(op)
    there = reference_outputs(op, inputs)
    back = the(f"--rnn --alg={cell} --direction=right2left t4mb2_dhc3")
    other = reference_outputs(back, {**inputs, "src_layer": inputs["src_layer"][::-1]})
    np.testing.assert_array_equal(there["dst_layer"], other["dst_layer"][::-1])
    np.testing.assert_array_equal(there["dst_iter"], other["dst_iter"])


@pytest.mark.parametrize("cell", CELLS)
def test_two_layers_are_one_after_the_other(cell):
    whole = the(f"--rnn --alg={cell} l2t3mb2_dhc3")
    inputs = filled(whole)
    x = inputs["src_layer"]
    for layer in range(2):
        one = {n: a[layer : layer + 1] for n, a in inputs.items() if n != "src_layer"}
        x = reference_outputs(the(f"--rnn --alg={cell} t3mb2_dhc3"), {**one, "src_layer": x})[
            "dst_layer"
        ]
    np.testing.assert_allclose(reference_outputs(whole, inputs)["dst_layer"], x, 1e-5, 1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_goes_on_from_its_states(cell):
    whole, half = (the(f"--rnn --alg={cell} t{t}mb2_dhc3") for t in (4, 2))
    inputs = filled(whole)
    first = reference_outputs(half, {**inputs, "src_layer": inputs["src_layer"][:2]})
    states = {n.replace("dst", "src"): first[n] for n in first if "iter" in n}
    second = reference_outputs(half, {**inputs, **states, "src_layer": inputs["src_layer"][2:]})
    right = reference_outputs(whole, inputs)
    np.testing.assert_allclose(right["dst_layer"][2:], second["dst_layer"], 1e-5, 1e-6)


def test_without_steps_the_states_do_not_change():
    op = the("--rnn --alg=VANILLA_LSTM t0mb2_dhc3")
    inputs = filled(op)
    outputs = reference_outputs(op, inputs)
    np.testing.assert_array_equal(outputs["dst_iter_c"], inputs["src_iter_c"])
    np.testing.assert_array_equal(outputs["dst_iter"], inputs["src_iter"])


def test_attention_of_one_ignores_the_state():
    """u counts as 0, so that h' is o."""
    op = the("--rnn --alg=VANILLA_AUGRU t1mb2_dhc3")
    inputs = {**filled(op), "attention": np.ones((1, 2, 1), np.float32)}
    saved = reference_outputs(op, inputs)["workspace"][0, 0, 0]
    np.testing.assert_array_equal(saved[:, 9:], saved[:, 6:9])


# -- cells of integers -----------------------------------------------------------------------------

# z = 0 but for g, whose sum is (96 - 32) / 64 * 44 / 40 = 1.1: g = tanh(1.1), c = g / 2 + c / 2.
ONE_STEP = {
    "src_layer": np.array([[[96]]], np.uint8), "src_iter": np.array([[[[32]]]], np.uint8),
    "src_iter_c": np.full((1, 1, 1, 1), 0.5, np.float32),
    "weights_layer": np.array([0, 0, 44, 0], np.int8).reshape(1, 1, 1, 4, 1),
    "weights_iter": np.array([9, 9, 9, 9], np.int8).reshape(1, 1, 1, 4, 1),
    "bias": np.zeros((1, 1, 4, 1), np.float32),
}  # fmt: skip
QPARAMS = {
    "rnn_data_qparams": dnn.RNNDataQparams(64, 32),
    "rnn_weights_qparams": dnn.RNNWeightsQparams([40.0]),
}


def test_a_step_of_integers_by_hand():
    op = the("--rnn --dir=FWD_I --alg=VANILLA_LSTM --sdt=u8:u8:f32 --wdt=s8 --ddt=f32:u8:f32"
             " l1t1mb1_slc1dhc1")  # fmt: skip
    found = reference_outputs(op, ONE_STEP, **QPARAMS)
    c = np.tanh(1.1) / 2 + 0.25
    q = round(np.tanh(c) / 2 * 64 + 32)  # 50
    assert found["dst_iter_c"].item() == np.float32(c)
    assert (
        (found["dst_iter"].item(), found["dst_layer"].item()) == (q, (q - 32) / 64) == (50, 18 / 64)
    )


LINE = (
    "onednn_verbose,exec,cpu,rnn,ref,forward_inference,src_layer_u8::blocked:abc::f0"
    " src_iter_u8::blocked:abcd::f0 wei_layer_s8::opaque:::f0 wei_iter_s8::opaque:::f0"
    " wei_proj_s8::opaque:::f0 bias_f32::blocked:abcd::f0 dst_layer_f32::blocked:abc::f0"
    " dst_iter_u8::blocked:abcd::f0,rnn_data_qparams:100:128;,alg:vanilla_lstm"
    " direction:unidirectional_left2right activation:undef flags:,"
    "l1t3mb4sic8slc16dhc16dic8,0.2"
)


def test_a_line_of_onednn_is_read():
    """Its lines have the scale and the shift, but not the scales of the weights."""
    (problem,) = from_verbose(LINE)
    assert str(problem) == (
        "--rnn --dir=FWD_I --sdt=u8:u8:f32 --wdt=s8 --ddt=f32:u8:f32 --alg=VANILLA_LSTM"
        " --with-projection=true --attr-rnn-data-qparams=100:128 l1t3mb4_sic8slc16dhc16dic8"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--attr-rnn-data-qparams=1:2:3", "SCALE[:SHIFT]"),
        ("--attr-rnn-data-qparams=x", "a number"),
        ("--attr-rnn-data-qparams=-1", "scale must be above 0"),
        ("--attr-rnn-weights-qparams=5", "MASK:SCALE[xSCALE...]"),
        ("--attr-rnn-weights-qparams=3:1", "mask must be one of 0, 8, 24"),
        ("--attr-rnn-weights-qparams=24:1xy", "a number"),
    ],
)
def test_texts_that_cannot_be_read(options, message):
    types = "--rnn --dir=FWD_I --alg=VANILLA_GRU --sdt=u8 --wdt=s8 --ddt=u8"
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        read(f"{types} {options} t1_dhc2")


def test_scales_are_repeated_and_written_once():
    (problem,) = read("--rnn --dir=FWD_I --alg=VANILLA_GRU --sdt=u8 --wdt=s8 --ddt=u8"
                      " --attr-rnn-weights-qparams=24:1x2x4 t1_dhc2")  # fmt: skip
    assert problem.attr.rnn_weights_qparams.scales == (1, 2, 4, 1, 2, 4)
    assert "--attr-rnn-weights-qparams=24:1x2x4 " in str(problem)


def test_integers_are_those_of_a_network_of_f32():
    """Fine quantization: results are within a few steps of integers of those of f32."""
    shape = "l2t4mb3_dhc16"
    rng = np.random.default_rng(1)
    plain = the(f"--rnn --dir=FWD_I --alg=VANILLA_GRU --without=src_iter {shape}")
    inputs = {n: rng.uniform(-1, 1, d.dims).astype(np.float32) / 4
              for n, d in reads(plain, dnn.Attributes()).items()}  # fmt: skip
    right = reference_outputs(plain, inputs)["dst_layer"]
    op = the(f"--rnn --dir=FWD_I --alg=VANILLA_GRU --without=src_iter --sdt=u8 --wdt=s8 --ddt=f32"
             f" {shape}")  # fmt: skip
    whole = {"src_layer": np.rint(inputs["src_layer"] * 200 + 128).astype(np.uint8)}
    whole |= {n: np.rint(inputs[n] * 500).astype(np.int8) for n in inputs if "weights" in n}
    found = reference_outputs(
        op, {**whole, "bias": inputs["bias"]}, rnn_data_qparams=dnn.RNNDataQparams(200, 128),
        rnn_weights_qparams=dnn.RNNWeightsQparams([500.0] * 48, 24),
    )["dst_layer"]  # fmt: skip
    np.testing.assert_allclose(found, right, atol=3 / 200)


@pytest.mark.peer
def test_layers_of_both_directions_are_those_of_torch():
    """SLC = 2 DIC: each layer reads both directions, as torch's and cuDNN's do."""
    torch = pytest.importorskip("torch")
    op = the("--rnn --alg=VANILLA_LSTM --direction=bidirectional_concat"
             " --without=src_iter+src_iter_c l2t3mb2_slc8dhc4")  # fmt: skip
    inputs = filled(op)
    peer = torch.nn.LSTM(8, 4, 2, bidirectional=True)
    with torch.no_grad():
        for layer, side in np.ndindex(2, 2):
            end = f"l{layer}" + "_reverse" * side
            for name, ours in (("ih", "weights_layer"), ("hh", "weights_iter")):
                values = inputs[ours][layer, side].reshape(len(inputs[ours][layer, side]), -1).T
                getattr(peer, f"weight_{name}_{end}").copy_(torch.tensor(values.copy()))
            bias = torch.tensor(inputs["bias"][layer, side].ravel())
            getattr(peer, f"bias_ih_{end}").copy_(bias)
            getattr(peer, f"bias_hh_{end}").zero_()
        right = peer(torch.tensor(inputs["src_layer"]))[0].numpy()
    np.testing.assert_allclose(reference_outputs(op, inputs)["dst_layer"], right, 1e-4, 1e-6)
