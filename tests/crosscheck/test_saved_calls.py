"""Saved calls: repeated from the command line and by the kit, and minimized."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import toy
from click.testing import CliRunner
from planted_layers import FAULTS, Network, planted

import dnncore as dnn
from dnncore.cli import main
from dnncore.crosschecking.minimizing import is_wrong, minimized
from dnncore.crosschecking.repeat import wrong_outputs
from dnncore.crosschecking.saved import SavedCall, load
from dnncore.problem import read
from dnncore.testing.saved_calls import outcome_of

DIVERGENCES = Path(__file__).parents[1] / "data" / "divergences"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.output


def saved(folder, operation=dnn.ConvolutionForward, fault="last_element", where=None, engine="cpu"):
    """The saved call of a fault in the network, with the fault's context already entered."""
    network = Network(dnn.engine(engine))
    with dnn.crosscheck("reference", folder=folder, mode="collect") as report:
        stream = network.engine.stream()
        for launch in [*network.forward, *network.backward]:
            launch.primitive.execute(stream, **launch.memories)
    return report.divergences[0].path


def conv15(op):
    return op.dst.dims[1] == 15


@pytest.fixture
def fault():
    with planted("cpu", dnn.ConvolutionForward, conv15, FAULTS["last_element"]):
        yield


# -- files -----------------------------------------------------------------------------------------


def test_a_file_keeps_all_types(tmp_path):
    inputs = {
        "src": np.arange(6, dtype=np.float32).reshape(2, 3),
        "halves": np.arange(4).astype(ml_dtypes.bfloat16),
        "workspace": np.arange(4, dtype=np.uint8),
    }
    call = SavedCall("--eltwise 2x3", "cpu", "cpu", "cpu_numba:*", "reference", inputs)
    call.save(tmp_path / "folder" / "call.npz")
    found = load(tmp_path / "folder" / "call.npz")
    assert replace(found, inputs={}) == replace(call, inputs={})
    for name, values in inputs.items():
        assert found.inputs[name].dtype == values.dtype
        assert found.inputs[name].tobytes() == values.tobytes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", None])
def test_a_file_that_is_no_saved_call(tmp_path, content):
    path = tmp_path / "call.npz"
    if content is None:
        np.savez(path, src=np.zeros(3))
    else:
        path.write_bytes(content)
    text = invoke("check", f"--inputs={path}", code=2)
    assert "must be a file that a cross-check has written" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("implementation", 5), ("engine", ["cpu"]), ("problem", None), ("compared_with", {})],
)
def test_a_file_with_other_values_than_texts(field, value, tmp_path):
    path, inputs = tmp_path / "call.npz", {"src": np.zeros((2, 3), np.float32)}
    call = SavedCall("--eltwise 2x3", "cpu", "cpu", "reference:*", "reference", inputs)
    replace(call, **{field: value}).save(path)
    with pytest.raises(dnn.DescriptorError, match=r"saved call: .* must be a file"):
        load(path)


def test_a_problem_names_no_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("password")
    inputs = {"src": np.zeros((2, 3), np.float32)}
    call = SavedCall(f"--batch={secret}", "cpu", "cpu", "reference:*", "reference", inputs)
    with pytest.raises(dnn.DescriptorError, match="must not name a file") as caught:
        call.descriptors()
    assert "password" not in str(caught.value)


def test_inputs_that_repeat_elements_are_repeated(tmp_path):
    row = dnn.MemoryDesc((4, 8), strides=(0, 1))
    full = dnn.MemoryDesc((4, 8))
    op = dnn.Binary("add", src0=full, src1=row, dst=full)
    cpu = dnn.engine("cpu")

    class Wrong(toy.Relu):
        takes_repeats = True

        def accept(self, op, attr, engine, hint):
            def add(src0, src1, dst):
                values = src0.numpy() + src1.numpy()
                values[-1, -1] = 7
                dst.desc.pack(values, dst.buffer)

            return toy.Accepted(op, lambda: toy.HostFunction(add), efficiency=99)

    module = toy.plugin(lambda: toy.Backend("toybackend", "1.1", implementations={
        ("cpu", dnn.Binary): f"{__name__}:WRONG"}))  # fmt: skip
    globals()["WRONG"] = [Wrong("toybackend:wrong")]
    dnn.register(module)
    try:
        src1 = dnn.Memory(row, cpu)
        src1.buffer[:] = np.arange(8, dtype=np.float32).view(np.uint8)
        memories = {"src0": dnn.Memory.from_numpy(np.ones((4, 8), np.float32), engine=cpu),
                    "src1": src1, "dst": dnn.Memory(full, cpu)}  # fmt: skip
        with dnn.crosscheck("reference", mode="collect", folder=tmp_path) as report:
            primitive = dnn.PrimitiveDesc(op, cpu, impl="toybackend:*").primitive()
            primitive.execute(cpu.stream(), **memories).wait()
        (line,) = wrong_outputs(load(report.divergences[0].path))
        assert "worst at [3, 7]: got 7, expected 8" in line
    finally:
        dnn.unregister(module)


