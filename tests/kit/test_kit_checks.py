"""What the kit's checks say: results as data, how often they run, and what judges the reference."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
from dnncore_reference import algorithms, convolution, matmul, softmax

import dnncore as dnn
from dnncore.comparison.compare import compare
from dnncore.problem import DRIVERS, read
from dnncore.testing import CHECKS, run_case
from dnncore.testing.checks import case, gradients, torch_oracle
from dnncore.testing.checks import table as checks
from dnncore.testing.checks.clock import Clock
from dnncore.testing.checks.golden import ROUNDING
from dnncore.testing.checks.guarded import Guarded

CONVOLUTION = "--conv --dir=FWD_B --stag=abx --dtag=abx mb1ic3ih5oc4oh5kh3ph1"

GOLDEN = [one for driver in DRIVERS.values() for one in driver.golden]
NO_SRC = {"diff_dst", "workspace"}  # of max pooling's gradient, for which torch wants src


def run(text, impl="reference:*", names=()):
    (problem,) = read(text)
    return run_case(problem, dnn.engine("cpu"), impl=impl, checks=names)


def failed(result):
    return {failure.check for failure in result.failures}


# -- results ---------------------------------------------------------------------------------------


def test_a_result_is_plain_data_that_tells_what_ran():
    result = run(CONVOLUTION, names=["integers", "guards"])
    assert (result.status, result.engine, result.executed) == ("passed", "cpu", 2)
    assert result.impl_names == ("reference:convolution",)
    assert read(result.problem) == read(CONVOLUTION)
    assert pickle.loads(pickle.dumps(result)) == result


def test_seconds_divide_the_time_of_the_case():
    (problem,) = read(CONVOLUTION)
    start = time.perf_counter()
    seconds = run_case(problem, dnn.engine("cpu")).seconds
    assert set(seconds) == {"reference", "building", "running"}
    assert 0.5 < sum(seconds.values()) / (time.perf_counter() - start) <= 1.0


def test_time_counts_for_the_innermost_block_alone(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    with clock("building"), clock("reference"):
        pass
    assert clock.stop() == {"running": 1.0 + 16.0, "building": 2.0 + 8.0, "reference": 4.0}


@pytest.mark.parametrize(("skipped", "level"), [((), "right"), (("forks",), "right"),
                                                (("integers", "random"), "run")])  # fmt: skip
def test_nothing_is_right_without_checks_of_values(skipped, level):
    (problem,) = read("--eltwise 2x3")
    result = run_case(problem, dnn.engine("cpu"), impl="reference:*", skip=skipped)
    assert (result.status, result.level) == ("passed", level)


def test_only_the_implementations_asked_for_are_tested():
    both = run("--matmul 3x4:4x5", impl="reference:*,cpu_numba:gemm*", names=["integers"])
    one = run("--matmul --impl=reference:* 3x4:4x5", impl="", names=["integers"])
    none = run("--matmul --skip-impl=reference:* 3x4:4x5", names=["integers"])
    assert "reference:matmul" in both.impl_names
    assert one.impl_names == ("reference:matmul",)
    assert none.status == "unsupported"


def test_an_unsupported_problem_tells_why():
    text = "--conv --dir=FWD_B --stag=abx --dtag=abx mb1ic3ih5oc4oh5kh3ph1"
    result = run(text, impl="cpu_numba:depthwise:*")
    assert result.status == "unsupported"
    assert any("one group" in refusal for refusal in result.refusals)
    assert "one group" in str(result)


def test_dear_checks_run_once_per_operation_and_implementation_unless_named(monkeypatch):
    monkeypatch.setattr(checks, "_made", set())
    texts = [f"--lrn --alg=WITHIN mb1_ic{n}ih3_ls3" for n in range(1, 9)]
    first, *others = [run(text).executed for text in texts]
    dear = sum(check.every > 1 for check in CHECKS.values())
    assert first == sum(not check.least_bytes for check in CHECKS.values())
    assert dear > 0
    assert all(first - dear <= number < first for number in others)
    assert run(texts[-1], names=CHECKS).executed == len(CHECKS)


def test_every_check_says_what_holds():
    assert all(check.function.__doc__ for check in CHECKS.values())
    assert all(name == check.name for name, check in CHECKS.items())


# -- guarded memories ------------------------------------------------------------------------------


def test_every_byte_between_the_elements_of_a_strided_tensor_is_watched(cpu):
    desc = dnn.MemoryDesc((2, 3), "f32", strides=(8, 2))
    box = Guarded(cpu, desc, np.ones((2, 3)))
    assert box.result()[1:] == ("", "")
    box.memory.buffer[4] = 0  # the first gap
    _, outside, padding = box.result()
    assert (outside, padding) == (
        "1 byte changed, from byte 4 to byte 4; its own are bytes 0 to 51",
        "",
    )


# -- golden cases ----------------------------------------------------------------------------------


def test_every_operation_has_a_golden_case():
    exported = {getattr(dnn, name) for name in dnn.__all__}
    kinds = {c for c in exported if isinstance(c, type) and issubclass(c, dnn.Operation)}
    assert {type(read(one.text)[0].op) for one in GOLDEN} == kinds - {dnn.Operation}


@pytest.mark.peer
@pytest.mark.parametrize("one", [g for g in GOLDEN if g.inputs.keys() != NO_SRC], ids=str)
def test_golden_answers_are_torch_s(one):
    (problem,) = read(one.text)
    inputs = {name: np.array(values, np.float32) for name, values in one.inputs.items()}
    got = torch_oracle.torch_outputs(problem.op, problem.attr, inputs)
    for name in one.outputs.keys() & got.keys():
        expected = np.array(one.outputs[name], got[name].dtype)
        bound = ROUNDING * np.abs(expected.astype(np.float64))
        assert compare(got[name], expected, bound).ok, name


# -- workspaces ------------------------------------------------------------------------------------

LRN = "--lrn --dir=BWD_D --alg={} mb2ic9ih4iw4ls3alpha0.5beta{}k1"


@pytest.mark.parametrize("beta", [0.75, -0.6, 5])
@pytest.mark.parametrize("algorithm", ["ACROSS", "WITHIN"])
@pytest.mark.parametrize(("relative", "fails"), [(2.0**-22, set()), (2.0**-12, {"workspaces"})])
def test_a_gradient_s_bound_allows_the_rounding_of_its_workspace(
    monkeypatch, relative, fails, algorithm, beta
):
    right = gradients._workspace

    def off(*args):
        return right(*args) * np.float32(1 + relative)

    monkeypatch.setattr(gradients, "_workspace", off)
    assert failed(run(LRN.format(algorithm, beta), names=["workspaces"])) == fails


# -- a wrong reference -----------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """A reference that forgets what it computed before."""
    case.make_round.cache_clear()
    yield monkeypatch
    case.make_round.cache_clear()


def spoil(monkeypatch, definition, change):
    """Let a definition's first output be `change(output)`."""
    formula = definition.formula

    def spoilt(op, *tensors, **named):
        outputs = formula(op, *tensors, **named)
        name = next(iter(outputs))
        return {**outputs, name: change(outputs[name])}

    monkeypatch.setattr(definition, "formula", spoilt)


