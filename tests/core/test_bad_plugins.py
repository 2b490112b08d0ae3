"""Plugins that return nonsense: each is reported, none wins, and the others go on."""

import inspect
import itertools
import math
import types
from contextlib import contextmanager

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Relu, plugin, registered, relu_op

import dnncore as dnn
from dnncore.backend import (
    API_VERSION,
    Accepted,
    Backend,
    Device,
    Engine,
    Executable,
    HostEngine,
    HostFunction,
    Knob,
    Peaks,
    Refused,
)
from dnncore.documents.docstrings import must_be_defined
from dnncore.selection import answers

CPU = dnn.engine("cpu")
_numbers = itertools.count()


class Strange(BaseException):
    """Neither an Exception nor SystemExit."""


class Liar:
    """An object that nobody can print or compare."""

    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    """A text that raises when it is compared."""

    def __eq__(self, other):
        raise SystemExit("equal")

    __hash__ = str.__hash__


def raising(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@contextmanager
def reported(match, name="toybackend"):
    """The block warns of the backend, and `dnncore backends` lists the reason."""
    with pytest.warns(dnn.PluginWarning, match=match):
        yield
    row = next(row for row in dnn.backends() if row.name == name)
    assert row.status == "failed"
    assert row.reason.isprintable()
    assert len(row.reason) < 20_000


def selected(op=None):
    """Select and run; the result is right whatever the bad plugin does."""
    op = op or relu_op()
    pd = dnn.PrimitiveDesc(op, CPU)
    values = np.linspace(-1, 1, math.prod(op.src.dims), dtype=np.float32).reshape(op.src.dims)
    src = dnn.Memory.from_numpy(values, engine=CPU)
    dst = dnn.Memory(pd.dst_desc, CPU)
    pd.primitive().execute(CPU.stream(), src=src, dst=dst).wait()
    np.testing.assert_array_equal(dst.numpy(), np.maximum(values, 0))
    return pd


# -- answers of accept -----------------------------------------------------------------------------

BAD_CLAIMS = [
    ("seconds", "x"),
    ("seconds", math.nan),
    ("seconds", math.inf),
    ("seconds", -1.0),
    ("seconds", 0),
    ("seconds", True),
    ("seconds", 1j),
    ("seconds", np.float32("nan")),
    ("efficiency", -1),
    ("efficiency", math.nan),
    ("efficiency", math.inf),
    ("efficiency", 0),
    ("efficiency", "fast"),
    ("efficiency", [0.5]),
    ("scratchpad_bytes", "a"),
    ("scratchpad_bytes", -5),
    ("scratchpad_bytes", 2.5),
    ("scratchpad_bytes", None),
    ("scratchpad_bytes", True),
    ("scratchpad_bytes", 1 << 70),
    ("error_factor", 0.5),
    ("error_factor", math.nan),
    ("error_factor", math.inf),
    ("error_factor", "1"),
    ("deterministic", "yes"),
    ("exact", 1),
    ("workspace", "abcd"),
    ("workspace", dnn.MemoryDesc((2, 2), "u8", "any")),
    ("build", None),
    ("build", Liar()),
    ("op", None),
    ("op", Liar()),
    ("notes", "compiles"),
    ("notes", ["fast"]),
    ("notes", 3),
    ("notes", [["compiles"]]),
    ("detail", None),
    ("detail", "a,b"),
    ("detail", "two\nlines"),
    ("detail", "long" * 100),
    ("knobs", "tile"),
    ("knobs", {"tile": 3}),
    ("knobs", (Knob("tile", 1, (1, 2), "of what"),)),  # without tune
    ("tune", lambda values: None),  # without knobs
    ("tune", 3),
]


def accepting(**changes):
    """An implementation that would win, with changes of its acceptance."""

    def accept(op):
        resolved = op.resolve_any(dst=op.src)
        fields = {"op": resolved, "build": bad.build, "seconds": 1e-12}
        return Accepted(**{**fields, **changes})

    bad = Relu("toybackend:bad", accept=accept)
    return bad


@pytest.mark.parametrize(("field", "value"), BAD_CLAIMS)
def test_a_bad_claim_is_a_refusal_and_does_not_win(field, value):
    changes = {"seconds": None} if field == "efficiency" else {}
    with registered(accepting(**changes, **{field: value}), Relu("toybackend:good", 99.0)):
        with reported(rf"toybackend:bad: accept returned a bad Accepted: {field} must"):
            pd = selected()
        refusal = next(r for r in pd.refusals if r.impl_name == "toybackend:bad")
    assert pd.impl_name == "toybackend:good"
    assert refusal.kind == "failed"
    assert f"toybackend:bad: failed: accept returned a bad Accepted: {field}" in pd.explain()


@pytest.mark.parametrize("claims", [{"efficiency": 0.5}, {"seconds": None}])
def test_an_acceptance_needs_one_estimate(claims):
    with registered(accepting(**claims)), reported("either efficiency or seconds must be given"):
        assert selected().impl_name != "toybackend:bad"


@pytest.mark.parametrize(
    "other",
    [
        lambda op: relu_op((4, 6), "ab"),
        lambda op: relu_op(op.src.dims, "ab", "square"),
        lambda op: relu_op(op.src.dims, "any"),
        lambda op: dnn.Sum(srcs=(op.src,), dst=op.src, scales=(1.0,)),
        lambda op: op.with_descs(src=op.src.with_format("ba"), dst=op.src),
        lambda op: op.with_descs(dst=op.src.with_format("ab"), alpha=3.0),
    ],
    ids=["dims", "algorithm", "unresolved", "operation", "given-format", "parameter"],
)
def test_another_operation_than_the_requested_one_is_a_refusal(other):
    bad: Relu = Relu(
        "toybackend:bad", accept=lambda op: Accepted(other(op), bad.build, seconds=1e-12)
    )
    with registered(bad), reported("toybackend:bad: accept (returned|left)"):
        assert selected().impl_name != "toybackend:bad"


class Lazy(Accepted):
    """Raises when a field is read."""

    @property
    def seconds(self):
        raise Strange("later")

    @seconds.setter
    def seconds(self, value):
        pass


@pytest.mark.parametrize(
    "accept",
    [
        raising(SystemExit(3)),
        raising(Strange("\x1b[31mred\x07" + "long " * 10_000)),
        raising(type("Mute", (Exception,), {"__str__": raising(ValueError())})()),
        lambda op: Liar(),
        lambda op: (yield),
        lambda op: Refused("shape", None),
        lambda op: Accepted,
    ],
    ids=["exit", "base", "mute", "liar", "generator", "reason", "class"],
)
def test_an_accept_that_does_something_else_is_a_refusal(accept):
    with registered(Relu("toybackend:bad", accept=accept)), reported("toybackend:bad: "):
        pd = selected()
    assert "toybackend:bad: failed: " in pd.explain()


def test_a_refusal_of_an_unknown_kind_is_a_refusal():
    with registered(Relu("toybackend:bad", refuse=("mood", "not today"))):
        (refusal,) = (r for r in selected().refusals if r.impl_name == "toybackend:bad")
    assert (refusal.kind, refusal.reason) == ("failed", "unknown kind 'mood': not today")


def test_a_long_reason_for_a_refusal_is_shortened_and_printable():
    with registered(Relu("toybackend:bad", refuse=("shape", "\x1b[2J" + "no" * 100_000))):
        (reason,) = (r.reason for r in selected().refusals if r.impl_name == "toybackend:bad")
    assert reason.isprintable()
    assert len(reason) < 5000


def test_the_users_interrupt_is_not_swallowed():
    asked = Relu("toybackend:bad", accept=raising(KeyboardInterrupt))
    built = Relu("toybackend:bad", 99.0, build=KeyboardInterrupt())
    with registered(asked), pytest.raises(KeyboardInterrupt):
        dnn.PrimitiveDesc(relu_op(), CPU)
    with registered(built), pytest.raises(KeyboardInterrupt):
        dnn.PrimitiveDesc(relu_op(), CPU).primitive()


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.fractions(),
    st.builds(np.float16, st.floats(width=16)),
    st.builds(np.array, st.floats()),
    st.builds(Liar),
    st.builds(object),
)
CLAIMS = ("efficiency", "seconds", "scratchpad_bytes", "deterministic", "exact", "error_factor")


