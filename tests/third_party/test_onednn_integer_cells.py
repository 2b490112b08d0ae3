"""Recurrent cells of integers: oneDNN's results are those of the reference and of cpu_numba."""

from __future__ import annotations

import numpy as np
import pytest
from processor import HAS_VNNI

import dnncore as dnn
from dnncore.comparison.compare import expected_outputs
from dnncore.problem import read

pytestmark = pytest.mark.peer

COMMON = "--rnn --dir=FWD_I --wdt=s8 --wtag=any --attr-rnn-data-qparams=100:128"
PER_CHANNEL = "--attr-rnn-weights-qparams=24:2000x1500x700"
PROBLEMS = (
    f"{COMMON} {PER_CHANNEL} --alg=VANILLA_LSTM --sdt=u8:u8:f32 --ddt=u8:u8:f32 l2t3mb4_dhc16",
    (
        f"{COMMON} {PER_CHANNEL} --alg=VANILLA_LSTM --sdt=u8:f32:f32 --ddt=f32"
        " --direction=bidirectional_concat l1t3mb4_slc19dhc17"
    ),
    (
        f"{COMMON} --alg=VANILLA_LSTM --with-projection=true --sdt=u8 --ddt=u8"
        " --without=src_iter+src_iter_c+dst_iter+dst_iter_c --attr-rnn-projection-qparams=8:900x800"
        " --attr-rnn-weights-qparams=0:1500 l1t3mb4_slc16dhc16dic32"
    ),
    (
        f"{COMMON} {PER_CHANNEL} --alg=VANILLA_GRU --direction=right2left --sdt=u8 --ddt=f32:u8"
        " l1t4mb4_dhc16"
    ),
    f"{COMMON} {PER_CHANNEL} --alg=VANILLA_GRU --sdt=u8:f32 --ddt=u8:f32 l2t3mb2_dhc17",
)
RANGES = {"u8": (0, 255), "s8": (-64, 64)}


def drawn(name, desc):
    draws = np.random.default_rng([*name.encode()])
    if desc.data_type in RANGES:
        return draws.integers(*RANGES[desc.data_type], desc.dims).astype(desc.dtype)
    return draws.uniform(-1, 1, desc.dims).astype(desc.dtype)


@pytest.mark.parametrize("impl", ["onednn:*", "cpu_numba:*"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_results_agree(onednn, text, impl):
    (problem,) = read(text)
    if impl == "onednn:*" and not HAS_VNNI:
        pytest.skip("oneDNN saturates sums of integers without VNNI")
    pd = dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"), problem.attr, impl=impl)
    inputs = {n: drawn(n, d) for n, d in pd.descs.items() if n.startswith(("src", "wei", "bias"))}
    memories = {
        name: dnn.reorder(dnn.Memory.from_numpy(inputs[name]), desc)
        if name in inputs
        else dnn.Memory(desc, pd.engine)
        for name, desc in pd.descs.items()
    }
    pd.primitive().execute(pd.engine.stream(), **memories).wait()
    for name, right in expected_outputs(problem.op, problem.attr, inputs).items():
        found = right.check(np.array(memories[name].numpy()))
        assert found.ok, f"{name}: {found}"
        assert np.max(right.noise.limit, initial=0.0) < 1, "bounds allow other integers"


def test_sums_of_both_directions_are_refused(onednn):
    (problem,) = read(f"{PROBLEMS[0].rpartition(' ')[0]} --direction=bidirectional_sum t2_dhc16")
    with pytest.raises(dnn.NoImplementation, match="adds integers of both directions"):
        dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"), problem.attr, impl="onednn:*")