@pytest.mark.parametrize(
    ("definition", "change", "text", "also"),
    [
        (convolution.BACKWARD_DATA[0], lambda y: 2 * y, "--conv --dir=BWD_D", {"adjoint"}),
        (convolution.BACKWARD_WEIGHTS[0], lambda y: -y, "--conv --dir=BWD_W", {"adjoint"}),
        (convolution.FORWARD[0], lambda y: y * abs(y), "--conv --dir=FWD_D", {"linear"}),
        (matmul.TABLE[0], lambda y: y * abs(y), "--matmul", {"linear"}),
        (softmax.BACKWARD[0], lambda y: y + 1, "--softmax --dir=BWD_D --dtag=abx", {"slope"}),
        (softmax.FORWARD[0], lambda y: 1.01 * y, "--softmax", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reference_is_judged_without_itself_and_without_torch(
    alone, definition, change, text, also
):
    shape = {"--conv": "mb2ic3ih5oc4oh5kh3ph1", "--matmul": "3x4:4x5", "--softmax": "3x5"}
    text = f"{text} {shape[text.split()[0]]}"
    algebra = ["integers", "random", "golden", "adjoint", "linear", "slope"]
    assert not failed(run(text, names=algebra))
    spoil(alone, definition, change)
    case.make_round.cache_clear()
    assert failed(run(text, names=algebra)) == {"golden"} | also


@pytest.mark.peer
def test_the_reference_is_judged_by_torch_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(algorithms.ELTWISE, "mish", lambda s, _a, _b: s)
    case.make_round.cache_clear()
    result = run("--eltwise --alg=mish 3x5", names=["integers", "random"])
    case.make_round.cache_clear()
    assert failed(result) == {"integers", "random"}


def test_a_dynamic_primitive_with_a_depthwise_post_op_keeps_the_dims_of_dst():
    text = "--conv --dir=FWD_D --attr-post-ops=dw:k3s2p1"
    found = [
        run_case(problem, dnn.engine("cpu"), impl="reference:*", checks=("bound",))
        for batch in range(1, 9)  # one problem in four is executed by a dynamic primitive
        for problem in read(f"{text} mb{batch}ic3oc4_ih7kh1")
    ]
    assert {result.status for result in found} == {"passed"}, found
