"""Plugins of former minor versions of the contract run, and nothing that they use is removed."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from contract_names import names
from toy import plugin

import dnncore as dnn
from dnncore.backend import API_VERSION, Backend
from dnncore.problem import read
from dnncore.testing import run_case

FOLDER = Path(__file__).parents[1] / "data" / "contract"
MINORS = sorted(path.stem for path in FOLDER.glob("*.txt"))
PROBLEMS = ("--eltwise --alg=relu 2x17x3", "--eltwise --alg=relu --tag=aBx16b 2x17x3x3",
            "--reorder 2x5x3")  # fmt: skip


def test_each_minor_version_has_a_plugin_and_a_list_of_names():
    major, minor = map(int, API_VERSION.split("."))
    assert [f"{major}.{n}" for n in range(minor + 1)] == MINORS
    assert {f"plugin_{v.replace('.', '_')}.py" for v in MINORS} == {
        path.name for path in FOLDER.glob("*.py")
    }


@pytest.fixture(params=MINORS)
def old(request, monkeypatch):
    """The engine kind of a plugin of a minor version."""
    monkeypatch.syspath_prepend(FOLDER)
    version = request.param.replace(".", "_")
    module = importlib.import_module(f"plugin_{version}")
    dnn.register(module)
    yield f"old_{version}"
    dnn.unregister(module)


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_plugin_of_a_minor_version_passes_the_kit(old, text):
    (problem,) = read(text)
    result = run_case(problem, dnn.engine(old))
    assert (result.status, result.failures) == ("passed", ())


def test_a_plugin_of_a_minor_version_is_served_by_the_host(old):
    engine, values = dnn.engine(old), np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    src = dnn.Memory.from_numpy(values, engine=engine)
    op = dnn.EltwiseForward("forward_inference", "tanh", src=src.desc, dst=src.desc)
    dst = dnn.Memory(src.desc, engine)
    pd = dnn.PrimitiveDesc(op, engine, host_fallback=True)
    pd.primitive().execute(engine.stream(), src=src, dst=dst).wait()
    np.testing.assert_allclose(dst.numpy(), np.tanh(values), rtol=1e-6)


def test_a_plugin_may_have_a_format_of_its_own_and_lose_its_device(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("plugin_1_1")
    dnn.register(module)
    engine = dnn.engine("old_1_1")
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    src = dnn.Memory.from_numpy(values, engine=engine)
    wanted = dnn.MemoryDesc((3, 4), "f32", "any")
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=wanted)
    pd = dnn.PrimitiveDesc(op, engine)
    assert pd.dst_desc.tag == "old_1_1:reversed"
    assert (pd.notes, pd.detail, pd.scratchpad_bytes) == (("copies",), "old relu", 48)
    assert dnn.PrimitiveDesc(op, engine, knobs={"room": "none"}).scratchpad_bytes == 0
    dst = dnn.Memory(pd.dst_desc, engine)
    pd.primitive().execute(engine.stream(), src=src, dst=dst).wait()
    plain = dnn.reorder(dst, src.desc)
    np.testing.assert_array_equal(plain.numpy(), np.maximum(values, 0))
    engine.is_lost = True
    with pytest.raises(dnn.ExecutionError, match="lost"):
        dnn.Memory(src.desc, engine)
    assert dnn.engine("old_1_1") is not engine
    dnn.unregister(module)


def test_a_plugin_may_compose_an_operation(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("plugin_1_2")
    dnn.register(module)
    (problem,) = read("--sum --sdt=f32 --scales=1 3x4")
    result = run_case(problem, dnn.engine("old_1_2"))
    pd = dnn.PrimitiveDesc(problem.op, dnn.engine("old_1_2"))
    dnn.unregister(module)
    assert (result.status, result.failures) == ("passed", ())
    assert (pd.impl_name, pd.detail) == ("old_1_2:one_source", "copy")


def parts(line):
    """The name and the parameters of a line; None for what cannot be called."""
    name, _, rest = line.partition("(")
    return name, rest.removesuffix(")").split(", ") if rest else None


def breaks(old, new):
    """Why calls with the old parameters may fail, or ""."""
    known = [parameter.rstrip("=") for parameter in new]
    for parameter in old:
        if parameter.rstrip("=") not in known:
            return f"{parameter} is missing"
        if parameter.endswith("=") and parameter not in new:
            return f"{parameter} must have a default"
    kept = [p for p in new if p.rstrip("=") in {q.rstrip("=") for q in old}]
    if [p.rstrip("=") for p in kept] != [p.rstrip("=") for p in old]:
        return "the order has changed"
    added = [p for p in new if p not in kept and not p.endswith("=") and not p.startswith("*")]
    return f"{added[0]} must have a default" if added else ""


@pytest.mark.parametrize("version", MINORS)
def test_no_name_and_no_parameter_of_a_minor_version_is_missing(version):
    now = dict(map(parts, names()))
    before = dict(map(parts, (FOLDER / f"{version}.txt").read_text().splitlines()))
    assert len(before) > 600
    assert set(before) <= set(now)
    assert not {n: breaks(p, now[n] or ()) for n, p in before.items() if p and breaks(p, now[n])}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("f(a, b=)", "f(a)", "b= is missing"),
        ("f(a, b=)", "f(a, b)", "b= must have a default"),
        ("f(a, b)", "f(b, a)", "the order has changed"),
        ("f(a)", "f(a, b)", "b must have a default"),
        ("f(a, b)", "f(a=, c=, b=, *d)", ""),
    ],
)
def test_what_breaks_calls(old, new, fault):
    assert breaks(parts(old)[1], parts(new)[1]) == fault


# -- versions that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "meant"), [(1, "1.0"), ("1.0", "1.0"), ("1.1", "1.1"), ("1.2", "1.2")]
)
def test_the_same_major_and_no_newer_minor_are_accepted(version, meant):
    module = plugin(lambda: Backend("x", version))
    (backend,) = dnn.register(module)
    dnn.unregister(module)
    assert backend.api_version == meant


OLDER, NEWER = "install a newer release of the backend, or an older dnncore", "update dnncore"


@pytest.mark.parametrize(
    ("version", "remedy"),
    [("0.9", OLDER), (0, OLDER), ("1.999", NEWER), ("2.0", NEWER), (99, NEWER)],
)
def test_another_major_and_a_newer_minor_are_refused(version, remedy):
    versions = re.escape(
        f"from 1.0 to {API_VERSION}, which this dnncore has; got version {version}"
    )
    with pytest.raises(dnn.PluginError, match=rf"backend 'x' must .*{versions}; {remedy}"):
        dnn.register(plugin(lambda: Backend("x", version)))
    assert "x" not in {b.name for b in dnn.backends()}


@pytest.mark.parametrize("version", ["1", "1.x", "1.1.0", " 1.1", "1.1\n", "", 1.1, True, None])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(dnn.PluginError, match=r'api_version must be .* such as "1\.'):
        dnn.register(plugin(lambda: Backend("x", version)))
