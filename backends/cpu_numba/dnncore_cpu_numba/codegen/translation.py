"""Translates tasks, which are Python functions, to LLVM IR.

Tasks use a small part of Python: assignments, `if`, `while`, `for` over `range` or a tuple,
`break`, `return`, numbers, tuples of them, records, and calls of functions that `task.py`,
`pointers.py` or `numbers_ir.py` declare. Called functions are inlined. What Python knows at the
translation, such as a global variable, is a constant. Branches on constants are resolved.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types as kinds

from dnncore_cpu_numba.codegen import call_typing, numbers_ir
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Record
from dnncore_cpu_numba.codegen.numbers_ir import Number, cast, number
from dnncore_cpu_numba.codegen.source import body_of
from dnncore_cpu_numba.codegen.variables import Variables, is_held
from dnncore_cpu_numba.codegen.vector_ir import I64

_FAST = ("fadd", "fsub", "fmul", "fdiv", "fcmp_ordered", "fcmp_unordered")


class _Builder(ir.IRBuilder):  # type: ignore[misc]  # llvmlite has no types
    """A builder whose operations of floats have the flags of the function that is translated."""

    fastmath: frozenset[str] = frozenset()

    def call(self, fn: Any, args: Any, *rest: Any, **options: Any) -> Any:
        if fn.function_type.return_type in (vir.F32, numbers_ir.F64):
            options["fastmath"] = sorted(self.fastmath)
        return super().call(fn, args, *rest, **options)


def _with_flags(name: str) -> Callable[..., Any]:
    plain = getattr(ir.IRBuilder, name)

    def emit(self: _Builder, *args: Any) -> Any:
        return plain(self, *args, flags=sorted(self.fastmath))

    return emit


for _name in _FAST:
    setattr(_Builder, _name, _with_flags(_name))


def translated(
    function: Callable[..., Any],
    arguments: Record,
    result: Any,
    fastmath: Collection[str],
    symbol: str,
) -> str:
    """Return the assembly of a module with a C function of 64-bit integers.

    arguments: the parameters. result: numba's type void or int64. Raises `CallMismatch`.
    """
    module = ir.Module(symbol)
    returned = ir.VoidType() if result is kinds.void else I64
    kind = ir.FunctionType(returned, [I64] * len(arguments.fields))
    outer = ir.Function(module, kind, symbol)
    builder = _Builder(outer.append_basic_block("entry"))
    values = [
        Number(vir.float_of(builder, slot) if field.kind == "float32" else slot,
               call_typing.kind_of(field.kind))
        for field, slot in zip(arguments.fields.values(), outer.args, strict=True)
    ]  # fmt: skip
    value = inlined(builder, function, fastmath, values)
    if result is kinds.void:
        builder.ret_void()
    else:
        builder.ret(cast(builder, value, result).value)
    return str(module)


@dataclass(frozen=True, eq=False)
class Inlined:
    """A Python function that tasks can call. fastmath: LLVM's flags of its operations of floats."""

    function: Any
    fastmath: frozenset[str]


def inlined(
    builder: _Builder,
    function: Callable[..., Any],
    fastmath: Collection[str],
    arguments: Sequence[Any],
) -> Any:
    """Emit the body of a function. Returns its value."""
    before = builder.fastmath
    builder.fastmath = frozenset(fastmath)
    try:
        return _Body(builder, function, arguments).value()
    finally:
        builder.fastmath = before


