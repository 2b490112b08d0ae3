"""Launches that change inputs, padding, gaps or other tensors."""

import threading

import numpy as np
import pytest
from click.testing import CliRunner
from toy import Relu, registered

import dnncore as dnn
from dnncore.backend import Accepted, HostFunction
from dnncore.cli import main

CPU = dnn.engine("cpu")
GAPS = dnn.MemoryDesc((4, 6), strides=(10, 1), offset0=3)
BLOCKED = dnn.MemoryDesc((2, 5, 3, 3), "f32", "aBcd8b")
PLAIN = dnn.MemoryDesc((4, 6))


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Saved calls go to a temporary folder."""
    monkeypatch.chdir(tmp_path)


class Straying(Relu):
    """A right relu that then calls `stray(src, dst)`."""

    def __init__(self, stray):
        super().__init__("toybackend:straying", 99.0)
        self.stray = stray

    def accept(self, op, attr, engine, hint):
        def function(src, dst):
            dst.desc.pack(np.maximum(src.numpy(), 0), dst.buffer)
            self.stray(src, dst)

        return Accepted(op.resolve_any(dst=op.src), lambda: HostFunction(function), efficiency=99)


def changes_input(src, dst):
    src.numpy()[-1, -1] += 1


def writes_a_neighbour(src, dst):
    dst.buffer[:4] = 7


def writes_padding(src, dst):
    dst.desc.view(dst.buffer)[0, 0, 0, 0, -1] = 1


def launch(stray, desc):
    """Launch once. Returns the report."""
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    with registered(Straying(stray)):
        primitive = dnn.PrimitiveDesc(op, CPU, impl="toybackend:*").primitive()
        values = np.random.default_rng(0).standard_normal(desc.dims).astype(np.float32)
        src, dst = dnn.Memory.from_numpy(values, desc, CPU), dnn.Memory(desc, CPU)
        with dnn.crosscheck("reference", mode="collect") as report:
            primitive.execute(CPU.stream(), src=src, dst=dst).wait()
        if report.divergences and report.divergences[0].path:
            path = str(report.divergences[0].path)
            again = CliRunner().invoke(main, ["check", f"--inputs={path}"])
            assert again.exit_code == 1, again.output
    return report


@pytest.mark.parametrize("desc", [PLAIN, GAPS], ids=["plain", "gaps"])
def test_a_changed_input(desc):
    (divergence,) = launch(changes_input, desc).divergences
    assert set(divergence.comparisons) == {"src"}
    assert divergence.comparisons["src"].index == (3, 5)
    assert "toybackend:straying changes its input src" in str(divergence)


@pytest.mark.parametrize(
    ("stray", "desc", "count"),
    [(writes_a_neighbour, GAPS, 4), (writes_padding, BLOCKED, 2)],
    ids=["neighbour", "padding"],
)
def test_bytes_beside_the_elements(stray, desc, count):
    (divergence,) = launch(stray, desc).divergences
    assert divergence.comparisons["dst"].beside == count
    assert divergence.comparisons["dst"].wrong == 0
    assert f"{count} bytes beside the elements changed" in str(divergence)
    assert "writes beside the elements of dst" in str(divergence)


@pytest.mark.parametrize("desc", [PLAIN, GAPS, BLOCKED], ids=["plain", "gaps", "blocked"])
def test_what_is_right_changes_nothing(desc):
    report = launch(lambda src, dst: None, desc)
    assert (report.compared, report.divergences) == (1, [])


def test_an_output_in_place_of_its_input_is_no_change():
    op = dnn.EltwiseForward("forward_inference", "relu", src=GAPS, dst=GAPS)
    memory = dnn.Memory.from_numpy(np.full((4, 6), -1, np.float32), GAPS, CPU)
    with dnn.crosscheck("reference") as report:
        dnn.PrimitiveDesc(op, CPU).primitive().execute(CPU.stream(), src=memory, dst=memory).wait()
    assert not report.divergences


def test_threads_that_fill_parts_of_one_buffer_are_right():
    """A thread is not blamed for the writes of another one."""
    whole = dnn.Memory(dnn.MemoryDesc((64, 64)), CPU)
    parts = [whole.desc.submemory((64, 16), (0, 16 * i)) for i in range(4)]
    src = dnn.Memory.from_numpy(np.ones((64, 16), np.float32), engine=CPU)

    def fill(part):
        op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=part)
        primitive = dnn.PrimitiveDesc(op, CPU).primitive()
        stream, dst = CPU.stream(), dnn.Memory(part, CPU, whole.buffer)
        for _ in range(30):
            primitive.execute(stream, src=src, dst=dst).wait()

    with dnn.crosscheck("reference", slowdown=None) as report:
        threads = [threading.Thread(target=fill, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert report.compared == 120
    assert not report.divergences
