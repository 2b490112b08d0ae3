"""Records: a value, an argument or a field that differs from the declaration is an error."""

import ast
from pathlib import Path

import numpy as np
import pytest

import dnncore as dnn
from dnncore.store import DiskStore

pytest.importorskip("numba")

import dnncore_cpu_numba
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import (
    Arg,
    CallMismatch,
    Many,
    Pointer,
    Record,
    Scratch,
    Table,
)
from dnncore_cpu_numba.codegen.pointers import store_f32, store_i64
from dnncore_cpu_numba.codegen.task import native_function, task
from dnncore_cpu_numba.runtime.program import Program, Step

POINT = Record("point", ("x y", "elements"))
PARAMS = Record(
    "params",
    ("dst", "address"),
    ("scale", "float32", "of everything"),
    ("count", "count"),
    ("first", POINT),
    ("table", Pointer(POINT)),
    ("sizes", Many("bytes", 2)),
    ("points", Many(POINT)),
)
VALUES = {
    "dst": Arg(0), "scale": 0.5, "count": 3, "first": {"x": 1, "y": 2},
    "table": Table(np.zeros((4, 2), np.int64)), "sizes": [5, 6],
    "points": [{"x": 7, "y": 8}, {"y": 10, "x": 9}],
}  # fmt: skip
CALL = Record("call", ("dst", "address"), ("factor", "float32"), ("count", "count"))


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """These functions are no part of the backend, whose sources are the key of the real store."""
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "_store", DiskStore("cpu_numba"))


def without(name):
    return {key: value for key, value in VALUES.items() if key != name}


# -- packing ---------------------------------------------------------------------------------------


def test_values_are_packed_in_the_declared_order():
    shuffled = dict(reversed(VALUES.items()))
    bits = 0x3F000000
    assert PARAMS.pack(shuffled) == [Arg(0), bits, 3, 1, 2, VALUES["table"], 5, 6, 7, 8, 9, 10]
    assert [PARAMS.field(name).slot for name in ("dst", "count", "first", "points")] == [0, 2, 3, 8]
    assert POINT.table([{"x": 1, "y": 2}, {"y": 4, "x": 3}]).tolist() == [[1, 2], [3, 4]]
    columns = {"y": np.array([2, 4]), "x": np.array([1, 3])}
    assert POINT.columns(columns).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (without("scale"), "params has the fields dst, .*missing: scale, unknown: none"),
        (VALUES | {"size": 1}, "missing: none, unknown: size"),
        (VALUES | {"count": Scratch(64)}, "params: count: expected count; got Scratch"),
        (VALUES | {"count": 3.0}, "params: count: expected count; got 3.0"),
        (VALUES | {"scale": Arg(0)}, "params: scale: expected float32"),
        (VALUES | {"dst": 0.5}, "params: dst: expected address; got 0.5"),
        (VALUES | {"first": [1, 2]}, "params: first: expected the fields of point"),
        (VALUES | {"first": {"x": 1}}, "params: first: point has .*missing: y"),
        (VALUES | {"sizes": [5]}, "params: sizes: expected 2 values; got 1"),
        (VALUES | {"sizes": 5}, "params: sizes: expected several, each bytes"),
        (VALUES | {"table": Table(np.zeros(3, np.int64))}, "table: point has 2 slots; got shape"),
        (VALUES | {"table": Arg(0)}, "params: table: expected the address of point"),
    ],
)
def test_other_values_are_errors(values, message):
    with pytest.raises(CallMismatch, match=message):
        PARAMS.pack(values)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("x x", "count")], "two fields 'x'"),
        ([("x", "number")], "a unit is one of address, .*got 'number'"),
        ([("x", Many("number"))], "a unit is one of address, .*got 'number'"),
        ([("x", Many("count")), ("y", "count")], "no fixed size"),
        ([("x", Many(PARAMS, 2)), ("y", "count")], "no fixed size"),
    ],
)
def test_wrong_declarations_are_errors(groups, message):
    with pytest.raises(CallMismatch, match=message):
        Record("wrong", *groups)


def test_a_step_packs_what_its_task_declares():
    @task(CALL)
    def fill(params, begin, end):
        pass

    assert Step(fill, {"count": 2, "dst": Arg(1), "factor": 0}, 1).params == [Arg(1), 0, 2]
    assert Step(fill, {}, 0).params == ()
    with pytest.raises(CallMismatch, match="missing: dst, factor, unknown: source"):
        Step(fill, {"count": 2, "source": 3}, 1)


# -- tasks -----------------------------------------------------------------------------------------


@native_function(CALL)
def fill_all(dst, factor, count):
    for i in range(count):
        store_f32(dst, i, factor)


FULL = Record(
    "full",
    ("function dst", "address"),
    ("factor", "float32"),
    ("row", POINT),
    ("rows", Pointer(POINT)),
    ("sizes", Many("count", 2)),
)


WITH_ROW = Record("with row", ("row", Pointer(POINT)))


@task(FULL)
def fill_through_a_call(params, begin, end):
    row = POINT.room()
    row.x = params.row.y + params.rows[1].x + params.sizes[1]
    CALL.call(params.function, count=row.x, dst=params.dst, factor=params.factor)