def test_a_file_that_is_missing(tmp_path):
    assert "there is no file" in invoke("check", f"--inputs={tmp_path / 'none.npz'}", code=2)


def test_inputs_that_do_not_fit_the_problem(tmp_path):
    call = SavedCall("--eltwise 2x3", "cpu", "cpu", "cpu_numba:*", "", {"src": np.zeros((2, 4))})
    call.save(tmp_path / "call.npz")
    text = invoke("check", f"--inputs={tmp_path / 'call.npz'}", code=1)
    assert "src must be f32 of (2, 3)" in " ".join(text.split())


# -- the command -----------------------------------------------------------------------------------


def test_check_repeats_a_saved_call(fault, tmp_path):
    path = saved(tmp_path)
    text = invoke("check", f"--inputs={path}", code=1)
    assert "WRONG  planted:fault  saved  dst" in text
    assert "worst at [1, 14, 8, 8]" in text
    assert f"again: dnncore check --inputs={path}" in text.replace("\n          ", " ")
    (row,) = json.loads(invoke("check", f"--inputs={tmp_path}", "--json", code=1))
    assert row["worst"] == [1, 14, 8, 8]


def test_check_takes_another_problem_and_engine(fault, tmp_path):
    path = saved(tmp_path)
    problem = load(path).problem.replace("--impl=planted:fault ", "").split()
    rows = json.loads(invoke("check", f"--inputs={path}", *problem, "--json", code=1))
    status = {row["implementation"]: row["status"] for row in rows}
    assert status.pop("planted:fault") == "wrong"
    assert len(status) > 2
    assert set(status.values()) == {"ok"}
    rows = json.loads(invoke("check", f"--inputs={path}", "--engines=pocl", *problem, "--json"))
    assert {row["engine"] for row in rows} == {"pocl"}


def test_an_implementation_that_is_gone(fault, tmp_path):
    path = saved(tmp_path)
    call = replace(load(path), implementation="gone:fault")
    call.save(path)
    text = " ".join(invoke("check", f"--inputs={path}", code=1).split())
    assert "gone:fault does not accept" in text
    assert "register it with --plugin=MODULE" in text


def test_minimize_needs_inputs():
    assert "--minimize needs --inputs" in invoke("check", "--minimize", "--eltwise", "2", code=2)


# -- minimizing ------------------------------------------------------------------------------------


def test_minimize_writes_a_smaller_wrong_problem(fault, tmp_path):
    path = saved(tmp_path)
    text = invoke("check", f"--inputs={path}", "--minimize", code=1)
    assert "minimized: --conv --dir=FWD_D --impl=planted:fault mb1_ic1oc15_ih1oh1kh1" in text
    smaller = load(path.with_name(f"{path.stem}-minimized.npz"))
    assert smaller.inputs["weights"].shape == (15, 1, 1, 1)
    assert is_wrong(smaller)


FAULTY_AT = {
    "many rows": (lambda op: op.dst.dims[2] >= 5, "oh5"),
    "strange kernel": (lambda op: op.weights.dims[-1] == 3, "kw3"),
    "wide input": (lambda op: op.src.dims[1] > 9, "ic10"),
}


@pytest.mark.parametrize("name", FAULTY_AT)
def test_minimize_keeps_what_makes_it_wrong(name, tmp_path):
    where, text = FAULTY_AT[name]
    with planted("cpu", dnn.ConvolutionForward, where, FAULTS["border"]):
        smallest = minimized(load(saved(tmp_path)))
        assert text in smallest.problem
        assert sum(map(np.size, smallest.inputs.values())) < 100


def test_minimize_keeps_the_element_that_is_wrong(tmp_path):
    """The last elements of the inputs are kept, because only they give a NaN."""

    def nan_of_large(new, old):
        new[new > 100] = np.nan

    desc = dnn.MemoryDesc((8, 9))
    values = np.zeros((8, 9), np.float32)
    values[-1, -1] = 1000
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    cpu = dnn.engine("cpu")
    with planted("cpu", dnn.EltwiseForward, lambda op: True, nan_of_large):
        with dnn.crosscheck("reference", folder=tmp_path, mode="collect") as report:
            src, dst = dnn.Memory.from_numpy(values, engine=cpu), dnn.Memory(desc, cpu)
            dnn.PrimitiveDesc(op, cpu).primitive().execute(cpu.stream(), src=src, dst=dst)
        smallest = minimized(load(report.divergences[0].path))
    assert smallest.inputs["src"].tolist() == [[1000]]