@settings(deadline=None)  # other work on the machine slows it down
@given(st.dictionaries(st.sampled_from(CLAIMS), JUNK, min_size=1))
@pytest.mark.filterwarnings("ignore::dnncore.PluginWarning")
def test_whatever_is_claimed_the_best_candidate_has_sensible_numbers(claims):
    with registered(accepting(**claims), Relu("toybackend:good", 99.0)):
        pd = dnn.PrimitiveDesc(relu_op(), CPU)
        if pd.scratchpad_bytes < 1 << 30:  # more may be more than the machine has
            selected()
    assert 0 < pd.seconds < math.inf
    assert 0 <= pd.scratchpad_bytes < 1 << 62
    assert 1 <= pd.error_factor < math.inf


# -- builds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: None, "build returned None, not an Executable"),
        (lambda: Relu, "build returned <class .*Relu.*>, not an Executable"),
        (Liar, "build returned an object of type Liar, not an Executable"),
        (raising(SystemExit(1)), "it raised SystemExit: 1"),
        (raising(Strange("x")), "it raised Strange: x"),
    ],
    ids=["none", "class", "liar", "exit", "base"],
)
def test_a_build_without_an_executable_is_a_build_error_and_reported(build, match):
    with registered(accepting(build=build)):
        pd = dnn.PrimitiveDesc(relu_op(), CPU)
        with (
            reported(f"toybackend:bad: {match}"),
            pytest.raises(dnn.BuildError, match=rf"{match}.*skip_impl='toybackend:bad'"),
        ):
            pd.primitive()
        assert "backend toybackend: failed: toybackend:bad" in pd.explain()
        selected_without = dnn.PrimitiveDesc(relu_op(), CPU, skip_impl="toybackend:bad")
        selected_without.primitive()


