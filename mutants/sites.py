"""Places in source texts where an operator, a constant or a condition can be replaced."""

from __future__ import annotations

import ast
import bisect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Site", "c_sites", "python_sites"]

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
# In a choice between two values, both are often equal at the border. So the choice is reversed.
REVERSED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "+"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
NEUTRAL = {ast.And: "True", ast.Or: "False"}  # replaces one of several conditions
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
    "maximum": "minimum", "fmin": "fmax", "fmax": "fmin", "floor": "ceil", "ceil": "floor",
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """One mutant: the text from `start` to `end` of the file is replaced by `new`.

    path: relative to the root of the source. line: counted from 1. where: the names of the
    enclosing classes and functions, with dots; functions end with "()".
    """

    path: str
    line: int
    where: str
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """The text of the mutated file."""
        assert text[self.start : self.end] == self.old
        return text[: self.start] + self.new + text[self.end :]


# -- Python ----------------------------------------------------------------------------------------


def python_sites(path: str, text: str, is_left_out: Callable[[str, ast.AST], bool]) -> list[Site]:
    """The sites of a Python file, in the order of the text.

    is_left_out(where, node): whether a node and its parts are not mutated.
    """
    return sorted(_Finder(path, text, is_left_out).found, key=lambda site: (site.start, site.new))


