"""Matrix problems that are divided into bands have the results of undivided ones."""

import numpy as np
import pytest
from dnncore_cpu_numba.gemm import bands

import dnncore as dnn
from dnncore.cache import primitives
from dnncore.problem import read

CPU = dnn.engine("cpu")
BEST = "cpu_numba:*:avx512_core,cpu_numba:*:avx2,cpu_numba:*:simd128,cpu_numba:gemm"

PROBLEMS = [
    "--matmul --attr-post-ops=sum:0.5+add:f32:per_oc+tanh 53x9:9x33",
    "--matmul 2x3x41x9:2x3x9x20",
    "--conv --dir=FWD_B mb2ic5oc7_ih40kh3ph1",
    "--conv --dir=BWD_D mb2ic5oc7_ih40kh3ph1sh2",
    "--conv --dir=BWD_D mb2ic5oc7_ih44kh1sh2",  # pixels that no tap sees
    "--conv --dir=BWD_W mb2ic5oc7_ih40kh3ph1",
    "--conv --attr-post-ops=relu+add:f32:per_tensor+sum:0.5+prelu:per_oc ic16oc20_ih40kh3ph1sh2",
    "--conv ic3oc4_iw90kw7pw3dw1",
    "--conv ic2oc3_id12ih12kd3kh3pd1ph1",
    "--conv ic2oc3_ih30kh29ph14",
]


def results(text):
    """The number of steps and the outputs of each implementation that accepts."""
    primitives.clear()
    (problem,) = read(text)
    found = {}
    for pd in dnn.primitive_descs(problem.op, CPU, problem.attr, impl=BEST):
        rng = np.random.default_rng(0)
        memories = {}
        for argument, desc in pd.arguments:
            plain = dnn.Memory.from_numpy(rng.standard_normal(desc.dims).astype(np.float32))
            memories[argument.name] = dnn.reorder(plain, desc)
        primitive = pd.primitive()
        primitive.execute(CPU.stream(), **memories)
        outputs = [memories[a.name].numpy() for a, _ in pd.arguments if a.direction == "out"]
        found[pd.impl_name] = primitive.executable.rows, outputs
    return found


@pytest.mark.parametrize("text", PROBLEMS)
def test_bands_change_no_result(text, monkeypatch):
    whole = results(text)
    monkeypatch.setattr(bands, "LONG", 9)
    monkeypatch.setattr(bands, "BAND", 4)
    divided = results(text)
    assert any(divided[name][0] > rows for name, (rows, _) in whole.items())
    for name, (_, outputs) in whole.items():
        for one, other in zip(outputs, divided[name][1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