class Unbound(Executable):
    def bind(self, memories, scratchpad):
        return None


def test_a_binding_that_returns_nothing_is_an_execution_error():
    with registered(accepting(build=Unbound)):
        primitive = dnn.PrimitiveDesc(relu_op(), CPU, impl="toybackend:bad").primitive()
        src, dst = (dnn.Memory(primitive.pd.descs[name], CPU) for name in ("src", "dst"))
        with pytest.raises(dnn.ExecutionError, match=r"toybackend:bad failed: .*NoneType"):
            primitive.execute(CPU.stream(), src=src, dst=dst)
        with pytest.raises(dnn.ExecutionError, match="bind returned NoneType, not a function"):
            primitive.bind(src=src, dst=dst)(CPU.stream())


def reshape(src, dst):
    np.reshape(src.numpy(), (-1, 7))  # raises in a file of numpy


def test_an_exception_has_the_file_and_line_of_the_plugin():
    with registered(accepting(build=lambda: HostFunction(reshape))):
        primitive = dnn.PrimitiveDesc(relu_op(), CPU, impl="toybackend:bad").primitive()
        src, dst = (dnn.Memory(primitive.pd.descs[name], CPU) for name in ("src", "dst"))
        place = rf"\(test_bad_plugins.py:{reshape.__code__.co_firstlineno + 1}\)$"
        with pytest.raises(dnn.ExecutionError, match=f"failed: ValueError: .*{place}"):
            primitive.execute(CPU.stream(), src=src, dst=dst)


def test_code_without_a_module_has_no_place():
    names = {"__name__": None}
    exec("def fail():\n    raise ValueError('no module')", names)
    del names["__name__"]
    with registered(accepting(build=names["fail"])):
        pd = dnn.PrimitiveDesc(relu_op(), CPU, impl="toybackend:bad")
        with pytest.raises(dnn.DnnError, match=r"ValueError: no module; skip it"):
            pd.primitive()


class Eventless(Executable):
    def __init__(self, returned):
        self.returned = returned

    def bind(self, memories, scratchpad):
        return lambda stream, wait_for: self.returned