class _Finder(ast.NodeVisitor):
    """Collects the sites of a module. Annotations, decorators and messages are left out."""

    def __init__(self, path: str, text: str, is_left_out: Callable[[str, ast.AST], bool]) -> None:
        self.path = path
        self.text = text
        self.is_left_out = is_left_out
        self.where: tuple[str, ...] = ()
        self.chooses = False  # whether the visited node is in the condition of a choice
        self.found: list[Site] = []
        self._lines = text.split("\n")
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in self._lines)]
        self.visit(ast.parse(text))

    def visit(self, node: ast.AST) -> None:
        if not self.is_left_out(".".join(self.where), node):
            super().visit(node)

    def _within(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        is_function = isinstance(node, ast.FunctionDef)
        outer, self.where = self.where, (*self.where, f"{node.name}{'()' * is_function}")
        is_left_out = self.is_left_out(".".join(self.where), node)
        for child in () if is_left_out else node.body:
            self.visit(child)
        self.where = outer
        if is_function and not is_left_out:
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default:
                    self.visit(default)

    visit_FunctionDef = _within
    visit_ClassDef = _within

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions: tests do not rely on them."""

    visit_Raise = visit_Assert

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add_c(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value, start = node.value, self._start(node)
        if isinstance(value, bool):
            self._add(node, start, self._end(node), str(not value))
        elif isinstance(value, int):
            self._add(node, start, self._end(node), str(value + 1))
        elif isinstance(value, float):
            self._add(node, start, self._end(node), repr(value * 2 if value else 1.0))
        elif isinstance(value, str):
            self._add_c(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = (node.left, *node.comparators)
        for i, operator in enumerate(node.ops):
            old, new = COMPARISONS[type(operator)]
            new = REVERSED.get(old, new) if self.chooses else new
            self._operator(operands[i], operands[i + 1], old, new)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.chooses = True
        self.visit(node.test)
        self.chooses = False
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Call(self, node: ast.Call) -> None:
        self.chooses = getattr(node.func, "attr", "") == "where"
        self.generic_visit(node)
        self.chooses = False

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC:
            self._operator(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self._operator(node.target, node.value, f"{old}=", f"{new}=")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(left, right, *BOOLEAN[type(node.op)])
        for value in node.values:
            if not self.is_left_out(".".join(self.where), value):
                self._add(value, self._start(value), self._end(value), NEUTRAL[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        signs = {ast.USub: "-", ast.Not: "not"}
        if type(node.op) in signs:
            start = self._start(node)
            self._add(node, start, start + len(signs[type(node.op)]), "")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in NAMES and isinstance(node.ctx, ast.Load):
            self._add(node, self._start(node), self._end(node), NAMES[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NAMES and isinstance(node.ctx, ast.Load):
            end = self._end(node)
            self._add(node, end - len(node.attr), end, NAMES[node.attr])
        self.generic_visit(node)

    def _operator(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Find an operator between its operands, where parentheses and comments may surround it."""
        start, end = self._end(left), self._start(right)
        gap = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self.text[start:end])
        place = re.search(rf"(?<![\w*/<>=!]){re.escape(old)}(?![\w*/<>=])", gap)
        if place:
            self._add(left, start + place.start(), start + place.end(), new)

    def _add(self, node: ast.AST, start: int, end: int, new: str) -> None:
        old = self.text[start:end]
        if old != new:
            line = bisect.bisect(self._starts, start)
            self.found.append(Site(self.path, line, ".".join(self.where), start, end, old, new))

    def _add_c(self, node: ast.AST) -> None:
        """Add the sites of a string with C statements. Fields in braces are left out."""
        start, end = self._start(node), self._end(node)
        where = ".".join(self.where)
        text = self.text[start:end].replace('"', " ")
        text = re.sub(r"{[^{}]*}", lambda braces: "_" * len(braces[0]), text)
        if text.startswith("  ") or not _is_c(text):
            return  # a docstring or plain text
        for site in c_sites(self.path, text, where):
            line = bisect.bisect(self._starts, start + site.start)
            place = start + site.start, start + site.end
            self.found.append(Site(self.path, line, where, *place, site.old, site.new))

    def _start(self, node: ast.AST) -> int:
        return self._index(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._index(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _index(self, line: int, column: int) -> int:
        """The index in the text. The module ast counts columns in bytes of UTF-8."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)


def _is_c(text: str) -> bool:
    return ";" in text and re.search(r"\w \S?= \S|return ", text) is not None


# -- OpenCL C --------------------------------------------------------------------------------------

C_OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "+", "/": "*", "%": "+", "+=": "-=", "-=": "+=", "<<": ">>",
    ">>": "<<",
}  # fmt: skip
C_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\#\s*(?:if|elif|else|endif|ifdef|ifndef|error
        |pragma|undef|include)[^\n]*|\#\s*define\s+\w+|_Pragma\([^)]*\)|__attribute__\(\(.*?\)\))
    |(?P<number>(?<![\w.])(?:\d+\.\d*(?:[eE][+-]?\d+)?[fF]?|\d+[uU]?)(?![\w.]))
    |(?P<name>[A-Za-z_]\w*)
    |(?<=\s)(?P<operator><=|>=|==|!=|&&|\|\||<<|>>|\+=|-=|[-+*/%<>])(?=\s)""",
    re.VERBOSE | re.DOTALL,
)


# A type, then an array: `int first[2], last[2];`
DECLARED_ARRAYS = re.compile(
    r"^ *(?:(?:__local|__private|const) )*(?!return\b)[A-Za-z]\w* \w+\[.*", re.MULTILINE
)


def _array_sizes(text: str) -> set[int]:
    """The indices at which the sizes of declared arrays begin."""
    return {
        line.start() + size.start(1)
        for line in DECLARED_ARRAYS.finditer(text)
        for size in re.finditer(r"\[(\d+)\](?=[,;])", line[0])
    }


def c_sites(path: str, text: str, where: str = "") -> Iterator[Site]:
    """The sites of a text in OpenCL C. Directives that select a variant of the code are left out.

    Only operators between spaces count as binary operators. Sizes of declared arrays are left out,
    because larger arrays have no effect.
    """
    sizes = _array_sizes(text)
    for token in C_TOKEN.finditer(text):
        old, kind = token[0], token.lastgroup
        new = old
        if kind == "operator":
            new = C_OPERATORS[old]
            if re.match(r"\s*-?\d+\.\d*f?\b", text[token.end() :]):  # compares real numbers
                new = REVERSED.get(old, new)
        elif kind == "name":
            new = NAMES.get(old, old)
        elif kind == "number" and token.start() not in sizes:
            new = _other_number(old)
        if new != old:
            line = text.count("\n", 0, token.start()) + 1
            yield Site(path, line, where, token.start(), token.end(), old, new)


def _other_number(old: str) -> str:
    digits = old.rstrip("fFuU")
    suffix = old[len(digits) :]
    if re.fullmatch(r"\d+", digits):
        return f"{int(digits) + 1}{suffix}"
    return f"{float(digits) * 2 if float(digits) else 1.0!r}{suffix}"
