"""The loader: what plugins may bring, and what happens when one is broken."""

import os
import subprocess
import sys
import textwrap
import types
import warnings

import pytest
from toy import Relu, ToyEngine, plugin, registered, relu_op

import dnncore as dnn
from dnncore.backend import API_VERSION, Backend


def test_hook_dnncore_backends_registers_and_unregisters():
    with registered(Relu("toybackend:a", 9.0)):
        assert "toybackend" in {b.name for b in dnn.backends()}
        assert dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu")).impl_name == "toybackend:a"
    assert "toybackend" not in {b.name for b in dnn.backends()}


def test_a_later_module_of_one_name_brings_its_own_table(monkeypatch):
    for answer in ("first", "second"):
        tables = types.ModuleType("replaced_tables")
        tables.TABLE = [Relu(f"toybackend:{answer}", 9.0)]
        monkeypatch.setitem(sys.modules, "replaced_tables", tables)
        with registered(table="replaced_tables:TABLE"):
            pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        assert pd.impl_name == f"toybackend:{answer}"


def test_a_plugin_may_return_several_backends():
    both = plugin(lambda: [Backend("one", API_VERSION), Backend("two", API_VERSION)])
    assert [b.name for b in dnn.register(both)] == ["one", "two"]
    dnn.unregister(both)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda: 7, "must return Backend objects; got int"),
        (lambda: Backend("x", 99), "must be written for a version of the contract from"),
        (lambda: Backend("reference", API_VERSION), "'reference' is provided by dnncore and by"),
        (
            lambda: Backend("x", API_VERSION, engines={"cpu": "m:E"}),
            "engine kind 'cpu' must be new",
        ),
        (lambda: 1 / 0, "cannot be registered: ZeroDivisionError"),
    ],
    ids=["not-a-backend", "version", "name-taken", "kind-taken", "hook-raises"],
)
def test_a_plugin_that_breaks_the_contract_leaves_nothing_behind(returned, message):
    before = {b.name for b in dnn.backends()}
    with pytest.raises(dnn.PluginError, match=message):
        dnn.register(plugin(returned))
    assert {b.name for b in dnn.backends()} == before


def test_a_new_engine_kind_opens_by_name():
    with registered(Relu("toybackend:a"), kind="toy", engines={"toy": "toy:ToyEngine"}):
        engine = dnn.engine("toy")
        assert isinstance(engine, ToyEngine)
        assert (engine.name, dnn.engine("toy:0")) == ("toy:0", engine)
        assert "toy:0" in {d.name for d in dnn.devices()}
        with pytest.raises(dnn.EngineUnavailable, match=r"'toy:3'.*devices is 1"):
            dnn.engine("toy:3")
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'toy'; there are: cpu"):
        dnn.engine("toy")


def test_an_engine_that_cannot_be_loaded_is_unavailable_with_the_reason():
    with registered(Relu("toybackend:a"), kind="toy", engines={"toy": "no_such_module:E"}):
        with pytest.raises(dnn.EngineUnavailable, match="No module named 'no_such_module'"):
            dnn.engine("toy")
        status = {b.name: b for b in dnn.backends()}["toybackend"]
        assert (status.status, "no_such_module" in status.reason) == ("unavailable", True)
        rows = {d.name: d for d in dnn.devices()}
        assert rows["toy"].status == "unavailable"


def test_an_implementation_that_raises_in_accept_is_a_refusal():
    def explode(op):
        raise ValueError("boom")

    with (
        registered(Relu("toybackend:bad", accept=explode)),
        pytest.warns(dnn.PluginWarning, match="toybackend:bad: accept raised ValueError: boom"),
    ):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
    refusal = next(r for r in pd.refusals if r.impl_name == "toybackend:bad")
    place = f"test_plugins.py:{explode.__code__.co_firstlineno + 1}"
    assert refusal.kind == "failed"
    assert refusal.reason == f"accept raised ValueError: boom ({place})"


@pytest.mark.parametrize("answer", [None, True, "yes"])
def test_an_answer_that_is_neither_yes_nor_no_is_a_refusal(answer):
    with (
        registered(Relu("toybackend:bad", accept=lambda op: answer)),
        pytest.warns(dnn.PluginWarning, match="not Accepted or Refused"),
    ):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
    assert any("not Accepted or Refused" in r.reason for r in pd.refusals)