@pytest.mark.parametrize(("returned", "got"), [(None, "None"), (7, "int"), (Liar(), "Liar")])
@pytest.mark.parametrize("verbose", ["none", "profile"])
@pytest.mark.parametrize("scratchpad_bytes", [0, 64])
def test_a_run_that_returns_no_event_is_an_execution_error(
    returned, got, verbose, scratchpad_bytes
):
    bad = accepting(build=lambda: Eventless(returned), scratchpad_bytes=scratchpad_bytes)
    with registered(bad), dnn.set_verbose(verbose):
        primitive = dnn.PrimitiveDesc(relu_op(), CPU, impl="toybackend:bad").primitive()
        memories = {name: dnn.Memory(primitive.pd.descs[name], CPU) for name in ("src", "dst")}
        bound = primitive.bind(**memories)
        for launch in (
            lambda stream: primitive.execute(stream, **memories),
            bound,
            dnn.Sequence([bound]),
        ):
            for stream in (CPU.stream(), CPU.stream(profiling=True)):
                message = rf"toybackend:bad failed: .*run returned {got}, not an Event"
                with pytest.raises(dnn.ExecutionError, match=message):
                    launch(stream)


# -- tables ----------------------------------------------------------------------------------------


class Unreadable(list):
    def __iter__(self):
        raise Strange("not today")


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (None, "must be a sequence of Implementation objects; got None"),
        (7, "got 7"),
        ("table", "got 'table'"),
        ({"a": 1}, "got {'a': 1}"),
        ((i for i in [Relu("toybackend:a")]), "got <generator"),
        (Relu("toybackend:a"), "got <toy.Relu"),
        (Unreadable(), "it raised Strange: not today"),
    ],
    ids=["none", "number", "text", "mapping", "generator", "one", "unreadable"],
)
def test_a_table_that_is_none_is_reported_and_the_others_compute(table, match, monkeypatch):
    name = f"SENSELESS_{next(_numbers)}"  # an object is loaded once
    monkeypatch.setattr(toy, name, table, raising=False)
    with registered(table=f"toy:{name}"), reported(match):
        pd = selected()
        assert "backend toybackend: failed: " in pd.explain()


@pytest.mark.parametrize(
    ("path", "match"),
    [("toy:MISSING", "has no attribute 'MISSING'"), ("exits_on_import:TABLE", "SystemExit")],
)
def test_a_table_that_cannot_be_loaded_is_reported(path, match, tmp_path, monkeypatch):
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit('bye')")
    monkeypatch.syspath_prepend(tmp_path)
    with registered(table=path), reported(match):
        selected()


def named(name, **fields):
    entry = Relu(name, 99.0)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


class Nameless(Relu):
    @property
    def name(self):
        raise Strange("none of your business")

    @name.setter
    def name(self, value):
        pass


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        (None, "must be an Implementation; got None"),
        (Relu, "must be an Implementation; got <class"),
        (Liar(), "must be an Implementation; got an object of type Liar"),
        (named(None), "its name must be a text such as 'toybackend:algorithm'; got None"),
        (named("reference:eltwise"), "got 'reference:eltwise'"),
        (named(Text("toybackend:bad")), "its name must be a text such as"),
        (named("toybackend:"), "got 'toybackend:'"),
        (named("toybackend:a,b"), "got 'toybackend:a,b'"),
        (named("toybackend:a b"), "got 'toybackend:a b'"),
        (named("toybackend:\x1b[31mred"), r"got 'toybackend:\\x1b\[31mred'"),
        (named("toybackend:" + "a" * 100_000), "characters"),
        (named("toybackend:good"), "the name 'toybackend:good' is taken"),
        (named("toybackend:bad", data_types=None), "data_types must contain names such as 'f32'"),
        (named("toybackend:bad", data_types="f32"), "data_types must contain"),
        (named("toybackend:bad", data_types=("f32", "f33")), "data_types must contain"),
        (named("toybackend:bad", takes_repeats="no"), "takes_repeats must be True or False"),
        (Nameless("x"), "it raised Strange"),
    ],
)
def test_a_bad_entry_of_a_table_is_left_out(entry, match):
    good, other = Relu("toybackend:good", 5.0), Relu("toybackend:other", 9.0)
    with registered(good, entry, other), reported(f"entry 1 is left out: .*{match}"):
        pd = selected()
        names = {p.impl_name for p in dnn.primitive_descs(relu_op(), CPU)}
    assert pd.impl_name == "toybackend:other"
    assert {"toybackend:good", "toybackend:other"} <= names
    assert "toybackend:bad" not in names


