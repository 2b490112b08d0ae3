"""Check of golden cases: small problems with results computed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.comparison.compare import compare
from dnncore.problem import read
from dnncore.testing.checks.case import Case, Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["GOLDEN", "Golden", "golden"]


@dataclass(frozen=True)
class Golden:
    """A problem's text, its inputs and its outputs, as nested lists in logical order."""

    text: str
    inputs: dict[str, Any]
    expected: dict[str, Any]

    def __str__(self) -> str:
        return self.text


ROUNDING = 1e-5  # relative: results that are not whole have 7 digits

GOLDEN = (
    Golden(  # 1*1 + 2*0 + 4*0 + 5*-1 + 10 and so on: cross-correlation, the kernel is not flipped
        "--conv --dir=FWD_B mb1ic1ih3oc1oh2kh2ph0",
        {"src": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]], "weights": [[[[1, 0], [0, -1]]]],
         "bias": [10]},
        {"dst": [[[[6, 6], [6, 5]]]]},
    ),
    Golden(  # each diff_dst, times the kernel, at its window
        "--conv --dir=BWD_D mb1ic1ih3oc1oh2kh2ph0",
        {"diff_dst": [[[[1, 2], [3, 4]]]], "weights": [[[[1, 0], [0, -1]]]]},
        {"diff_src": [[[[1, 2, 0], [3, 3, -2], [0, -3, -4]]]]},
    ),
    Golden(
        "--conv --dir=BWD_WB mb1ic1ih3oc1oh2kh2ph0",
        {"diff_dst": [[[[1, 2], [3, 4]]]], "src": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]]},
        {"diff_weights": [[[[37, 47], [67, 81]]]], "diff_bias": [10]},
    ),
    Golden(
        "--ip --dir=FWD_B mb1ic3oc2",
        {"src": [[1, 2, 3]], "weights": [[1, 0, -1], [2, 2, 2]], "bias": [5, -12]},
        {"dst": [[3, 0]]},
    ),
    Golden(
        "--ip --dir=BWD_D mb1ic3oc2",
        {"diff_dst": [[3, 1]], "weights": [[1, 0, -1], [2, 2, 2]]},
        {"diff_src": [[5, 2, -1]]},
    ),
    Golden(
        "--ip --dir=BWD_WB mb2ic3oc1",
        {"diff_dst": [[1], [-2]], "src": [[1, 2, 3], [4, 5, 6]]},
        {"diff_weights": [[-7, -8, -9]], "diff_bias": [-1]},
    ),
    Golden(
        "--matmul 2x2:2x2",
        {"src": [[1, 2], [3, 4]], "weights": [[0, 1], [1, 1]]},
        {"dst": [[2, 3], [4, 7]]},
    ),
    Golden(
        "--eltwise --alg=relu --alpha=0.25 5",
        {"src": [-4, -1, 0, 1, 3]},
        {"dst": [-1, -0.25, 0, 1, 3]},
    ),
    Golden(
        "--eltwise --alg=tanh 3",
        {"src": [-1, 0, 2]},
        {"dst": [-0.7615942, 0, 0.9640276]},
    ),
    Golden(  # the slope at 0 is alpha's
        "--eltwise --dir=BWD_D --alg=relu --alpha=0.25 5",
        {"src": [-4, -1, 0, 1, 3], "diff_dst": [4, 8, 12, 16, 20]},
        {"diff_src": [1, 2, 3, 16, 20]},
    ),
    Golden(
        "--pool --alg=max mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"src": [[[[1, 5, 2, 5, 3]]]]},
        {"dst": [[[[5, 5]]]], "workspace": [[[[1, 1]]]]},
    ),
    Golden(  # windows with sums 3 and 6 reach over the border, which counts: / 3
        "--pool --alg=avg_p mb1ic1ih1iw3oh1ow3kh1kw3sh1sw1ph0pw1",
        {"src": [[[[1, 2, 3]]]]},
        {"dst": [[[[1, 2, 1.6666667]]]]},
    ),
    Golden(
        "--pool --alg=avg_np mb1ic1ih1iw3oh1ow3kh1kw3sh1sw1ph0pw1",
        {"src": [[[[1, 2, 3]]]]},
        {"dst": [[[[1.5, 2, 2.5]]]]},
    ),
    Golden(  # both windows chose the same element
        "--pool --dir=BWD_D --alg=max mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"diff_dst": [[[[10, 7]]]], "workspace": [[[[2, 0]]]]},
        {"diff_src": [[[[0, 0, 17, 0, 0]]]]},
    ),
    Golden(  # base 1 + 3 / 3 * (squares of two neighbours and its own), to the power of -1
        "--lrn --alg=across ls3alpha3beta1k1mb1ic3ih1",
        {"src": [[[[1]], [[2]], [[0]]]]},
        {"dst": [[[[0.16666667]], [[0.33333333]], [[0]]]], "workspace": [[[[6]], [[6]], [[5]]]]},
    ),
    Golden(  # diff_dst / base - 2 * alpha * beta / n * src * sum(diff_dst * src / base**2)
        "--lrn --dir=BWD_D --alg=across ls1alpha1beta1k1mb1ic1ih1",
        {"src": [[[[2]]]], "diff_dst": [[[[25]]]], "workspace": [[[[5]]]]},
        {"diff_src": [[[[-3]]]]},
    ),
    Golden(
        "--softmax --alg=SOFTMAX --axis=1 1x3",
        {"src": [[0, 0, 0.6931472]]},
        {"dst": [[0.25, 0.25, 0.5]]},
    ),
    Golden(  # dst * (diff_dst - sum(dst * diff_dst))
        "--softmax --dir=BWD_D --alg=SOFTMAX --dtag=ab --axis=1 1x3",
        {"dst": [[0.25, 0.25, 0.5]], "diff_dst": [[4, 0, 2]]},
        {"diff_src": [[0.5, -0.5, 0]]},
    ),
    Golden(
        "--binary --alg=sub 2x2:1x2",
        {"src0": [[1, 2], [3, 4]], "src1": [[1, -1]]},
        {"dst": [[0, 3], [2, 5]]},
    ),
    Golden("--reduction --alg=sum 2x3:2x1", {"src": [[1, 2, 3], [4, 5, 6]]}, {"dst": [[6], [15]]}),
    Golden("--reduction --alg=max 2x3:1x3", {"src": [[1, 9, 3], [4, 5, 6]]}, {"dst": [[4, 9, 6]]}),
    Golden(
        "--sum --sdt=f32:f32 --scales=2:-1 1x3",
        {"src0": [[1, 2, 3]], "src1": [[1, 1, 10]]},
        {"dst": [[1, 3, -4]]},
    ),
    Golden(  # half to even, then saturated
        "--reorder --sdt=f32 --ddt=s8 6",
        {"src": [0.5, 1.5, -2.5, 200, -200, 3]},
        {"dst": [0, 2, -2, 127, -128, 3]},
    ),
    Golden(
        "--reorder --stag=ab --dtag=ba 2x3",
        {"src": [[1, 2, 3], [4, 5, 6]]},
        {"dst": [[1, 2, 3], [4, 5, 6]]},
    ),
    # Sums of f16 and bf16 are computed in f32 and rounded once, half to even: 2051 lies between
    # 2050 and 2052, 259 between 258 and 260.
    Golden(
        "--conv --dir=FWD_D --dt=f16 mb1ic4ih1oc1oh1kh1ph0",
        {"src": [[[[2048]], [[1]], [[1]], [[1]]]], "weights": [[[[1]], [[1]], [[1]], [[1]]]]},
        {"dst": [[[[2052]]]]},
    ),
    Golden(
        "--conv --dir=BWD_D --dt=bf16 mb1ic1ih1oc4oh1kh1ph0",
        {"diff_dst": [[[[256]], [[1]], [[1]], [[1]]]],
         "weights": [[[[1]]], [[[1]]], [[[1]]], [[[1]]]]},
        {"diff_src": [[[[260]]]]},
    ),
    Golden(
        "--conv --dir=BWD_WB --dt=f16 --bia-dt=f16 mb1ic1ih1iw4oc1oh1ow4kh1kw1ph0pw0",
        {"src": [[[[1, 1, 1, 1]]]], "diff_dst": [[[[2048, 1, 1, 1]]]]},
        {"diff_weights": [[[[2052]]]], "diff_bias": [2052]},
    ),
    Golden(
        "--ip --dir=FWD_B --dt=f16 mb1ic3oc1",
        {"src": [[2048, 1, 1]], "weights": [[1, 1, 1]], "bias": [1]},
        {"dst": [[2052]]},
    ),
    Golden(
        "--ip --dir=BWD_D --dt=f16 mb1ic1oc4",
        {"diff_dst": [[2048, 1, 1, 1]], "weights": [[1], [1], [1], [1]]},
        {"diff_src": [[2052]]},
    ),
    Golden(
        "--ip --dir=BWD_W --dt=bf16:f32:bf16 mb4ic1oc1",
        {"diff_dst": [[256], [1], [1], [1]], "src": [[1], [1], [1], [1]]},
        {"diff_weights": [[259]]},
    ),
    Golden("--matmul --dt=f16 1x4:4x1", {"src": [[2048, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[2052]]}),
    Golden("--matmul --dt=bf16 1x4:4x1", {"src": [[256, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[260]]}),
    Golden("--matmul --dt=bf16:bf16:f32 1x4:4x1", {"src": [[256, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[259]]}),
    Golden("--reduction --alg=sum --sdt=f16 --ddt=f16 1x4:1x1", {"src": [[2048, 1, 1, 1]]},
           {"dst": [[2052]]}),
    Golden(
        "--sum --sdt=f16:f16:f16:f16 --ddt=f16 --scales=1 1",
        {"src0": [2048], "src1": [1], "src2": [1], "src3": [1]},
        {"dst": [2052]},
    ),
    Golden(  # 1 + 3/256 lies between 1 + 2/256 and 1 + 4/256
        "--binary --alg=add --sdt=bf16:f32 --ddt=bf16 2:2",
        {"src0": [1, 1], "src1": [0.00390625, 0.01171875]},
        {"dst": [1, 1.015625]},
    ),
    Golden(  # too large for f16; its least number, which is a normal one of f32
        "--eltwise --alg=square --dt=f16 3",
        {"src": [300, -255.875, 0.000244140625]},
        {"dst": [np.inf, 65472, 5.9604644775390625e-08]},
    ),
    Golden(  # 2051 / 4, between 512.5 and 513
        "--pool --alg=avg_p --dt=f16 mb1ic1ih1iw4oh1ow1kh1kw4sh1sw1ph0pw0",
        {"src": [[[[2048, 1, 1, 1]]]]},
        {"dst": [[[[513]]]]},
    ),
    Golden(  # windows without a cell in src
        "--pool --alg=max --dt=f16 mb1ic1ih1iw1oh1ow3kh1kw1sh1sw1ph0pw1",
        {"src": [[[[5]]]]},
        {"dst": [[[[-65504, 5, -65504]]]], "workspace": [[[[0, 0, 0]]]]},
    ),
    Golden(  # two windows of a maximum
        "--pool --dir=BWD_D --alg=max --dt=bf16 mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"diff_dst": [[[[256, 3]]]], "workspace": [[[[2, 0]]]]},
        {"diff_src": [[[[0, 0, 260, 0, 0]]]]},
    ),
    Golden(  # the tensor kept for the gradient stays f32
        "--lrn --alg=across --dt=f16 ls1alpha1beta1k1mb1ic1ih1",
        {"src": [[[[64.0625]]]]},
        {"dst": [[[[0.015605927]]]], "workspace": [[[[4105.00390625]]]]},
    ),
)  # fmt: skip


def golden(trial: Trial) -> None:
    """The golden cases of the operation that the implementation accepts."""
    for case in GOLDEN:
        (problem,) = read(case.text)
        if type(problem.op) is type(trial.pd.op):
            _check(trial, case, problem)


def _check(trial: Trial, case: Golden, problem: Any) -> None:
    own = Case(problem, trial.case.engine)
    pd = own.sibling(trial, problem.attr)
    if pd is None:
        return
    inputs = {name: np.array(v, pd.descs[name].dtype) for name, v in case.inputs.items()}
    outputs = trial.execute(inputs, pd=pd)
    for name, values in case.expected.items():
        right = np.array(values, pd.descs[name].dtype)
        result = compare(outputs[name], right, ROUNDING * np.abs(right.astype(np.float64)))
        if not result.ok:
            raise CheckFailed(f"{case.text}: {name}: {result}")