def test_a_build_that_raises_is_a_build_error_and_may_be_tried_again():
    toy = Relu("toybackend:bad", 9.0, build=RuntimeError("no registers left"))
    with registered(toy):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        with pytest.raises(dnn.BuildError, match=r"toybackend:bad.*no registers left.*skip_impl"):
            pd.primitive()
        toy.failing_build = None
        pd.primitive()


def distribution(folder, name, body, module="broken_plugin", entry=""):
    """Lay out an installed distribution with a dnncore.backends entry point.

    entry: its name; by default the distribution's.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dnncore.backends]\n{entry or name} = {module}\n")
    (folder / f"{module}.py").write_text(textwrap.dedent(body))


@pytest.fixture
def fresh_registry(monkeypatch):
    """A registry that discovers anew, so that distributions laid out by a test are found."""
    from dnncore.selection import plugins

    def discover():
        found = plugins.Registry()
        found.discover()
        return found

    yield discover
    sys.modules.pop("broken_plugin", None)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("raise RuntimeError('half installed')", "failed", "RuntimeError: half installed"),
        ("raise SystemExit('half installed')", "failed", "SystemExit: half installed"),
        ("import nothing_like_this", "unavailable", "No module named 'nothing_like_this'"),
        (
            """
            from dnncore.backend import hookimpl
            @hookimpl
            def dnncore_backend(): pass
            """,
            "failed",
            "dnncore_backend",
        ),
        (
            """
            from dnncore.backend import hookimpl
            @hookimpl
            def dnncore_backends(): raise KeyError('gone')
            """,
            "failed",
            "KeyError: 'gone'",
        ),
    ],
    ids=["import-raises", "import-exits", "import-missing", "misspelt-hook", "hook-raises"],
)
def test_a_broken_distribution_does_not_stop_the_others(
    tmp_path, monkeypatch, fresh_registry, body, status, reason
):
    distribution(tmp_path, "broken", body)
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        rows = {row.name: row for row in fresh_registry().probe()}
    assert len(found) == (status == "failed")  # a missing dependency is no fault
    assert (rows["broken"].status, rows["broken"].version) == (status, "1.0")
    assert reason in rows["broken"].reason
    assert rows["reference"].status == "ok"


def test_the_place_of_an_error_names_the_package(tmp_path, monkeypatch, fresh_registry):
    distribution(tmp_path, "packed", "raise KeyError('gone')", module="packed_plugin")
    (tmp_path / "packed_plugin").mkdir()
    (tmp_path / "packed_plugin.py").rename(tmp_path / "packed_plugin" / "__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(dnn.PluginWarning):
        rows = {row.name: row for row in fresh_registry().probe()}
    assert "packed_plugin/__init__.py:1" in rows["packed"].reason


def run(program, folder):
    """Run a program with the distributions of a folder; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        env=environment, text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip


def test_a_plugin_that_uses_dnncore_while_it_is_imported_sees_those_before_it(tmp_path):
    body = """
        import dnncore as dnn
        from dnncore.backend import API_VERSION, Backend, hookimpl
        SEEN = len(dnn.backends())
        @hookimpl
        def dnncore_backends(): return Backend("curious", API_VERSION)
        """
    distribution(tmp_path, "curious", body)
    program = "import dnncore; print(*(b.name for b in dnncore.backends()))"
    names = run(program, tmp_path).split()
    assert {"curious", "reference"} <= set(names)


def test_observers_hear_errors_of_a_plugin_s_import_in_the_thread_that_asked(tmp_path):
    """Another thread imports it, so that no interrupt leaves half of it."""
    body = """
        import threading
        import dnncore as dnn
        try:
            raise dnn.EngineUnavailable(threading.current_thread().name)
        except dnn.EngineUnavailable:
            from dnncore.backend import API_VERSION, Backend, hookimpl
        @hookimpl
        def dnncore_backends(): return Backend("careful", API_VERSION)
        """
    distribution(tmp_path, "careful", body)
    program = """
        import threading
        import dnncore as dnn
        from dnncore import observers
        class Listener(observers.Observer):
            def raised(self, error):
                print(error, threading.current_thread().name)
        observers.add(Listener())
        assert "careful" in {b.name for b in dnn.backends()}
        """
    assert run(program, tmp_path) == "dnncore-worker MainThread\n"