# -- backends --------------------------------------------------------------------------------------


class Moody(Backend):
    @property
    def engines(self):
        raise Strange("no engines on Mondays")


def backend(name="x", version=API_VERSION, **fields):
    return lambda: Backend(name, version, **fields)


BAD_BACKENDS = {
    "none": (lambda: None, "must return Backend objects; got None"),
    "generator": (lambda: (yield), "got generator"),
    "exit": (raising(SystemExit(0)), "SystemExit"),
    "base": (raising(Strange()), "Strange"),
    "no-name": (backend(None), "the name of a backend must be a string; got None"),
    "empty-name": (backend(""), "must have 1 to 100 letters"),
    "spaces": (backend("a b"), "got 'a b'"),
    "comma": (backend("a,b"), "got 'a,b'"),
    "colon": (backend("host:x"), "got 'host:x'"),
    "case": (backend("Reference"), "'Reference' is provided by dnncore"),
    "lookalike": (backend("r\u0435ference"), "in ASCII"),
    "subclass": (backend(Text("a b")), "got 'a b'"),
    "role-subclass": (backend(role=Text("reference")), "role 'reference' must be new"),
    "escape": (backend("a\x1b[2J"), "must have 1 to 100 letters"),
    "huge": (backend("a" * 10**6), "must have 1 to 100 letters"),
    "unhashable": (backend([]), r"must be a string; got \[\]"),
    "version-text": (backend(version="1.1.1"), "api_version must be the version"),
    "version-flag": (backend(version=True), "api_version must be the version"),
    "role": (backend(role=7), "role must be a string or None; got 7"),
    "role-taken": (backend(role="reference"), "'reference' must be new; it belongs to reference"),
    "engines": (backend(engines=None), "engines must be a mapping; got NoneType"),
    "kind": (backend(engines={1: "m:E"}), "an engine kind must be a string; got 1"),
    "kind-colon": (backend(engines={"k:0": "m:E"}), "an engine kind must have"),
    "class": (backend(engines={"k": HostEngine}), 'must be "module:attribute"; got <class'),
    "path": (backend(engines={"k": "module"}), "must be \"module:attribute\"; got 'module'"),
    "tables": (backend(implementations=[1]), "implementations must be a mapping; got list"),
    "key": (backend(implementations={"cpu": "m:T"}), "must be .engine kind, operation class."),
    "key-long": (
        backend(implementations={("cpu", dnn.EltwiseForward, 1): "m:T"}),
        "must be .engine kind, operation class.",
    ),
    "key-kind": (
        backend(implementations={(1, dnn.EltwiseForward): "m:T"}),
        "must be .engine kind, operation class.",
    ),
    "key-object": (backend(implementations={("cpu", "relu"): "m:T"}), "operation class"),
    "key-class": (backend(implementations={("cpu", int): "m:T"}), "operation class"),
    "table": (backend(implementations={("cpu", dnn.EltwiseForward): None}), "module:attribute"),
    "twice": (lambda: [Backend("x", 1), Backend("x", 1)], "backend 'x' is returned twice"),
    "kind-twice": (
        lambda: [Backend("x", 1, engines={"k": "m:E"}), Backend("y", 1, engines={"K": "m:E"})],
        "engine kind 'k' is returned twice",
    ),
    "one-bad": (lambda: [Backend("x", 1), None], "must return Backend objects; got NoneType"),
    "moody": (lambda: object.__new__(Moody), "."),
}


@pytest.mark.parametrize("name", BAD_BACKENDS)
def test_a_bad_backend_is_not_registered(name):
    returned, match = BAD_BACKENDS[name]
    before = {b.name for b in dnn.backends()}
    with pytest.raises(dnn.PluginError, match=match) as caught:
        dnn.register(plugin(returned))
    assert {b.name for b in dnn.backends()} == before
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 9000
    selected()


def test_a_plugin_that_is_registered_twice_stays_registered():
    module = plugin(lambda: Backend("x", API_VERSION))
    dnn.register(module)
    with pytest.raises(dnn.PluginError, match="is registered; unregister it first"):
        dnn.register(module)
    assert "x" in {b.name for b in dnn.backends()}
    dnn.unregister(module)
    assert "x" not in {b.name for b in dnn.backends()}


