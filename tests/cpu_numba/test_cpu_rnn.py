"""Plans of recurrent cells: packed weights, and matrices whose rows share sets of a cache."""

import numpy as np
import pytest

import dnncore as dnn
from dnncore.problem import read

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.isa import BEST

CPU = dnn.engine("cpu")
CELLS = ("VANILLA_RNN", "VANILLA_LSTM", "VANILLA_GRU", "LBR_GRU")


def the(text):
    (problem,) = read(text)
    return dnn.PrimitiveDesc(problem.op, CPU, problem.attr, impl="cpu_numba:*")


@pytest.mark.parametrize("cell", CELLS)
def test_any_weights_are_packed_for_the_products(cell):
    pd = the(f"--rnn --alg={cell} --wtag=any l2t2mb3_dhc32")
    for desc in (pd.weights_layer_desc, pd.weights_iter_desc):
        assert desc.tag == f"abdEc{BEST.lanes}e"
    assert "copies" not in pd.notes


def test_the_gradient_packs_transposed_weights():
    pd = the("--rnn --dir=BWD_DW --alg=VANILLA_LSTM --wtag=any t2mb3_dhc32")
    assert pd.weights_iter_desc.tag == f"abCde{BEST.lanes}c"
    assert pd.diff_weights_iter_desc.tag == "abcde"


def test_gates_that_are_not_whole_vectors_stay_plain():
    assert the("--rnn --alg=VANILLA_LSTM --wtag=any t2mb3_dhc5").weights_iter_desc.tag == "abcde"


DIRECTIONS = "", "_reverse"


@pytest.mark.peer
@pytest.mark.parametrize("layers", [2, 3])
def test_layers_of_both_directions_and_their_gradients_are_those_of_torch(layers):
    """SLC = 2 DIC: each layer reads both directions."""
    torch = pytest.importorskip("torch")
    steps, batch, width = 3, 2, 4
    peer = torch.nn.LSTM(2 * width, width, layers, bidirectional=True)
    x = torch.randn(steps, batch, 2 * width, requires_grad=True)
    right, _ = peer(x)
    slopes = torch.randn(right.shape)
    right.backward(slopes)

    def stacked(part):  # of each layer and direction, with the dims (input, gates, width)
        rows = [
            [np.moveaxis(part(f"l{layer}{side}").numpy().reshape(4, width, -1), 2, 0)
             for side in DIRECTIONS]
            for layer in range(layers)
        ]  # fmt: skip
        return np.ascontiguousarray(rows)

    def values(name):
        return lambda end: getattr(peer, f"{name}_{end}").detach()

    def gradients(name):
        return lambda end: getattr(peer, f"{name}_{end}").grad

    wide, deep = stacked(values("weight_ih")), stacked(values("weight_hh"))
    bias = stacked(lambda end: values("bias_ih")(end) + values("bias_hh")(end))[:, :, 0]
    shape = f"l{layers}t{steps}mb{batch}_slc{2 * width}dhc{width}"
    options = "--alg=VANILLA_LSTM --wtag=abx --direction=bidirectional_concat"
    absent = "--without=src_iter+src_iter_c+dst_iter+dst_iter_c"
    forward = the(f"--rnn {options} {absent} {shape}")
    absent = "--without=src_iter+src_iter_c+diff_dst_iter+diff_dst_iter_c"
    backward = the(f"--rnn --dir=BWD_DW {options} {absent} {shape}")
    inputs = {"src_layer": x.detach().numpy(), "weights_layer": wide, "weights_iter": deep}
    found = _run(forward, inputs | {"bias": bias})
    np.testing.assert_allclose(found["dst_layer"], right.detach(), 1e-5, 1e-6)
    inputs |= {"diff_dst_layer": slopes.numpy(), "workspace": found["workspace"]}
    found = _run(backward, inputs)
    expected = {
        "diff_src_layer": x.grad.numpy(),
        "diff_weights_layer": stacked(gradients("weight_ih")),
        "diff_weights_iter": stacked(gradients("weight_hh")),
        "diff_bias": stacked(gradients("bias_ih"))[:, :, 0],
    }
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, 1e-5, 1e-5, err_msg=name)


def _run(pd, inputs):
    """Execute on arrays by name; return all outputs."""
    memories = {name: dnn.Memory.from_numpy(array, engine=CPU) for name, array in inputs.items()}
    outputs = {
        argument.name: dnn.Memory(desc, CPU)
        for argument, desc in pd.arguments
        if argument.name not in memories
    }
    pd.primitive().execute(CPU.stream(), **memories, **outputs).wait()
    return {name: memory.numpy() for name, memory in outputs.items()}
