"""The templates of backends: what they render is clean, typed, and passes the kit from outside."""

import re
import sys

import copier
import pytest
from outside import ROOT, environment, run, wheel

pytestmark = pytest.mark.long

TEMPLATE = ROOT / "templates" / "backend"
KINDS = {"implementations": "cpu", "engine": "engine_backend:0"}  # kind: name of its engine


def render(kind, folder, **answers):
    answers = {"name": f"{kind}_backend", "kind": kind, **answers}
    copier.run_copy(str(TEMPLATE), folder, data=answers, defaults=True, quiet=True)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The folder with both rendered projects."""
    folder = tmp_path_factory.mktemp("rendered")
    for kind in KINDS:
        render(kind, folder / kind)
    return folder


@pytest.fixture(scope="module")
def python(rendered):
    """Python with the wheels of dnncore and of both projects."""
    wheels = [wheel(source, rendered) for source in (ROOT, *(rendered / kind for kind in KINDS))]
    return environment(rendered / "env", *wheels)


def test_the_rendered_code_has_the_style_of_dnncore(rendered):
    settings = ("--no-cache", "--config", ROOT / "pyproject.toml")
    run(sys.executable, "-m", "ruff", "check", *settings, *KINDS, cwd=rendered)
    run(sys.executable, "-m", "ruff", "format", "--check", *settings, *KINDS, cwd=rendered)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rendered_code_is_typed(rendered, python, kind):
    package = f"dnncore_{kind}_backend"
    options = ("--strict", "--python-executable", python, "--package", package)
    run(sys.executable, "-m", "mypy", *options, cwd=rendered / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_run_the_kit(rendered, python, kind):
    output = run(python, "-m", "pytest", "-p", "no:cacheprovider", cwd=rendered / kind)
    assert f"{kind}_backend@{KINDS[kind]}" in output
    assert re.search(r"^eltwise +f32 +forward training +[1-9]\d*", output, re.M)
    assert re.search(r"^eltwise +f32 +backward +[1-9]\d*", output, re.M)
    assert "failed" not in output


@pytest.mark.parametrize("name", ["", "2fast", "Mine", "my-backend"])
def test_a_name_that_is_no_identifier_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="A name must begin with a letter"):
        render("engine", tmp_path / "new", name=name)


IN_A_CHILD = """
import os
import numpy as np
import dnncore as dnn

engine = dnn.engine("engine_backend")
stream, memory = engine.stream(), dnn.Memory.from_numpy(np.ones(4, np.float32), engine=engine)
stream.lag = 0.5
event = engine.copy_out(stream, memory.buffer, np.empty(16, np.uint8))
child = os.fork()
if not child:
    for call in (event.wait, stream.wait, engine.stream, lambda: dnn.Memory(memory.desc, engine)):
        try:
            call()
        except dnn.ExecutionError as error:
            print("lost" in str(error))
    print(dnn.functional.relu(np.float32([-1, 2]), engine="engine_backend").tolist(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], event.wait(), flush=True)
"""


def test_in_a_forked_child_the_engine_is_lost_and_can_be_opened_again(python):
    assert run(python, "-W", "ignore", "-c", IN_A_CHILD, timeout=60).split() == [
        "True", "True", "True", "True", "[0.0,", "2.0]", "0", "None",
    ]  # fmt: skip
