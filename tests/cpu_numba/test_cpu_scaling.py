"""Huge problems are accepted and built in about the time of small ones; nothing is allocated."""

import time

import pytest

import dnncore as dnn
from dnncore.cache import primitives
from dnncore.problem import read

SIDE = 1 << 20
PROBLEMS = {
    "relu": f"--eltwise --alg=relu 1x1x{SIDE}x{SIDE}",
    "sum of a row": f"--reduction --alg=sum {SIDE}x{SIDE}:{SIDE}x1",
    "sum of all": f"--reduction --alg=max {SIDE}x{SIDE}:1x1",
    "transpose": f"--reorder --stag=abcd --dtag=abdc 1x1x{SIDE}x{SIDE}",
    "softmax": f"--softmax --axis=1 {SIDE}x{SIDE}",
    "pooling": f"--pool --alg=avg_np mb1ic1_ih{SIDE}kh2sh1ph0",
    "pooling of channels": f"--pool --alg=max mb{SIDE >> 6}ic{SIDE}_ih8kh2sh1ph0",
    "lrn": f"--lrn --alg=WITHIN mb1ic1ih{SIDE}",
    "matmul": f"--matmul {SIDE}x{SIDE}:{SIDE}x{SIDE}",
    "many rows": f"--matmul {1 << 37}x8:8x8",
    "long sums": f"--matmul 4x{1 << 37}:{1 << 37}x4",
    "many columns": f"--matmul 4x4:4x{1 << 37}",
    "convolution": f"--conv --dir=FWD_D mb1ic1oc1_ih{SIDE}kh3ph1",
    "convolution by data": f"--conv --dir=BWD_D mb1ic16oc16_ih{SIDE}kh3ph1",
    "convolution by weights": f"--conv --dir=BWD_W mb1ic1oc1_ih{SIDE}kh3ph1",
    "depthwise": f"--conv --dir=FWD_D g64mb1ic64oc64_ih{SIDE}kh3ph1",
    "many images": f"--conv --dir=FWD_D mb{SIDE}ic16oc16_ih32kh3ph1",
    "a long signal": f"--conv --dir=FWD_D mb1ic1oc8_iw{1 << 24}kw9pw4",
    "inner product": f"--ip --dir=BWD_W mb{SIDE}ic{SIDE}oc{SIDE}",
}

SECONDS = 10  # of this process, with kernels to compile; it was more than 20, or for ever
TABLES = 96 << 20  # bytes: a few words for each place along the longest dim


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_huge_problem(name):
    (problem,) = read(PROBLEMS[name])
    engine = dnn.engine("cpu")
    small = read(PROBLEMS[name].replace(str(SIDE), "64").replace(str(1 << 37), "64"))[0]
    for pd in dnn.primitive_descs(small.op, engine, impl="cpu_numba:*"):
        pd.primitive()  # so that most kernels are loaded
    primitives.clear()
    start = time.process_time()
    descs = list(dnn.primitive_descs(problem.op, engine))
    assert time.process_time() - start < SECONDS
    for pd in descs:
        start = time.process_time()
        executable = pd.primitive().executable
        assert time.process_time() - start < SECONDS, pd.impl_name
        if not pd.is_reference:
            tables = sum(table.nbytes for table in executable._tables)
            assert tables + 8 * len(executable._template) < TABLES, pd.impl_name
    primitives.clear()
