"""The reference agrees with definitions that share no code with it, and with values made by hand.

`tests/support/definitions.py` computes each operation by plain loops, small problems in fractions.
The values below were computed by hand. They check the definitions, too.
"""

from __future__ import annotations

import itertools

import definitions
import numpy as np
import pytest
from checks import REFERENCE, check, reference_outputs
from problems import KINDS, inputs_of, problems, retyped

import dnncore as dnn
from dnncore.comparison.compare import consistent_inputs
from dnncore.comparison.fills import fill_integers, fill_normal
from dnncore.problem import DRIVERS, driver_of, read
from dnncore.testing.problems.random_problems import draw

PLAIN = dnn.Attributes()
E = np.e
ROW = {"src0": [1, 2, 3], "src1": [2, 2, 2]}
GATES = [(1, 0.8413447), (-1, -0.1586553), (0, 0)]


def image(*values):
    """A tensor of one image with one channel and one row."""
    return [[[[*values]]]]


def binary(algorithm, *dst):
    return f"--binary --alg={algorithm} 3:3", ROW, {"dst": dst}


def eltwise(words, *pairs):
    src, dst = zip(*pairs, strict=True)
    return f"--eltwise --alg={words} {len(pairs)}", {"src": src}, {"dst": dst}


def slope(words, *pairs):
    src, slopes = zip(*pairs, strict=True)
    inputs = {"src": src, "diff_dst": [2] * len(src)}
    text = f"--eltwise --dir=BWD_D --alg={words} {len(pairs)}"
    return text, inputs, {"diff_src": [2 * s for s in slopes]}


def reduction(words, src, dst):
    return f"--reduction --alg={words} 1x{len(src)}:1x1", {"src": [src]}, {"dst": [[dst]]}


# Along w: stride 2, dilation 1 and padding 1. Output y sees through tap t the cell 2 y - 1 + 2 t.
WINDOW = "mb1ic1oc1_ih1oh1kh1ph0_iw5ow3kw2sw2dw1pw1"
# Stride 1, dilation 1 and padding 1: output y sees the cells y - 1 and y + 1.
POOLED = "mb1ic1_ih1oh1kh1ph0_iw5ow5kw2sw1dw1pw1"
THREE = "mb1ic1_ih1oh1kh1ph0_iw3ow3kw3sw1pw1"
BASES = [[[[6]], [[15]], [[14]]]]  # 1 + sums of squares of 1, 2, 3 next to each other