# -- engines ---------------------------------------------------------------------------------------


def engine_class(kind="toy", **members):
    return type("Bad", (HostEngine,), {"kind": kind, **members})


def lists(found):
    return classmethod(lambda cls: found)


def test_the_page_of_the_contract_and_the_loader_require_the_same_methods():
    members = {name: inspect.getattr_static(Engine, name) for name in vars(Engine)}
    shown = {name for name, member in members.items() if must_be_defined(member)}
    assert shown == set(answers.REQUIRED)


@contextmanager
def engine(found, monkeypatch):
    name = f"BAD_ENGINE_{next(_numbers)}"
    monkeypatch.setattr(toy, name, found, raising=False)
    with registered(Relu("toybackend:a"), kind="toy", engines={"toy": f"toy:{name}"}):
        yield


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (None, "its class must derive from Engine; got None"),
        (types.SimpleNamespace(kind="toy", devices=list), "its class must derive from Engine"),
        (engine_class("tuy"), "the attribute `kind` of its class must be 'toy'; got 'tuy'"),
        (
            type(
                "Half", (Engine,), {"kind": "toy", "allocate": None, "copy_in": None, "peaks": None}
            ),
            "must define devices, .*, stream; it lacks devices, copy_out, stream",
        ),
        (engine_class(devices=classmethod(raising(SystemExit(2)))), "SystemExit: 2"),
        (engine_class(devices=classmethod(raising(Strange("x")))), "Strange: x"),
        (engine_class(devices=lists(None)), "must return a sequence of Device objects; got None"),
        (engine_class(devices=lists("gpu")), "a sequence of Device objects; got 'gpu'"),
        (engine_class(devices=lists(d for d in [Device("a")])), "got <generator"),
        (engine_class(devices=lists([Device("a"), 7])), "must return Device objects; got 7"),
        (engine_class(devices=classmethod(lambda cls: [Device(None)])), "name must be a string"),
        (engine_class(devices=classmethod(lambda cls: [Device("a", limits=3)])), "be a mapping"),
    ],
)
def test_an_engine_kind_without_sensible_devices_is_reported(bad, match, monkeypatch):
    with engine(bad, monkeypatch):
        with reported(match):
            dnn.backends()
        row = next(row for row in dnn.devices() if row.name == "toy")
        assert row.status in ("failed", "unavailable")
        with pytest.raises(dnn.DnnError, match=match):
            dnn.engine("toy")
        with pytest.raises(dnn.DnnError):
            dnn.engine("no such device")
        assert dnn.engine("cpu") is CPU


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (engine_class(__init__=raising(SystemExit(4))), "SystemExit: 4"),
        (engine_class(__new__=lambda cls, index: 7), "must make an Engine; got 7"),
        (engine_class(__init__=raising(ZeroDivisionError("x"))), "ZeroDivisionError: x"),
    ],
)
def test_an_engine_that_cannot_be_made_is_an_error(bad, match, monkeypatch):
    with engine(bad, monkeypatch), pytest.raises(dnn.DnnError, match=match):
        dnn.engine("toy")


@pytest.mark.parametrize(
    ("peaks", "match"),
    [
        (raising(SystemExit(5)), "SystemExit: 5"),
        (lambda self: None, "engine toy:0: peaks must be a Peaks object; got None"),
        (lambda self: Peaks({}, 1e9, 0), "an entry for f32"),
        (lambda self: Peaks({"f32": math.nan}, 1e9, 0), "f32 must be a number above 0; got nan"),
        (lambda self: Peaks({"f32": 1e9}, "fast", 0), "bandwidth must be a number above 0"),
        (lambda self: Peaks({"f32": 1e9}, 1e9, -1), "launch must be a finite number"),
    ],
)
def test_an_engine_without_sensible_peaks_is_reported(peaks, match, monkeypatch):
    bad = engine(engine_class(peaks=property(peaks)), monkeypatch)
    with bad, reported(match), pytest.raises(dnn.NoImplementation, match=match):
        dnn.PrimitiveDesc(relu_op(), dnn.engine("toy"))