class _Body(Variables):
    """The translation of one call of a function."""

    def __init__(
        self, builder: _Builder, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        super().__init__(builder, function, arguments)
        self.returns: list[tuple[Any, Any]] = []  # block, value
        self.breaks: list[list[tuple[Any, dict[str, Any]]] | None] = []  # block, variables

    def value(self) -> Any:
        """Emit the body and return the function's value."""
        body = [*body_of(self.tree)]
        last = body[-1]
        self.statements(body[:-1])
        if not self.builder.block.is_terminated:
            value = None
            if isinstance(last, ast.Return):
                value = self.expression(last.value) if last.value else None
            else:
                self.statement(last)
        if not self.builder.block.is_terminated:
            if not self.returns:
                return value
            self.leave(value)
        return self.joined(self.returns)

    def leave(self, value: Any) -> None:
        """Return from the function."""
        self.returns.append((self.wait(), value))

    # -- statements --------------------------------------------------------------------------------

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Emit statements up to one that leaves the block."""
        for each in body:
            if self.builder.block.is_terminated:
                return
            self.statement(each)

    def statement(self, node: ast.stmt) -> None:
        """Emit a statement."""
        match node:
            case ast.Assign(targets, value):
                given = self.expression(value)
                for target in targets:
                    self.target(target, given)
            case ast.AugAssign(target, op, value):
                before = self.expression(ast.copy_location(_read(target), target))
                further = self.expression(value)
                self.target(target, numbers_ir.binary(self.builder, type(op), before, further))
            case ast.Expr(value):
                self.expression(value)
            case ast.If(test, body, other):
                self.branches(test, body, other)
            case ast.For(target, ast.Call(ast.Name("range"), args), body, []):
                self.counted(target, [self.expression(arg) for arg in args], body)
            case ast.For(target, items, body, []):
                self.breaks.append(None)
                for each in self.expression(items):
                    self.target(target, each)
                    self.statements(body)
                self.breaks.pop()
            case ast.While(test, body, []):
                self.loop(lambda: self.condition(test), lambda: self.statements(body))
            case ast.Return(value):
                self.leave(self.expression(value) if value else None)
            case ast.Break() if self.breaks[-1] is not None:
                self.breaks[-1].append((self.wait(), self.local))
            case ast.Pass():
                pass
            case _:
                raise CallMismatch(f"tasks cannot use {type(node).__name__}")

    def target(self, target: ast.expr, value: Any) -> None:
        """Assign a value."""
        match target:
            case ast.Name(name):
                self.assign(name, value)
            case ast.Attribute(base, name):
                call_typing.store_field(self.builder, number(self.expression(base)), name, value)
            case ast.Tuple(parts):
                for part, each in zip(parts, value, strict=True):
                    self.target(part, each)
            case _:
                raise CallMismatch(f"tasks cannot assign to {type(target).__name__}")

    def branches(self, test: ast.expr, body: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> None:
        """Emit `if`."""
        condition = self.condition(test)
        if isinstance(condition, bool):
            self.statements(body if condition else other)
            return
        names = ("then", "otherwise", "done")
        then, otherwise, done = map(self.builder.append_basic_block, names)
        self.builder.cbranch(condition, then, otherwise)
        before, ways = self.local, []
        for block, statements in ((then, body), (otherwise, other)):
            self.builder.position_at_end(block)
            self.local = dict(before)
            self.statements(statements)
            if not self.builder.block.is_terminated:
                ways.append((self.builder.block, self.local))
        self.continued(ways, done)
        if not ways:
            self.builder.unreachable()

    def counted(self, target: ast.expr, args: Sequence[Any], body: Sequence[ast.stmt]) -> None:
        """Emit a loop over a range. Steps that are no constants are positive."""
        builder = self.builder
        start, stop, step = (0, *args, 1)[-3:] if len(args) == 1 else (*args, 1)[:3]
        first, last, by = (cast(builder, each, kinds.int64).value for each in (start, stop, step))
        down = isinstance(step, int) and step < 0
        distance = builder.sub(first, last) if down else builder.sub(last, first)
        if step not in (1, -1):
            size = I64(-step) if down else by
            rest = builder.icmp_signed(">", builder.srem(distance, size), I64(0))
            distance = builder.add(builder.sdiv(distance, size), builder.zext(rest, I64))
        entering = builder.block
        left: list[Any] = []
        place: list[Any] = []

        def test() -> Any:
            for phis, value in ((left, distance), (place, first)):
                phis.append(builder.phi(I64))
                phis[0].add_incoming(value, entering)
            return builder.icmp_signed(">", left[0], I64(0))

        def turn() -> None:
            self.target(target, Number(place[0], kinds.int64))
            self.statements(body)
            if not builder.block.is_terminated:
                left[0].add_incoming(builder.sub(left[0], I64(1), flags=["nsw"]), builder.block)
                place[0].add_incoming(builder.add(place[0], by), builder.block)

        self.loop(test, turn)

    def loop(self, test: Callable[[], Any], turn: Callable[[], None]) -> None:
        """Emit a loop. `turn` emits the body, and must not change the kinds of variables."""
        head, body, done = map(self.builder.append_basic_block, ("head", "turn", "done"))
        self.builder.branch(head)
        before = self.local
        self.local = dict(before)
        self.breaks.append([])
        self.builder.position_at_end(head)
        condition = test()
        endless = condition is True
        if isinstance(condition, bool):
            condition = numbers_ir.BIT(int(condition))
        self.builder.cbranch(condition, body, done)
        self.builder.position_at_end(body)
        turn()
        if not self.builder.block.is_terminated:
            self.repeated(before)
            self.builder.branch(head)
        after, leaving = self.local, self.breaks.pop() or []
        for block, self.local in leaving:
            self.open_again(block)
            self.repeated(before)
            self.builder.branch(done)
        self.builder.position_at_end(done)
        self.local = {name: each for name, each in after.items() if is_held(each)} | before
        if endless and not leaving:
            self.builder.unreachable()

    # -- expressions -------------------------------------------------------------------------------

    def condition(self, node: ast.expr) -> Any:
        """Return whether an expression is true, as a constant or as a bit."""
        if isinstance(node, ast.BoolOp):
            value = self.short(isinstance(node.op, ast.And), node.values, self.condition)
        else:
            value = self.expression(node)
        if isinstance(value, Number):
            return numbers_ir.truth(self.builder, value).value
        return bool(value)

    def expression(self, node: ast.expr) -> Any:
        """Return the value of an expression: a number, a tuple, or what Python knows."""
        match node:
            case ast.Name(name):
                return self.name(name)
            case ast.Constant(value):
                return value
            case ast.BinOp(left, op, right):
                x, y = self.expression(left), self.expression(right)
                return numbers_ir.binary(self.builder, type(op), x, y)
            case ast.Attribute(base, name):
                return self.attribute(self.expression(base), name)
            case ast.Call():
                return self.call(node)
            case ast.Tuple(parts):
                return tuple(map(self.expression, parts))
            case ast.Compare(left, signs, others):
                return self.comparison(left, signs, others)
            case ast.IfExp(test, body, other):
                return self.choice(test, lambda: self.expression(body),
                                   lambda: self.expression(other))  # fmt: skip
            case ast.BoolOp(op, values):
                return self.short(isinstance(op, ast.And), values, self.bit)
            case ast.UnaryOp(op, operand):
                return numbers_ir.unary(self.builder, type(op), self.expression(operand))
            case ast.Subscript(base, place):
                return self.item(self.expression(base), self.expression(place))
        raise CallMismatch(f"tasks cannot use {type(node).__name__}")

    def attribute(self, base: Any, name: str) -> Any:
        """Return a field of a record, a method of one, or what a module contains."""
        if isinstance(base, Number):
            return call_typing.load_field(self.builder, base, name)
        if isinstance(base, Record):
            return call_typing.method(base, name)
        return getattr(base, name)

    def item(self, base: Any, place: Any) -> Any:
        """Return an item of a tuple, or as `call_typing.item`."""
        if not isinstance(base, tuple):
            return call_typing.item(self.builder, number(base), place)
        if not isinstance(place, Number):
            return base[place]
        kind = numbers_ir.common([number(each).kind for each in base])
        first, *others = (cast(self.builder, each, kind).value for each in base)
        for i, each in enumerate(others, 1):
            here = self.builder.icmp_signed("==", place.value, I64(i))
            first = self.builder.select(here, each, first)
        return Number(first, kind)

    def comparison(
        self, left: ast.expr, signs: Sequence[ast.cmpop], others: Sequence[ast.expr]
    ) -> Any:
        """Return the result of comparisons of neighbours. All values are computed."""
        values = [self.expression(each) for each in (left, *others)]
        results = [
            numbers_ir.compare(self.builder, type(sign), x, y)
            for sign, x, y in zip(signs, values, values[1:], strict=False)
        ]
        result = results[0]
        for each in results[1:]:
            result = numbers_ir.binary(self.builder, ast.BitAnd, result, each)
        return result

    def bit(self, node: ast.expr) -> Any:
        """Return the value of an expression that is a truth, as `condition`."""
        value = self.expression(node)
        if isinstance(value, Number) and value.kind is kinds.boolean:
            return value.value
        if not isinstance(value, bool):
            raise CallMismatch(f"operands of `and` and `or` are truths; got {ast.unparse(node)}")
        return value

    def short(
        self, every: bool, values: Sequence[ast.expr], take: Callable[[ast.expr], Any]
    ) -> Any:
        """Return the truth of `and` (every) or `or`. take: `condition` or `bit`."""
        first, *others = values
        condition = take(first)
        if isinstance(condition, bool):
            return self.short(every, others, take) if others and condition is every else condition
        if not others:
            return Number(condition, kinds.boolean)

        def rest() -> Any:
            return self.short(every, others, take)

        def settled() -> Any:
            return not every

        return self.chosen(condition, *((rest, settled) if every else (settled, rest)))

    def choice(self, test: ast.expr, *values: Callable[[], Any]) -> Any:
        """Return the first value if the test is true, else the second one."""
        condition = self.condition(test)
        if isinstance(condition, bool):
            return values[not condition]()
        return self.chosen(condition, *values)

    def chosen(self, condition: Any, *values: Callable[[], Any]) -> Any:
        """Return one of two values. Only this one is computed."""
        ways = [self.builder.append_basic_block(name) for name in ("yes", "no")]
        self.builder.cbranch(condition, *ways)
        results = []
        for block, value in zip(ways, values, strict=True):
            self.builder.position_at_end(block)
            result = value()
            results.append((self.wait(), result))
        return self.joined(results)

    def call(self, node: ast.Call) -> Any:
        """Return the value of a call."""
        function = self.expression(node.func)
        arguments = [self.expression(each) for each in node.args]
        named = {str(each.arg): self.expression(each.value) for each in node.keywords}
        if isinstance(function, Inlined) and not named:
            return inlined(self.builder, function.function, function.fastmath, arguments)
        emit = getattr(function, "emit", None) or numbers_ir.FUNCTIONS.get(function)
        if emit is None:
            raise CallMismatch(f"tasks cannot call {ast.unparse(node.func)}")
        return emit(self.builder, *arguments, **named)


def _read(target: ast.expr) -> ast.expr:
    """Return the expression that reads a target."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return target