GOLDEN = [
    (f"--conv --dir=FWD_B {WINDOW}",
     {"src": image(1, 2, 3, 4, 5), "weights": image(10, 1), "bias": [100]},
     {"dst": image(102, 124, 140)}),
    (f"--conv --dir=BWD_D {WINDOW}", {"diff_dst": image(1, 2, 3), "weights": image(10, 1)},
     {"diff_src": image(0, 21, 0, 32, 0)}),
    (f"--conv --dir=BWD_WB {WINDOW}",
     {"src": image(1, 2, 3, 4, 5), "diff_dst": image(1, 2, 3)},
     {"diff_weights": image(16, 10), "diff_bias": [6]}),
    ("--conv --dir=FWD_D g2mb1ic2ih1oc2oh1kh1ph0",
     {"src": [[[[2]], [[3]]]], "weights": [[[[[5]]]], [[[[7]]]]]}, {"dst": [[[[10]], [[21]]]]}),
    ("--conv --dir=BWD_D g2mb1ic2ih1oc2oh1kh1ph0",
     {"diff_dst": [[[[2]], [[3]]]], "weights": [[[[[5]]]], [[[[7]]]]]},
     {"diff_src": [[[[10]], [[21]]]]}),
    ("--conv --dir=BWD_W g2mb1ic2ih1oc2oh1kh1ph0",
     {"src": [[[[2]], [[3]]]], "diff_dst": [[[[5]], [[7]]]]},
     {"diff_weights": [[[[[10]]]], [[[[21]]]]]}),
    ("--matmul 2x1x2:1x2x1", {"src": [[[1, 2]], [[3, 4]]], "weights": [[[10], [1]]]},
     {"dst": [[[12]], [[34]]]}),
    ("--matmul --attr-post-ops=linear:2:1+sum:0.5 1x2:2x1",
     {"src": [[1, 2]], "weights": [[1], [1]], "dst": [[4]]}, {"dst": [[9]]}),
    (f"--pool --alg=max {POOLED}", {"src": image(1, 2, 4, 8, 16)},
     {"dst": image(2, 4, 8, 16, 8), "workspace": image(1, 1, 1, 1, 0)}),
    (f"--pool --alg=avg_p {POOLED}", {"src": image(1, 2, 4, 8, 16)},
     {"dst": image(1, 2.5, 5, 10, 4)}),
    (f"--pool --alg=avg_np {POOLED}", {"src": image(1, 2, 4, 8, 16)},
     {"dst": image(2, 2.5, 5, 10, 8)}),
    (f"--pool --dir=BWD_D --alg=max {THREE}",
     {"diff_dst": image(3, 6, 9), "workspace": image(2, 2, 0)}, {"diff_src": image(0, 12, 6)}),
    (f"--pool --dir=BWD_D --alg=avg_p {THREE}", {"diff_dst": image(3, 6, 9)},
     {"diff_src": image(3, 6, 5)}),
    (f"--pool --dir=BWD_D --alg=avg_np {THREE}", {"diff_dst": image(3, 6, 9)},
     {"diff_src": image(3.5, 8, 6.5)}),
    ("--lrn --alg=within ls3alpha9beta1k1mb1ic1ih1iw3", {"src": image(1, 2, 3)},
     {"dst": image(1 / 6, 2 / 15, 3 / 14), "workspace": image(6, 15, 14)}),
    ("--lrn --alg=across ls3alpha3beta2k1mb1ic3ih1", {"src": [[[[1]], [[2]], [[3]]]]},
     {"dst": [[[[1 / 36]], [[2 / 225]], [[3 / 196]]]], "workspace": BASES}),
    ("--lrn --dir=BWD_D --alg=across ls3alpha3beta1k1mb1ic3ih1",
     {"src": [[[[1]], [[2]], [[3]]]], "workspace": BASES,
      "diff_dst": [[[[36]], [[225]], [[196]]]]},
     {"diff_src": [[[[0]], [[-9]], [[-16]]]]}),
    ("--lrn --dir=BWD_D --alg=within ls3alpha9beta1k1mb1ic1ih1iw3",
     {"src": image(1, 2, 3), "workspace": image(6, 15, 14), "diff_dst": image(36, 225, 196)},
     {"diff_src": image(0, -9, -16)}),
    ("--bnorm --flags=CHR mb2ic1eps3", {"src": [[1], [3]], "scale": [4], "shift": [1]},
     {"dst": [[0], [3]], "mean": [2], "variance": [1], "workspace": [[0], [1]]}),
    ("--bnorm --dir=BWD_DW --flags=GC mb1ic1_iw2eps3",
     {"src": [[[1, 3]]], "diff_dst": [[[1, 3]]], "mean": [0], "variance": [1], "scale": [4]},
     {"diff_src": [[[2, 6]]], "diff_scale": [5]}),
    ("--lnorm --flags=M --eps=4 1x2", {"src": [[1, 3]]}, {"dst": [[1 / 3, 1]], "variance": [5]}),
    ("--lnorm --dir=BWD_D --flags=M --eps=4 1x2",
     {"src": [[1, 3]], "diff_dst": [[9, 0]], "variance": [5]},
     {"diff_src": [[3 - 1 / 6, -1 / 2]]}),
    ("--gnorm --flags=C g2mb1ic4_iw1eps3",
     {"src": [[[1], [3], [5], [5]]], "scale": [2, 4, 1, 1]},
     {"dst": [[[-1], [2], [0], [0]]], "mean": [[2, 5]], "variance": [[1, 0]]}),
    ("--gnorm --dir=BWD_DW --flags=CH g1mb1ic2_iw1eps3",
     {"src": [[[1], [3]]], "diff_dst": [[[1], [6]]], "mean": [[2]], "variance": [[1]],
      "scale": [4, 2]},
     {"diff_src": [[[-1.5], [1.5]]], "diff_scale": [-0.5, 3], "diff_shift": [1, 6]}),
    ("--prelu 1x3:1x1", {"src": [[-2, 0, 3]], "weights": [[0.25]]}, {"dst": [[-0.5, 0, 3]]}),
    ("--prelu --dir=BWD_DW 1x3:1x1",
     {"src": [[-2, 1, -3]], "weights": [[0.25]], "diff_dst": [[4, 5, 8]]},
     {"diff_src": [[1, 5, 2]], "diff_weights": [[-32]]}),
    ("--softmax --alg=SOFTMAX --axis=0 2x1", {"src": [[0], [np.log(3)]]},
     {"dst": [[0.25], [0.75]]}),
    ("--softmax --axis=1 --lse=abx 1x2", {"src": [[0, np.log(3)]]},
     {"dst": [[0.25, 0.75]], "lse": [[np.log(4)]]}),
    ("--softmax --alg=LOGSOFTMAX --axis=1 1x2", {"src": [[0, np.log(3)]]},
     {"dst": [[np.log(0.25), np.log(0.75)]]}),
    ("--softmax --dir=BWD_D --alg=SOFTMAX --dtag=ab --axis=1 1x2",
     {"dst": [[0.25, 0.75]], "diff_dst": [[4, 8]]}, {"diff_src": [[-0.75, 0.75]]}),
    ("--softmax --dir=BWD_D --alg=LOGSOFTMAX --dtag=ab --axis=1 1x2",
     {"dst": [[np.log(0.25), np.log(0.75)]], "diff_dst": [[4, 8]]}, {"diff_src": [[1, -1]]}),
    ("--sdpa --scale=1 1x1x1x1:1x1x1x2:1x1x2x1",
     {"queries": image(1), "keys": [[[[0], [np.log(3)]]]], "values": [[[[4], [8]]]]},
     {"dst": image(7), "workspace": image(np.log(4))}),
    ("--sdpa --mask_type=buffer+causal_bottom_right --mask_bits=8 1x1x2x1:1x1x1x2:1x1x2x1",
     {"queries": [[[[0], [0]]]], "keys": [[[[1], [1]]]], "values": [[[[4], [8]]]],
      "mask": image(0, np.log(3))},
     {"dst": [[[[4], [7]]]], "workspace": [[[[0], [np.log(4)]]]]}),
    ("--sdpa --dir=BWD_D --scale=2 1x1x1x1:1x1x1x2:1x1x2x1",
     {"queries": image(3), "keys": [[[[0], [0]]]], "values": [[[[4], [8]]]], "dst": image(6),
      "diff_dst": image(2), "workspace": image(np.log(2))},
     {"diff_queries": image(0), "diff_keys": [[[[-12], [12]]]], "diff_values": [[[[1], [1]]]]}),
    reduction("max", [1, 3, 2], 3),
    reduction("min", [2, 1, 3], 1),
    reduction("sum", [1, 2, 4], 7),
    reduction("mul", [2, 3, 4], 24),
    reduction("mean", [1, 2, 6], 3),
    reduction("norm_lp_sum --p=2 --eps=11", [3, -4], 6),
    reduction("norm_lp_max --p=2 --eps=36", [3, -4], 6),
    reduction("norm_lp_power_p_sum --p=2 --eps=11", [3, -4], 36),
    reduction("norm_lp_power_p_max --p=2 --eps=36", [3, -4], 36),
    reduction("norm_lp_power_p_max --p=3", [-1, 2], 9),
    binary("add", 3, 4, 5),
    binary("sub", -1, 0, 1),
    binary("mul", 2, 4, 6),
    binary("div", 0.5, 1, 1.5),
    binary("max", 2, 2, 3),
    binary("min", 1, 2, 2),
    binary("ge", 0, 1, 1),
    binary("gt", 0, 0, 1),
    binary("le", 1, 1, 0),
    binary("lt", 1, 0, 0),
    binary("eq", 0, 1, 0),
    binary("ne", 1, 0, 1),
    ("--binary --alg=select 3:3:3", {**ROW, "src2": [0, 1, -1]}, {"dst": [2, 2, 3]}),
    ("--sum --sdt=f32:f32:f32 --scales=2:-1:0.5 2",
     {"src0": [1, 2], "src1": [3, 4], "src2": [10, 20]}, {"dst": [4, 10]}),
    ("--concat --axis=1 2x1:2x0:2x2", {"src0": [[1], [4]], "src1": [[], []],
     "src2": [[2, 3], [5, 6]]}, {"dst": [[1, 2, 3], [4, 5, 6]]}),
    ("--shuffle --axis=0 --group=3 6", {"src": [1, 2, 3, 4, 5, 6]}, {"dst": [1, 4, 2, 5, 3, 6]}),
    ("--shuffle --dir=BWD_D --axis=0 --group=3 6", {"diff_dst": [1, 4, 2, 5, 3, 6]},
     {"diff_src": [1, 2, 3, 4, 5, 6]}),
    ("--resampling --alg=nearest mb1ic1iw4ow2", {"src": [[[1, 2, 3, 4]]]}, {"dst": [[[2, 4]]]}),
    ("--resampling --alg=linear mb1ic1iw2ow4", {"src": [[[0, 8]]]}, {"dst": [[[0, 2, 6, 8]]]}),
    ("--resampling --dir=BWD_D --alg=nearest mb1ic1iw4ow2", {"diff_dst": [[[5, 6]]]},
     {"diff_src": [[[0, 5, 0, 6]]]}),
    ("--resampling --dir=BWD_D --alg=linear mb1ic1iw2ow4", {"diff_dst": [[[1, 4, 8, 2]]]},
     {"diff_src": [[[6, 9]]]}),
    ("--reorder --sdt=f32 --ddt=u8 6", {"src": [-1, 0.5, 1.5, 2.5, 254.5, 300]},
     {"dst": [0, 0, 2, 2, 254, 255]}),
    ("--reorder --sdt=f32 --ddt=bf16 3", {"src": [257, 259, 1.5]}, {"dst": [256, 260, 1.5]}),
    eltwise("abs", (-2, 2), (3, 3)),
    eltwise("clip --alpha=-1 --beta=2", (-3, -1), (1, 1), (5, 2)),
    eltwise("elu --alpha=2", (-1, 2 / E - 2), (3, 3)),
    eltwise("exp", (1, E), (0, 1)),
    eltwise("gelu_erf", *GATES),
    eltwise("gelu_tanh", (1, 0.8411920), (-1, -0.1588080)),
    eltwise("hardsigmoid --alpha=0.25 --beta=0.5", (1, 0.75), (-4, 0), (4, 1)),
    eltwise("hardswish --alpha=0.25 --beta=0.5", (1, 0.75), (-4, 0), (4, 4)),
    eltwise("linear --alpha=2 --beta=3", (5, 13)),
    eltwise("log", (E, 1), (1, 0)),
    eltwise("logistic", (0, 0.5), (1, 0.7310586)),
    eltwise("mish", (1, 0.8650984), (-1, -0.3034015)),
    eltwise("pow --alpha=2 --beta=3", (2, 16)),
    eltwise("round", (0.5, 0), (1.5, 2), (-2.5, -2)),
    eltwise("soft_relu --alpha=1", (0, 0.6931472), (1, 1.3132617)),
    eltwise("soft_relu --alpha=2", (0, 0.3465736)),
    eltwise("sqrt", (4, 2), (9, 3)),
    eltwise("square", (-3, 9)),
    eltwise("swish --alpha=1", (1, 0.7310586), (-1, -0.2689414)),
    eltwise("tanh", (1, 0.7615942), (-1, -0.7615942)),
    slope("abs", (-2, -1), (0, 0), (3, 1)),
    slope("clip --alpha=-1 --beta=2", (-1, 0), (0, 1), (2, 1), (3, 0)),
    slope("clip_v2 --alpha=-1 --beta=2", (-1, 0), (0, 1), (2, 0)),
    slope("elu --alpha=2", (-1, 2 / E), (3, 1)),
    slope("exp", (1, E)),
    slope("gelu_erf", (0, 0.5), (1, 1.0833155)),
    slope("gelu_tanh", (0, 0.5), (1, 1.0829641)),
    slope("hardsigmoid --alpha=0.25 --beta=0.5", (1, 0.25), (-4, 0), (4, 0)),
    slope("hardswish --alpha=0.25 --beta=0.5", (1, 1), (-4, 0), (4, 1)),
    slope("linear --alpha=2 --beta=3", (5, 2)),
    slope("log", (4, 0.25)),
    slope("logistic", (0, 0.25), (1, 0.1966119)),
    slope("mish", (0, 0.6), (1, 1.0490363)),
    slope("pow --alpha=2 --beta=3", (2, 24)),
    slope("relu --alpha=0.25", (-1, 0.25), (0, 0.25), (1, 1)),
    slope("soft_relu --alpha=2", (0, 0.5), (1, 0.8807971)),
    slope("sqrt", (4, 0.25)),
    slope("square", (-3, -6)),
    slope("swish --alpha=1", (0, 0.5), (1, 0.9276705)),
    slope("tanh", (0, 1), (1, 0.4199743)),
]  # fmt: skip


