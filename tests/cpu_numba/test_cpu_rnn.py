"""Plans of recurrent cells: packed weights, and matrices whose rows share sets of a cache."""

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