def test_minimize_leaves_out_post_ops(tmp_path):
    """No step matters. Operands of later steps get other names on the way."""

    def wrong(new, old):
        new.flat[0] += 1

    text = "--matmul --attr-post-ops=relu+add:f32:3:ab+mul:f32:3:ab+sum:0.5 4x6:6x5"
    (problem,) = read(text)
    random = np.random.default_rng(0)
    shapes = {"src": (4, 6), "weights": (6, 5), "post_op_1_src": (4, 5), "post_op_2_src": (4, 5),
              "dst": (4, 5)}  # fmt: skip
    inputs = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    call = SavedCall(str(problem), "cpu", "cpu", "planted:fault", "reference", inputs)
    with planted("cpu", dnn.MatMul, lambda op: True, wrong):
        smallest = minimized(call)
    (found,) = read(smallest.problem)
    assert not found.attr.post_ops
    assert set(smallest.inputs) == {"src", "weights"}


def test_a_gradient_gets_a_workspace_that_fits(tmp_path):
    """Parts of the old workspace could point outside of the smaller tensors."""
    where = lambda op: op.diff_src.dims[1] == 15  # noqa: E731
    with planted("cpu", dnn.PoolingBackward, where, FAULTS["scaled"]):
        smallest = minimized(load(saved(tmp_path)))
        assert is_wrong(smallest)
        assert smallest.inputs["workspace"].max() == 0
    assert smallest.inputs["diff_dst"].shape == (1, 15, 1, 1)


def test_a_right_call_is_not_minimized(fault, tmp_path):
    path = saved(tmp_path)
    right = replace(load(path), implementation="cpu_numba:*")
    right.save(path)
    assert "not minimized: the result of" in invoke("check", f"--inputs={path}", "--minimize")


# -- as tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DIVERGENCES.glob("*.npz")), ids=lambda path: path.stem)
def test_calls_that_diverged_once(path):
    """A saved call in this folder is a test from then on."""
    status, text = outcome_of(path)
    if status == "refused":
        pytest.skip(text)
    assert status == "ok", text


def test_there_are_calls_that_diverged_once():
    assert len(list(DIVERGENCES.glob("*.npz"))) >= 3


KIT = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-rs",
       "--pyargs", "dnncore.testing.suite")  # fmt: skip


def test_the_kit_runs_saved_calls(fault, tmp_path):
    """With the fault's backend gone, the other implementations compute the call."""
    path = saved(tmp_path)
    right, wrong = replace(load(path), implementation="gone:fault"), load(path)
    right.save(tmp_path / "right.npz")
    path.unlink()
    replace(wrong, problem="--conv mb1ic1ih3oc1kh3", implementation="*").save(
        tmp_path / "wrong.npz"
    )
    done = subprocess.run(
        [sys.executable, *KIT, f"--dnncore-saved={tmp_path}"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "wrong.npz: saved call: src must be f32 of (1, 1, 3, 3)" in done.stdout


def test_the_kit_refuses_a_folder_that_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, *KIT, f"--dnncore-saved={tmp_path / 'none'}"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "there is no folder" in done.stdout


def test_wrong_outputs_names_the_implementation(fault, tmp_path):
    (line,) = wrong_outputs(load(saved(tmp_path)))
    assert "dst of planted:fault: WRONG" in line


# -- calls on two engines --------------------------------------------------------------------------


def test_a_wrong_host_fallback_is_repeated_as_one(tmp_path):
    with (
        planted("cpu", dnn.EltwiseForward, lambda op: True, FAULTS["last_element"]),
        toy.devices("toydevice", dnn.Device("toy")),
    ):
        engine, desc = dnn.engine("toydevice"), dnn.MemoryDesc((3, 4))
        op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        primitive = dnn.PrimitiveDesc(op, engine, host_fallback=True).primitive()
        src, dst = dnn.Memory(desc, engine), dnn.Memory(desc, engine)
        src.fill(1)
        with dnn.crosscheck("reference", folder=tmp_path, mode="collect") as report:
            primitive.execute(engine.stream(), src=src, dst=dst)
        (divergence,) = report.divergences
        assert divergence.implementation == "host:planted:fault"
        (line,) = wrong_outputs(load(divergence.path))
        assert "dst of host:planted:fault: WRONG" in line


def test_a_wrong_reorder_between_engines_is_repeated_between_them(tmp_path):
    pocl = pytest.importorskip("pyopencl") and dnn.engine("pocl")
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with planted("cpu", dnn.Reorder, lambda op: op.dst.tag == "ba", FAULTS["last_element"]):
        src = dnn.Memory.from_numpy(values, engine=dnn.engine("cpu"))
        with dnn.crosscheck("reference", folder=tmp_path, mode="collect") as report:
            dnn.reorder(src, dnn.MemoryDesc((3, 4), "f32", "ba"), pocl)
        (divergence,) = report.divergences
        assert divergence.implementation == "transfer:cpu:planted:fault"
        call = load(divergence.path)
        assert (call.src_engine, call.engine) == ("cpu", pocl.name)
        (line,) = wrong_outputs(call)
        assert "dst of transfer:cpu:planted:fault: WRONG" in line