def test_a_task_reads_and_calls_by_name():
    values = {
        "function": fill_all.address, "dst": Arg(0), "factor": 2.5, "row": {"x": 100, "y": 1},
        "rows": Table(POINT.table([{"x": 100, "y": 100}, {"x": 2, "y": 100}])), "sizes": [100, 3],
    }  # fmt: skip
    engine = dnn.engine("cpu")
    dst = dnn.Memory.from_numpy(np.zeros(8, np.float32), engine=engine)
    Program(lambda: [Step(fill_through_a_call, values, 1)], 1).bind([dst], None)(engine.stream())
    assert dst.numpy().tolist() == [2.5] * 6 + [0.0] * 2


def unknown_field(params, begin, end):
    store_i64(params.dst, begin, params.size)


def unknown_store(params, begin, end):
    params.size = 3


def unknown_argument(params, begin, end):
    CALL.call(params.function, dst=params.dst, factor=params.factor, count=1, more=2)


def missing_argument(params, begin, end):
    CALL.call(params.function, dst=params.dst, count=1)


def positional_argument(params, begin, end):
    CALL.call(params.function, params.dst, factor=params.factor, count=1)


def argument_of_another_type(params, begin, end):
    CALL.call(params.function, dst=params.dst, factor=1, count=1)


def address_of_another_record(params, begin, end):
    WITH_ROW.call(params.function, row=params)


def field_of_numbers(params, begin, end):
    store_i64(params.dst, begin, params.sizes.x)


def item_of_a_number(params, begin, end):
    store_i64(params.dst, begin, params.dst[0])


def unknown_method(params, begin, end):
    CALL.fill(params.function)


def stored_as_another_type(params, begin, end):
    params.rows = params.row.x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unknown_field, "full has no 'size'; it has function, dst, factor, row, rows, sizes"),
        (unknown_store, "full has no 'size'"),
        (unknown_argument, "call has the fields dst, factor, count; missing: none, unknown: more"),
        (missing_argument, "missing: factor, unknown: none"),
        (positional_argument, r"call is called with \(address, name=value, ...\)"),
        (argument_of_another_type, "call: factor is float32; got"),
        (address_of_another_record, "with row: row is address of point; got address of full"),
        (field_of_numbers, r"Unknown attribute 'x' of type address of sizes of full"),
        (item_of_a_number, "int64 has no items"),
        (unknown_method, "Unknown attribute 'fill' of type record call"),
        (stored_as_another_type, "expected address of point; got int64"),
    ],
)
def test_other_uses_fail_when_a_task_is_compiled(function, message):
    with pytest.raises(dnn.BuildError, match=message):
        _ = task(FULL)(function).address


def test_a_functions_parameters_are_the_fields_in_order():
    with pytest.raises(CallMismatch, match=r"call has \['dst', 'factor', 'count'\]; got \['dst',"):

        @native_function(CALL)
        def swapped(dst, count, factor):
            pass


# -- LLVM IR ---------------------------------------------------------------------------------------


def text_of(emit):
    return vir.function_text("kernel", CALL, emit)


def test_a_kernel_has_a_slot_for_each_argument():
    assert 'void @"kernel"(i64 %".1", i64 %".2", i64 %".3")' in text_of(lambda *_: None)


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (lambda b, args: args["size"], "call has no 'size'; it has dst, factor, count"),
        (lambda b, args: vir.field(b, vir.address(b, args["dst"]), POINT, "z"), "point has no 'z'"),
        (lambda b, args: vir.call(b, args["dst"], CALL, dst=0, factor=1.0), "missing: count"),
        (
            lambda b, args: vir.call(b, args["dst"], CALL, dst=0, factor=1.0, count=0.5),
            "call: count: expected count; got 0.5",
        ),
        (
            lambda b, args: vir.call(b, args["dst"], CALL, dst=0, factor=1.0, count=1, size=2),
            "unknown: size",
        ),
    ],
)
def test_other_uses_fail_when_a_kernel_is_emitted(emit, message):
    with pytest.raises(CallMismatch, match=message):
        text_of(emit)


# -- the backend -----------------------------------------------------------------------------------


def test_no_slots_are_numbered_by_hand():
    """No `A, B, ... = range(NUMBER)`, and no `load_i64(place, NUMBER)` but the first."""
    sources = sorted(Path(dnncore_cpu_numba.__file__).parent.rglob("*.py"))
    assert sources
    found = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if _unpacks_range(node) or _has_literal_slot(node)
    ]
    assert found == []


def test_numbered_slots_are_found():
    for text in ("A, B = range(2)", "A = B, C = range(2)"):
        assert _unpacks_range(ast.parse(text).body[0])
    assert _has_literal_slot(ast.parse("load_i64(params, 3)").body[0].value)


def _unpacks_range(node):
    match node:
        case ast.Assign(
            targets=targets, value=ast.Call(func=ast.Name("range"), args=[ast.Constant()])
        ):
            return any(isinstance(target, ast.Tuple) for target in targets)
    return False


def _has_literal_slot(node):
    match node:
        case ast.Call(func=ast.Name("load_i64" | "store_i64"), args=[_, ast.Constant(slot), *_]):
            return slot != 0  # 0 is the only element of a number
    return False
