"""Finds the conditions of a source text, and adds calls that record their outcomes."""

from __future__ import annotations

import ast
from dataclasses import dataclass

__all__ = ["DECIDED", "Condition", "instrumented"]

DECIDED = "_dnncore_decided"  # the name of the recording function in instrumented modules


@dataclass(frozen=True)
class Condition:
    """A condition. path: relative to the root. line: counted from 1. text: on one line."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def instrumented(path: str, text: str) -> tuple[ast.Module, list[Condition]]:
    """The syntax tree with each condition as an argument of `DECIDED`, and the conditions.

    Conditions are the tests of `if`, `while`, conditional expressions and comprehensions, the
    operands of `and`, `or` and `not`, and comparisons. The last operand of a value such as `x or 1`
    is not a condition. The first argument of `DECIDED` is the number of the condition.
    """
    tracer = _Tracer(path, text)
    tree = tracer.visit(ast.parse(text))
    return ast.fix_missing_locations(tree), tracer.found


class _Tracer(ast.NodeTransformer):
    """Adds the recording calls. Skips annotations, assertions and `TYPE_CHECKING`."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.found: list[Condition] = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard:
            node.guard = self._decided(node.guard)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_If(self, node: ast.If | ast.While) -> ast.AST:
        node.test = self._decided(node.test)
        node.body = [self.visit(statement) for statement in node.body]
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    visit_While = visit_If

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self._decided(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter = self.visit(node.iter)
        node.ifs = [self._decided(test) for test in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        *conditions, last = node.values
        node.values = [*map(self._decided, conditions), self.visit(last)]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        is_not = isinstance(node.op, ast.Not)
        node.operand = self._decided(node.operand) if is_not else self.visit(node.operand)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._recorded(node)

    def _decided(self, node: ast.expr) -> ast.expr:
        """Record a tested expression. If it consists of several conditions, record these."""
        if isinstance(node, ast.BoolOp):
            node.values = [self._decided(value) for value in node.values]
            return node
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if is_not or isinstance(node, ast.Constant) or ast.unparse(node) == "TYPE_CHECKING":
            return self.visit(node)  # type: ignore[no-any-return]
        return self._recorded(node)

    def _recorded(self, node: ast.expr) -> ast.expr:
        text = " ".join((ast.get_source_segment(self.text, node) or "").split())
        number = ast.Constant(len(self.found))
        self.found.append(Condition(self.path, node.lineno, text))
        inner = self.generic_visit(node)
        call = ast.Call(ast.Name(DECIDED, ast.Load()), [number, inner], [])  # type: ignore[list-item]
        return ast.copy_location(call, node)