@pytest.mark.parametrize("taken", ['"reference", API_VERSION', '"aaa", API_VERSION, "reference"'])
def test_no_distribution_takes_the_place_of_the_reference(
    tmp_path, monkeypatch, fresh_registry, taken
):
    """Its name comes first in the alphabet, as the order of loading was."""
    body = f"""
        from dnncore.backend import API_VERSION, Backend, hookimpl
        @hookimpl
        def dnncore_backends(): return Backend({taken})
        """
    distribution(tmp_path, "aaa", body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(dnn.PluginWarning, match="'aaa'.*(provided by|must be new)"):
        registry = fresh_registry()
    rows = {row.name: row for row in registry.probe()}
    assert (rows["aaa"].status, rows["reference"].distribution) == ("failed", "dnncore")
    assert registry.with_role("reference").name == "reference"


@pytest.fixture(params=["twin", ""], ids=["one-entry-point", "two-entry-points"])
def twins(request, tmp_path, monkeypatch):
    """Two distributions with a backend of one name, with and without one name of entry points."""
    body = """
        from dnncore.backend import Backend, hookimpl
        @hookimpl
        def dnncore_backends(): return Backend("twin", "1.0")
        """
    for name in ("aaa-twin", "bbb-twin"):
        distribution(tmp_path, name, body, module=f"{name[:3]}_twin_plugin", entry=request.param)
    monkeypatch.syspath_prepend(tmp_path)


def test_of_two_distributions_with_one_backend_the_first_is_loaded(twins, fresh_registry):
    text = (
        "backend 'twin' is provided by aaa-twin and by bbb-twin; uninstall or block one of them, as"
        " DNNCORE_DISABLE_BACKENDS=bbb-twin does"
    )
    with pytest.warns(dnn.PluginWarning, match=text):
        rows = {row.name: row for row in fresh_registry().probe()}
    assert (rows["twin"].status, rows["twin"].distribution) == ("ok", "aaa-twin")
    assert (rows["bbb-twin"].status, rows["bbb-twin"].reason) == ("failed", text)


@pytest.mark.parametrize(("blocked", "left"), [("bbb-twin", "aaa-twin"), ("aaa-twin", "bbb-twin")])
def test_either_of_two_distributions_with_one_backend_can_be_blocked(
    twins, fresh_registry, monkeypatch, blocked, left
):
    monkeypatch.setenv("DNNCORE_DISABLE_BACKENDS", blocked)
    rows = {row.name: row for row in fresh_registry().probe()}
    assert (rows["twin"].status, rows["twin"].distribution) == ("ok", left)
    assert not [row for row in rows.values() if row.status == "failed"]


def test_a_distribution_can_be_the_only_one_that_is_loaded(twins, fresh_registry, monkeypatch):
    monkeypatch.setenv("DNNCORE_BACKENDS", "reference, bbb-twin")
    registry = fresh_registry()
    assert sorted(registry.loaded) == ["reference", "twin"]
    assert registry.loaded["twin"].status.distribution == "bbb-twin"


@pytest.mark.parametrize(
    ("version", "advice"), [("0.9", "install a newer release"), ("2.0", "update dnncore")]
)
def test_a_distribution_for_another_version_is_listed_with_the_remedy(
    tmp_path, monkeypatch, fresh_registry, version, advice
):
    body = f"""
        from dnncore.backend import Backend, hookimpl
        @hookimpl
        def dnncore_backends(): return Backend("other", {version!r})
        """
    distribution(tmp_path, "other", body, module="other_version_plugin")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(dnn.PluginWarning, match=f"got version {version}; {advice}"):
        rows = {row.name: row for row in fresh_registry().probe()}
    assert rows["other"].status == "failed"
    assert advice in rows["other"].reason
    sys.modules.pop("other_version_plugin")


def test_a_table_in_a_missing_module_makes_the_backend_unavailable():
    with registered(table="no_such_module:TABLE"):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        row = next(row for row in dnn.backends() if row.name == "toybackend")
    assert not pd.impl_name.startswith("toybackend")
    assert row.status == "unavailable"
    assert "No module named 'no_such_module'" in row.reason


def test_blocked_backends_are_told_and_not_loaded(monkeypatch, fresh_registry):
    monkeypatch.setenv("DNNCORE_DISABLE_BACKENDS", "opencl, cpu_numba")
    rows = {row.name: row for row in fresh_registry().probe()}
    assert rows["opencl"].status == rows["cpu_numba"].status == "blocked"
    monkeypatch.setenv("DNNCORE_BACKENDS", "reference")
    monkeypatch.delenv("DNNCORE_DISABLE_BACKENDS")
    registry = fresh_registry()
    assert list(registry.loaded) == ["reference"]
    assert "DNNCORE_BACKENDS=reference" in {r.name: r for r in registry.probe()}["opencl"].reason


@pytest.mark.parametrize("variable", ["DNNCORE_BACKENDS", "DNNCORE_DISABLE_BACKENDS"])
def test_unknown_backends_in_the_environment_cause_a_warning(monkeypatch, fresh_registry, variable):
    monkeypatch.setenv(variable, "reference, refrence")
    text = f"{variable}: unknown backend refrence; there are: .*reference"
    with pytest.warns(UserWarning, match=text):
        fresh_registry()


def test_engines_are_the_same_object_each_time_and_default_to_the_environment(monkeypatch):
    assert dnn.engine() is dnn.engine("cpu") is dnn.engine("cpu:0")
    monkeypatch.setenv("DNNCORE_ENGINE", "nonsense")
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'nonsense'"):
        dnn.engine()


def test_a_backend_registered_anew_is_built_anew():
    first, second = Relu("toybackend:a", 9.0), Relu("toybackend:a", 9.0)
    for toy in (first, second):
        with registered(toy):
            dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu")).primitive()
    assert (first.built, second.built) == (1, 1)


def test_messages_list_only_failed_backends_that_may_compute_the_problem():
    broken = {"table": "no_such_module:TABLE"}
    with (
        registered(kind="other", name="elsewhere", **broken),
        registered(kind="toy", name="here", engines={"toy": "toy:ToyEngine"}, **broken),
    ):
        dnn.backends()
        with pytest.raises(dnn.NoImplementation, match="not available: here") as caught:
            dnn.PrimitiveDesc(relu_op(), dnn.engine("toy"))
        assert "elsewhere" not in str(caught.value)
        with pytest.raises(dnn.BackendNotFound) as unknown:
            dnn.engine("abacus")
        assert "elsewhere (unavailable" not in str(unknown.value)


def test_a_backend_whose_name_is_taken_must_be_renamed():
    with registered(), pytest.raises(dnn.PluginError, match=r"'toybackend' is .*; rename one of"):
        dnn.register(plugin(lambda: Backend("toybackend", API_VERSION)))


def test_a_name_is_no_plugin():
    with pytest.raises(dnn.PluginError, match=r"needs a module or an object .*; got 'nomodule'"):
        dnn.register("nomodule")


def test_an_explanation_lists_backends_that_failed():
    relu = Relu("toybackend:good")
    with registered(relu, table="builtins:abs"):
        with pytest.warns(dnn.PluginWarning, match="builtins:abs"):
            pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        assert "backend toybackend: failed: " in pd.explain()


def test_an_explanation_leaves_out_backends_whose_packages_are_missing():
    with registered(Relu("toybackend:good"), table="no_such_module:TABLE"):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        status = next(row for row in dnn.backends() if row.name == "toybackend")
        assert status.status == "unavailable"
        assert "toybackend" not in pd.explain()


@pytest.mark.parametrize("path", ["builtins:int", "builtins:abs"])
def test_an_engine_class_derives_from_engine(path):
    with (
        registered(Relu("toybackend:a"), kind="toy", engines={"toy": path}),
        pytest.raises(dnn.EngineUnavailable, match="its class must derive from Engine"),
    ):
        dnn.engine("toy")