def the(text):
    (problem,) = read(text)
    return problem


def arrays(problem, values):
    descs = {a.name: desc for a, desc in problem.op.tensors(problem.op.workspace_desc())}
    return {name: np.array(v, descs[name].dtype) for name, v in values.items()}


@pytest.mark.parametrize(("text", "inputs", "outputs"), GOLDEN, ids=[text for text, *_ in GOLDEN])
def test_values_made_by_hand(text, inputs, outputs):
    problem = the(text)
    given, right = arrays(problem, inputs), arrays(problem, outputs)
    found = reference_outputs(problem.op, given, post_ops=problem.attr.post_ops)
    by_definition = definitions.outputs(problem.op, problem.attr, given)
    for name, values in right.items():
        for got in (found[name], by_definition[name]):
            assert got.dtype == values.dtype
            np.testing.assert_allclose(got.astype(float), values.astype(float), 2e-7, 1e-7)


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_golden_cases_of_the_kit_follow_from_the_definitions(driver):
    for case in DRIVERS[driver].golden:
        problem = the(case.text)
        found = definitions.outputs(problem.op, problem.attr, arrays(problem, case.inputs))
        for name, values in arrays(problem, case.outputs).items():
            np.testing.assert_allclose(found[name].astype(float), values.astype(float), 1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_reference_agrees_on_random_problems(kind):
    """Up to one rounding of the result."""
    for place, op in enumerate(problems(kind)):
        integers = place % 2 == 0
        inputs = consistent_inputs(op, PLAIN, fill_integers) if integers else inputs_of(op)
        check(REFERENCE, op, inputs=inputs)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_reference_agrees_in_16_bits(kind, half):
    for op in problems(kind)[:8]:
        half_op = retyped(op, half)
        check(REFERENCE, half_op, inputs=inputs_of(half_op))


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_reference_agrees_with_any_attributes(driver):
    drawn = [
        problem
        for problem in draw(60, driver, seed=1, types=("f32", "f16", "bf16"), most_bytes=1000)
        if problem.attr.post_ops
    ]
    for problem in itertools.islice(drawn, 20):
        attr = dnn.Attributes(post_ops=problem.attr.post_ops)
        inputs = consistent_inputs(problem.op, attr, fill_integers)
        check(REFERENCE, problem.op, attr, inputs=inputs)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_wrong_reference_is_noticed(monkeypatch, kind):
    """Each formula is replaced by 3 y + 1. The definitions and the golden cases notice it."""
    from dnncore_reference.definition import Definition

    run = Definition._run

    def wrong(self, op, *rest):
        right = self.formula
        monkeypatch.setattr(self, "formula", lambda *a, **k: _changed(right(*a, **k)))
        try:
            run(self, op, *rest)
        finally:
            monkeypatch.setattr(self, "formula", right)

    op = next(op for op in problems(kind) if op.result.nelems)
    dnn.cache.primitives.clear()
    monkeypatch.setattr(Definition, "_run", wrong)
    with pytest.raises(AssertionError, match=op.result_name):
        check(REFERENCE, op, inputs=consistent_inputs(op, PLAIN, fill_normal))
    noticed = 0
    for case in driver_of(kind).golden:
        problem = the(case.text)
        if type(problem.op) is kind:
            found = reference_outputs(problem.op, arrays(problem, case.inputs))
            for name, values in arrays(problem, case.outputs).items():
                noticed += not np.allclose(found[name].astype(float), values.astype(float))
    assert noticed
    dnn.cache.primitives.clear()


def _changed(outputs):
    return {name: 3 * values + 1 for name, values in outputs.items()}


def test_small_problems_are_computed_in_fractions():
    """In f64 the small term would vanish; the fractions keep it."""
    problem = the("--matmul 1x3:3x1")
    big = 2.0**60
    inputs = {"src": [[big, 1, -big]], "weights": [[1], [2.0**-20], [1]]}
    found = definitions.outputs(problem.op, PLAIN, arrays(problem, inputs))["dst"]
    assert found.item() == 2.0**-20
