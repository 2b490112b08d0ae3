"""oneDNN's private workspaces: gradients of cells and of a fused relu agree with the reference."""

from __future__ import annotations

import numpy as np
import pytest

import dnncore as dnn
from dnncore.problem import read

pytestmark = pytest.mark.peer

CELL = "l1t3mb2_sic5slc5dhc5dic5"
PROBLEMS = (
    f"--rnn --dir=BWD_DW {CELL}",
    f"--rnn --dir=BWD_DW --activation=logistic --direction=bidirectional_concat {CELL}",
    f"--rnn --dir=BWD_DW --alg=VANILLA_LSTM {CELL}",
    f"--rnn --dir=BWD_DW --alg=VANILLA_LSTM --direction=bidirectional_sum {CELL}",
    f"--rnn --dir=BWD_DW --alg=VANILLA_LSTM --direction=right2left {CELL}",
    f"--rnn --dir=BWD_DW --alg=VANILLA_LSTM --without=diff_src_iter+diff_src_iter_c {CELL}",
    f"--rnn --dir=BWD_DW --alg=LBR_GRU --without=diff_src_layer {CELL}",
    f"--rnn --dir=BWD_DW --alg=VANILLA_GRU {CELL}",
    f"--rnn --dir=BWD_DW --alg=LBR_GRU {CELL}",
    "--bnorm --dir=BWD_DW --flags=CHR --tag=axb mb2ic16_ih5",
    "--bnorm --dir=BWD_DW --flags=CHR --tag=aBx8b mb2ic16_ih5",
)


def filled(pd, known):
    """Memories of all arguments; inputs have known values, or values drawn for their names."""
    memories = {name: dnn.Memory(desc, pd.engine) for name, desc in pd.descs.items()}
    for argument, desc in pd.arguments:
        if argument.direction == "in" and argument.name not in known:
            draws = np.random.default_rng([*argument.name.encode()])
            values = draws.standard_normal(desc.dims).astype(desc.dtype)
            desc.pack(values, memories[argument.name].buffer)
    return memories | known


def gradients(op, impl):
    """The gradients by an implementation, with the workspace of its own forward operation."""
    forward = dnn.PrimitiveDesc(op.forward_op, dnn.engine("cpu"), impl=impl)
    backward = dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl=impl, hint=forward)
    stream = forward.engine.stream()
    kept = filled(forward, {})
    forward.primitive().execute(stream, **kept).wait()
    saved = {name: kept[name] for name in backward.op.saved if name in kept}
    memories = filled(backward, saved)
    for name in ("diff_weights_layer", "diff_weights_iter"):  # old values must not be added
        if name in memories:
            memories[name].fill(7.0)
    backward.primitive().execute(stream, **memories).wait()
    names = [row.name for row, _ in backward.op.tensors() if row.direction == "out"]
    return {name: np.array(memories[name].numpy()) for name in names}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_gradient_reads_the_private_workspace(onednn, text):
    op = read(text)[0].op
    found = gradients(op, "onednn:*")
    expected = gradients(op, "reference:*")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_gradient_of_cells_without_a_hint_is_refused(onednn):
    op = read(PROBLEMS[2])[0].op
    with pytest.raises(dnn.NoImplementation, match=r"private; give the forward's as hint"):
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="onednn:*")
