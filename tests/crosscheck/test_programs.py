"""Unchanged programs: environment variables, forks, and two runs on two engines."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes import run

from dnncore.cli import main

pytestmark = pytest.mark.long

SUPPORT = str(Path(__file__).parents[1] / "support")

NETWORK = """
    import sys
    sys.path.insert(0, {support!r})
    import dnncore as dnn
    from planted_layers import FAULTS, Network, planted

    def network():
        network = Network(dnn.engine())
        stream = network.engine.stream()
        for launch in [*network.forward, *network.backward]:
            launch.primitive.execute(stream, **launch.memories)
        stream.wait()
"""
RIGHT = NETWORK + "\n    network()\n"
WRONG = NETWORK + """
    with planted({kind!r}, dnn.ConvolutionForward, lambda op: op.dst.dims[1] == 15,
                 FAULTS["border"]):
        network()
"""  # fmt: skip


def program(folder, text, **names):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text.format(support=SUPPORT, **names)))
    return path


def started(path, *options, **environment):
    return subprocess.run(
        [sys.executable, *options, str(path)], cwd=path.parent, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


# -- environment variables -------------------------------------------------------------------------


def test_an_unchanged_program_is_compared(tmp_path):
    path = program(tmp_path, WRONG, kind="cpu")
    done = started(path, DNNCORE_CROSSCHECK="reference", DNNCORE_CROSSCHECK_FOLDER="here")
    assert done.returncode == 0, done.stderr
    assert "crosscheck: call 11: dst of planted:fault on cpu diverges" in done.stderr
    assert "crosscheck against reference: 48 calls, 48 compared, 1 divergence" in done.stderr
    assert [file.name for file in (tmp_path / "here").iterdir()] >= ["call-11-convolution.npz"]


def test_mode_raise_ends_the_program(tmp_path):
    path = program(tmp_path, WRONG, kind="cpu")
    done = started(path, DNNCORE_CROSSCHECK="reference", DNNCORE_CROSSCHECK_MODE="raise")
    assert done.returncode == 1
    assert "CrossCheckError: crosscheck: call 11: dst of planted:fault" in done.stderr


def test_mode_collect_prints_the_summary_at_the_end(tmp_path):
    path = program(tmp_path, WRONG + "        print('end', file=sys.stderr)\n", kind="cpu")
    done = started(path, DNNCORE_CROSSCHECK="cpu_numba:*", DNNCORE_CROSSCHECK_MODE="collect")
    lines = done.stderr.splitlines()
    assert lines[0] == "end"
    assert lines[1].startswith("crosscheck against cpu_numba:*: 48 calls,")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"": "refrence"}, "crosscheck: expected 'reference'"),
        ({"": "reference", "_MODE": "shout"}, "mode must be one of report, raise, collect"),
        ({"": "reference", "_SLOWDOWN": "fast"}, "DNNCORE_CROSSCHECK_SLOWDOWN must be 0 or"),
        ({"": "reference", "_SLOWDOWN": "0.5"}, "slowdown must be None or a number above 1"),
    ],
)
def test_a_wrong_value_is_ignored_with_a_warning(values, message, tmp_path):
    done = started(
        program(tmp_path, RIGHT), **{f"DNNCORE_CROSSCHECK{k}": v for k, v in values.items()}
    )
    assert done.returncode == 0, done.stderr
    assert "DNNCORE_CROSSCHECK is ignored" in done.stderr
    assert message in done.stderr


def test_the_reference_is_needed(tmp_path):
    done = started(
        program(tmp_path, RIGHT),
        DNNCORE_CROSSCHECK="cpu_numba:*", DNNCORE_DISABLE_BACKENDS="reference",
    )  # fmt: skip
    assert "there is no backend with the role 'reference'" in done.stderr


def test_an_empty_value_is_none(tmp_path):
    done = started(program(tmp_path, RIGHT), "-W", "error", DNNCORE_CROSSCHECK="")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_limit_each_call_is_compared(tmp_path):
    text = NETWORK + "\n    for _ in range(5): network()\n"
    done = started(
        program(tmp_path, text), DNNCORE_CROSSCHECK="reference", DNNCORE_CROSSCHECK_SLOWDOWN="0"
    )
    assert "240 calls, 240 compared, 0 divergences" in done.stderr


def test_verbose_lines_are_those_of_the_program(tmp_path):
    """Launches of the repetition have none."""
    done = started(
        program(tmp_path, RIGHT), DNNCORE_CROSSCHECK="reference", DNNCORE_VERBOSE="profile_exec"
    )
    assert done.stdout.count("primitive,exec") == 48


def test_a_forked_child_begins_a_report_of_its_own():
    lines = run(
        """
        import os, warnings
        import numpy as np
        import dnncore as dnn
        cpu = dnn.engine("cpu")
        desc = dnn.MemoryDesc((3, 4))
        op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        primitive = dnn.PrimitiveDesc(op, cpu).primitive()
        a, b = dnn.Memory(desc, cpu), dnn.Memory(desc, cpu)
        a.fill(1)
        with dnn.crosscheck("reference", mode="raise") as report:
            primitive.execute(cpu.stream(), src=a, dst=b)
            child = os.fork()
            primitive.execute(cpu.stream(), src=a, dst=b)
            if not child:
                print("child", report.calls, report.compared, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        print("parent", report.calls, report.compared)
        """
    )
    assert lines == ["child 1 1", "parent 2 2"]


# -- two runs --------------------------------------------------------------------------------------


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, ["crosscheck", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_two_runs_that_differ_by_rounding(tmp_path):
    path = program(tmp_path, RIGHT)
    text = invoke("--engines=cpu,pocl", f"--folder={tmp_path}", path)
    assert "48 matched" in text
    assert ", 0 faults" in text
    assert "accumulated rounding: norm-wise difference at most" in text
    assert "the order departs" not in text


@pytest.mark.parametrize(
    ("engines", "kind", "line"),
    [
        ("cpu,pocl", "opencl", "call 11: dst of planted:fault on opencl"),
        ("pocl,cpu", "opencl", "call 11: dst of planted:fault on opencl"),
        ("cpu,pocl", "cpu", "call 11: dst of planted:fault on cpu"),
    ],
)
def test_a_fault_is_told_from_rounding(engines, kind, line, tmp_path):
    """Later layers get wrong inputs in one run, but are right on the inputs of the other one."""
    path = program(tmp_path, WRONG, kind=kind)
    text = invoke(f"--engines={engines}", f"--folder={tmp_path}", path, code=1)
    assert ", 1 fault\n" in text
    assert line in text


def test_the_arguments_of_the_script_are_passed(tmp_path):
    path = program(tmp_path, RIGHT + "    open(sys.argv[1], 'a').write(' '.join(sys.argv[1:]))\n")
    invoke("--engines=cpu,cpu", path, tmp_path / "out", "--engines=x", "-h")
    assert (tmp_path / "out").read_text() == f"{tmp_path / 'out'} --engines=x -h" * 2


def test_where_the_order_departs(tmp_path):
    text = (
        RIGHT
        + """
    if dnn.engine().kind == "cpu":
        dnn.functional.relu([[1.0, 2.0]])
    network()
    """
    )
    text = invoke("--engines=cpu,pocl", program(tmp_path, text))
    assert "crosscheck of cpu (97 calls) and opencl" in text
    assert "96 matched" in text
    assert "the order departs: call 49 on cpu is eltwise src:f32:1x2 dst:f32:1x2" in text
    assert "only on cpu: 1 call, 0 of them reorders" in text


def test_the_limit_of_bytes(tmp_path):
    text = RIGHT + "    dnn.functional.relu(dnn.functional.relu([[0.0] * 300000]))\n"
    text = invoke("--engines=cpu,pocl", "--limit=1", program(tmp_path, text))
    assert "not compared: call 49, eltwise: the limit of bytes is reached" in text
    assert "48 matched" not in text


def test_runs_on_one_engine(tmp_path):
    text = invoke("--engines=cpu,cpu", program(tmp_path, RIGHT))
    assert "48 equal" in text
    assert "both runs used cpu" in text


@pytest.mark.parametrize(
    ("text", "status", "shown"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise RuntimeError('from the script')", 1, "RuntimeError: from the script"),
    ],
)
def test_a_script_that_fails(tmp_path, text, status, shown, capfd):
    path = tmp_path / "program.py"
    path.write_text(text)
    output = invoke("--engines=cpu,pocl", path, code=1)
    assert f"{path} ended with status {status} on cpu" in output
    assert shown in capfd.readouterr().err


def test_a_script_that_ends_its_process(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import os; os._exit(0)")
    output = invoke("--engines=cpu,pocl", path, code=1)
    assert f"{path} ended its process on cpu, as os._exit does" in output


@pytest.mark.parametrize("engines", ["cpu", "cpu,pocl,cpu", ""])
def test_two_engines_are_needed(tmp_path, engines):
    path = program(tmp_path, RIGHT)
    assert "expected two names" in invoke(f"--engines={engines}", path, code=2)


def test_an_engine_that_cannot_be_opened(tmp_path, capfd):
    path = program(tmp_path, RIGHT)
    assert "ended with status 1 on opencl:99" in invoke("--engines=cpu,opencl:99", path, code=1)
    assert "opencl:99" in capfd.readouterr().err
