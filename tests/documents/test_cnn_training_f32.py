"""The example of AlexNet's first layers: right on every target, and reorders only where needed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from checks import Target
from click.testing import CliRunner

import dnncore as dnn
from benchmarks.contestants.onednn import Peer
from examples import cnn_training_f32 as example

BATCH = 2
PRIMITIVES = [
    "convolution", "relu", "lrn", "pooling",
    "pooling backward", "lrn backward", "relu backward", "convolution backward weights",
]  # fmt: skip


def new_net(target: Target) -> example.Net:
    wishes = {"impl": target.impl or None, "skip_impl": target.skip_impl or None}
    return example.Net(target.engine, BATCH, **wishes)


@cache
def stepped_net(target: Target) -> example.Net:
    """The target's net after one iteration."""
    net = new_net(target)
    stream = net.engine.stream()
    net.step(stream)
    stream.wait()
    return net


@pytest.fixture
def net(target: Target) -> example.Net:
    return stepped_net(target)


@pytest.fixture(scope="module")
def reference() -> example.Net:
    return stepped_net(Target("reference", "cpu", impl="reference:*", role="reference"))


def test_the_data_counts_up_to_the_period(net):
    for memory in (net.src, net.weights, net.bias, net.diff_dst):
        values = memory.numpy().reshape(-1)
        assert np.array_equal(values, np.arange(values.size) % 1637)
    assert net.src.desc == dnn.MemoryDesc((BATCH, 3, 227, 227), "f32", "nchw")
    assert net.weights.desc == dnn.MemoryDesc((96, 3, 11, 11), "f32", "oihw")


def test_the_primitives_run_in_their_order(net):
    names = [step.name for step in net.steps if not step.is_reorder]
    assert names == PRIMITIVES
    assert [step.name for step in net.forward_steps if not step.is_reorder] == names[:4]


def test_each_primitive_agrees_with_the_reference(net):
    wrong = [
        f"{step.name}: {step.pd.impl_name}: {found}"
        for step, found in zip(net.steps, example.errors(net), strict=True)
        if not found.ok
    ]
    assert not wrong


# If cells are equal up to rounding, a window may have another maximum, which moves its gradient.
@pytest.mark.parametrize(
    ("name", "bound"), [("dst", 1e-6), ("diff_weights", 1e-3), ("diff_bias", 1e-5)]
)
def test_the_results_agree_with_the_reference(net, reference, name, bound):
    got, expected = (getattr(n, name).numpy() for n in (net, reference))
    assert dnn.compare(got, expected).error <= bound


def test_an_iteration_repeats_itself(net):
    before = {name: np.array(getattr(net, name).numpy()) for name in ("dst", "diff_weights")}
    stream = net.engine.stream()
    net.step(stream)
    stream.wait()
    for name, values in before.items():
        assert np.array_equal(getattr(net, name).numpy(), values)


def test_backward_reads_the_workspaces_of_forward(net):
    steps = {step.name: step for step in net.steps}
    for forward, backward in zip(PRIMITIVES[:4], reversed(PRIMITIVES[4:]), strict=True):
        assert steps[backward].pd.hint is steps[forward].pd
    for name in ("lrn", "pooling"):
        assert steps[f"{name} backward"]["workspace"] is steps[name]["workspace"]
    assert steps["lrn backward"]["src"] is steps["relu"]["dst"]
    assert steps["relu backward"]["src"] is steps["convolution"]["dst"]


# -- reorders -------------------------------------------------------------------------------------


def may_need_reorders(net):
    """(primitive, argument) -> memory, for primitives that select formats."""
    steps = {step.name: step for step in net.steps}
    return {
        ("convolution", "src"): net.src,
        ("convolution", "weights"): net.weights,
        ("pooling", "dst"): net.dst,
        ("pooling backward", "diff_dst"): net.diff_dst,
        ("convolution backward weights", "src"): steps["convolution"]["src"],
        ("convolution backward weights", "diff_dst"): steps["relu backward"]["diff_src"],
        ("convolution backward weights", "diff_weights"): net.diff_weights,
    }


def check_reorders(net):
    """A primitive has a reorder exactly if it selected another format."""
    steps = {step.name: step for step in net.steps}
    expected = []
    for (primitive, argument), given in may_need_reorders(net).items():
        step, name = steps[primitive], f"reorder {argument} of {primitive}"
        used = step[argument]
        assert (used is given) == (used.desc == given.desc)
        if used is not given:
            is_output = argument in ("dst", "diff_weights")
            ends = {"src": used, "dst": given} if is_output else {"src": given, "dst": used}
            assert steps[name].memories == ends
            assert (net.steps.index(step) < net.steps.index(steps[name])) == is_output
            expected.append(name)
    assert [step.name for step in net.steps if step.is_reorder] == expected


def test_reorders_are_where_formats_differ(net):
    check_reorders(net)


@pytest.mark.parametrize(("tag", "count"), [("abcd", 0), ("acdb", 5)])
def test_formats_determine_the_number_of_reorders(monkeypatch, tag, count):
    """With fixed formats, the number of reorders is known."""
    monkeypatch.setattr(example, "_any", lambda *dims: dnn.MemoryDesc(dims, "f32", tag))
    net = new_net(Target("reference", "cpu", impl="reference:*"))
    assert sum(step.is_reorder for step in net.steps) == count
    check_reorders(net)


# -- the command line -----------------------------------------------------------------------------


def invoke(target, *options):
    if target.role:
        pytest.skip("the command line chooses the best implementations")
    command = ["--engine", target.engine_name, "--batch", "2", "--iterations", "1", *options]
    return CliRunner().invoke(example.main, command)


def test_the_command_compares(target):
    result = invoke(target, "--compare", "reference")
    assert result.exit_code == 0, result.output
    assert "all agree" in result.output
    for step in stepped_net(target).steps:
        assert step.pd.impl_name in result.output


def test_a_wrong_primitive_sets_the_exit_status(monkeypatch, target):
    right = example.errors

    def one_wrong(net):
        found = right(net)
        return [replace(found[0], ok=False), *found[1:]]

    monkeypatch.setattr(example, "errors", one_wrong)
    result = invoke(target, "--compare", "reference")
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_the_command_reports_times_alone(target):
    result = invoke(target)
    assert result.exit_code == 0, result.output
    assert "the whole iteration" in result.output
    assert "worst at" not in result.output


# -- oneDNN ---------------------------------------------------------------------------------------


@pytest.mark.peer
@pytest.mark.parametrize("name", ["convolution", "convolution backward weights"])
def test_agrees_with_onednn(net, name):
    (step,) = (step for step in net.steps if step.name == name)
    arguments = dict(step.pd.op.tensors())
    any_format = {a.name: d.with_format("any") for a, d in arguments.items() if d.ndims > 1}
    inputs = {a.name: step[a.name].numpy() for a in arguments if a.direction == "in"}
    outputs = Peer().outputs(step.pd.op.with_descs(**any_format), step.pd.attr, inputs)
    for output, values in outputs.items():
        assert dnn.compare(step[output].numpy(), values).error <= 1e-5
