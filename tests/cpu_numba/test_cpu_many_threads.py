"""Results with many more threads than processors, as large machines have them."""

import pytest
from combinations import every
from instruction_sets import names_in_turn

pytest.importorskip("numba")

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case

CPU = dnn.engine("cpu")
PROBLEMS = {
    "convolution forward": "--conv --dir=FWD_B mb5ic19oc37_ih40kh3ph1",
    "convolution by data": "--conv --dir=BWD_D mb5ic19oc37_ih40kh3ph1",
    "convolution by weights": "--conv --dir=BWD_WB mb5ic19oc37_ih40kh3ph1",
    "winograd": "--conv --dir=FWD_B --alg=wino mb5ic19oc37_ih40kh3ph1",
    "depthwise forward": "--conv --dir=FWD_B g24mb4ic24oc24_ih40kh3ph1_iw6kw3pw1",
    "depthwise by data": "--conv --dir=BWD_D g24mb4ic24oc24_ih40kh3ph1_iw6kw3pw1",
    "depthwise by weights": "--conv --dir=BWD_WB g24mb4ic24oc24_ih40kh3ph1_iw6kw3pw1",
    "one channel by weights": "--conv --dir=BWD_WB g1mb9ic1oc1_ih60kh3ph1",
    "groups by weights": "--conv --dir=BWD_WB g3mb9ic6oc9_ih40kh3ph1",
    "inner product forward": "--ip --dir=FWD_B mb300ic50oc40",
    "inner product by data": "--ip --dir=BWD_D mb300ic50oc40",
    "inner product by weights": "--ip --dir=BWD_WB mb3000ic5oc4",
    "long products": "--matmul 3x20000:20000x5",
    "wide products": "--matmul 3x5:5x20000",
    "many products": "--matmul 300x3x4:300x4x5",
    "pooling": "--pool --dir=FWD_D --alg=max mb4ic24_ih40kh3sh2ph1",
    "pooling backward": "--pool --dir=BWD_D --alg=avg_np mb4ic24_ih40kh3sh2ph1",
    "lrn": "--lrn --dir=FWD_D --alg=ACROSS mb2ic24ih40",
    "lrn backward": "--lrn --dir=BWD_D --alg=WITHIN mb2ic4ih40",
    "softmax": "--softmax --dir=FWD_D --axis=1 300x50x3",
    "softmax backward": "--softmax --dir=BWD_D --axis=0 300x50",
    "a reduction of rows": "--reduction --alg=sum 300x400:300x1",
    "a reduction of columns": "--reduction --alg=mean 4000x50:1x50",
    "a reduction of all": "--reduction --alg=max 300x4x50:1x1x1",
    "binary": "--binary --alg=mul 300x50x3:300x1x3",
    "sum": "--sum --sdt=f32:f32 --scales=2:3 300x50x3",
    "eltwise": "--eltwise --alg=tanh 300x50x3",
    "reorder": "--reorder --stag=abcd --dtag=aBcd16b 30x50x7x9",
}  # with more rows, columns, taps or pixels than threads


@every(2, ("name", PROBLEMS), ("threads", ["130", "257"]))
def test_each_thread_computes_its_part(name, threads):
    (problem,) = read(PROBLEMS[name])
    before = dnn.get_num_threads()
    dnn.set_num_threads(int(threads))
    try:
        impl = names_in_turn(problem, CPU, "cpu_numba:*")
        result = run_case(problem, CPU, impl=impl, checks=["integers", "random"])
    finally:
        dnn.set_num_threads(before)
        dnn.cache.primitives.clear()
    assert (result.status, result.failures) == ("passed", ())
