"""Programs of `valid_calls` with random mistakes.

A few expressions of a valid program are replaced, dropped, doubled or exchanged. A seed and an
index determine the changes, on every machine. The result is text, which reproduces the case.
"""

# ruff: noqa: ARG001, ISC004 - all changes take the same arguments; long texts in a table

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.testing.bad_input import valid_calls

__all__ = ["PROGRAMS", "mutation"]

PROGRAMS: dict[str, Callable[[], tuple[tuple[str, ...], ...]]] = {
    "described": valid_calls.described,
    "executed": valid_calls.executed,
}
WEIGHTS = {"described": (3, 2, 5, 1, 3), "executed": (1, 4, 3)}
OURS = ("inputs(pd)", "copies(arguments)", "event.wait()")  # part of the test code, not under test

# Expressions for places where other types or values belong.
STRANGERS = (
    "None", "True", "False", "0", "1", "-1", "2", "1.5", "-0.0", "float('nan')", "float('inf')",
    "1e39", "10**400", "2**31", "2**40", "2**63", "2**64", "-2**63", "1j", "...", "''", "'x'",
    "'any'", "'undef'", "'\\x00'", "b'f32'", "()", "[]", "{}", "{'src': 1}", "set()", "(None,)",
    "(1,) * 12", "(1,) * 13", "(2**31,)", "(2**40,) * 3", "(2**63, 2)", "(1.5, 2)", "range(3)",
    "iter([2, 3])", "object()", "int", "float", "dnn", "len", "lambda *a, **k: 0",
    "np.float32(2)", "np.float64('nan')", "np.int64(3)", "np.uint8(3)", "np.bool_(True)",
    "np.array(3)", "np.array([2, 3])", "np.array([[1.5]])", "np.array('f32')", "np.array([])",
    "np.str_('f32')", "np.dtype('f4')", "np.float32", "np.zeros(4, np.uint8)",
    "np.zeros((2, 3), 'f4')", "np.array(['a', None], object)",
    "dnn.MemoryDesc", "dnn.MemoryDesc.zero()", "dnn.MemoryDesc((2, 3))",
    "dnn.MemoryDesc((2, 3), 'f32', 'any')", "dnn.MemoryDesc((2, 3), 'u8', 'mine:packed', nbytes=8)",
    "dnn.MemoryDesc((1,) * 12)", "dnn.MemoryDesc((2**31, 2**31))", "dnn.MemoryDesc((2**40,) * 4)",
    "dnn.MemoryDesc((0, 3))", "dnn.MemoryDesc((4, 4), strides=(0, 0))",
    "dnn.MemoryDesc((4, 4), 's4')", "dnn.MemoryDesc((2, 3), offset0=2**40)",
    "dnn.Attributes()", "dnn.Attributes([dnn.PostOp.sum()])", "dnn.PostOp.sum(2.0)",
    "dnn.PostOp.eltwise('exp')", "dnn.Scales()", "dnn.Scales(1, (2, 1), 'bf16')",
    "dnn.ZeroPoints(3)", "{'src': dnn.Scales(2)}", "{'dst': dnn.ZeroPoints(0, (), 'u8')}",
    "dnn.Dropout()", "dnn.Attributes(rounding='stochastic')", "engine", "other",
    "engine.stream()", "other.stream()",
    "dnn.Event()", "[dnn.Event()]", "dnn.Memory(dnn.MemoryDesc((2, 3)), engine)",
    "dnn.Memory(dnn.MemoryDesc((2, 3)), other)", "engine.allocate(24)", "other.allocate(24)",
    "engine.allocate(2**50)", "dnn.PrimitiveDesc(dnn.EltwiseForward('forward_training', 'abs',"
    " src=dnn.MemoryDesc((2, 3)), dst=dnn.MemoryDesc((2, 3))), engine)",
)  # fmt: skip
INTEGERS = (
    "0", "1", "2", "3", "4", "5", "7", "8", "12", "13", "16", "17", "64", "-1", "-2", "2**15",
    "2**16", "2**31 - 1", "2**31", "2**32", "2**40", "2**62", "2**63 - 1", "2**63", "2**64",
    "10**30", "-2**31", "-2**63", "True", "1.0", "2.5", "np.int64(2)", "np.uint8(255)", "None",
)  # fmt: skip
NUMBERS = (
    "0", "-0.0", "1", "-1.0", "0.1", "1e-40", "1e-300", "3e38", "1e39", "1e300", "10**400", "2**63",
    "float('nan')", "float('inf')", "-float('inf')", "True", "np.float32(0.5)", "np.float64(2)",
    "np.float16(3)", "np.array(2.0)", "np.array([2.0])", "1j", "'0.5'", "None",
)  # fmt: skip
WORDS = (
    *DATA_TYPES, *ELTWISE, *BINARY,
    "nchw", "nhwc", "nChw8c", "nChw16c", "aBcd8b", "ABcd8a16b2a", "abc", "cba", "ab", "ba", "a",
    "x", "abx", "axb", "aBx16b", "any", "undef", "mine:packed", "mine:packed:1", "a:b:c:d", "oihw",
    "gOIhw4i16o4i", "OhwI32o", "aB", "A2a", "a0a", "A0a", "A1a", "AB99999999999a", "abcdefghijkl",
    "abcdefghijklm", "A8a8a8a8a8a8a8a", "aBcd4611686018427387904b", "\\N{GREEK SMALL LETTER MU}",
    "forward_training", "forward_inference", "backward", "max", "avg_include_padding",
    "avg_exclude_padding", "across_channels", "within_channel", "accurate", "log", "mean", "mul",
    "norm_lp_max", "norm_lp_power_p_sum", "logistic_use_dst_for_bwd", "round", "select", "user",
    "library", "strict", "ieee", "tf32", "relaxed", "stochastic", "environment", "src", "weights",
    "dst", "reference:*", "*:*", "[", "!", "*,", "cpu", "opencl:99",
    "in", "out", "r", "w",
)  # fmt: skip

Rng: TypeAlias = random.Random
Place: TypeAlias = tuple[ast.AST, tuple[str, int | None], ast.expr]  # parent, field and item, node


def mutation(level: str, seed: int, index: int) -> str:
    """Return program `index` in the endless list of a seed; `level` is a key of `PROGRAMS`."""
    rng = random.Random(f"{level}:{seed}:{index}")  # noqa: S311 - reproducible
    (group,) = rng.choices(PROGRAMS[level](), WEIGHTS[level])
    valid = rng.choice(group)
    donor = ast.parse(rng.choice(rng.choice(PROGRAMS[level]())))
    while True:
        tree = ast.parse(valid)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
            _mutate(rng, tree, donor)
        text = ast.unparse(ast.fix_missing_locations(tree))
        if text != ast.unparse(ast.parse(valid)) and _is_python(text):
            return text


def _is_python(text: str) -> bool:
    """Whether the text can be compiled. A call with a repeated keyword, for instance, cannot."""
    try:
        compile(text, "", "exec")
    except SyntaxError:
        return False
    return True


# -- one change -----------------------------------------------------------------------------------


def _mutate(rng: Rng, tree: ast.Module, donor: ast.AST) -> None:
    """Change one expression of the program in place."""
    places = list(_places(rng.choice([tree, *tree.body])))
    if not places:
        return
    places = rng.choice((places, places, _numbers(places), _described(places))) or places
    parent, name, node = rng.choice(places)
    change = rng.choice(_CHANGES[type(node)]) if places != _described(places) else _relaid
    changed = change(rng, node, donor)
    field = getattr(parent, name[0])
    if name[1] is None:
        setattr(parent, name[0], changed)
    else:
        field[name[1]] = changed


def _places(tree: ast.AST) -> Iterator[Place]:
    """Yield all expressions that may change."""
    if isinstance(tree, ast.Subscript | ast.BinOp):  # Python itself would compute 2 ** 2 ** 63
        return
    if _is_ours(getattr(tree, "value", None)):
        return
    for name, value in ast.iter_fields(tree):
        if name in ("func", "ctx", "targets", "op", "ops", "optional_vars"):
            if name == "func" and isinstance(value, ast.Attribute):
                yield from _places(value)  # the object whose method is called
            continue
        for place, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if type(node) in _CHANGES and getattr(node, "id", "") not in valid_calls.NAMES:
                yield tree, (name, place), node
            if isinstance(node, ast.AST):
                yield from _places(node)


def _numbers(places: list[Place]) -> list[Place]:
    """Return the innermost expressions. They are few, but changes of them have the most effect."""
    return [place for place in places if isinstance(place[2], ast.Constant | ast.Tuple)]


def _described(places: list[Place]) -> list[Place]:
    """Return the memory descriptors. With another layout, a program usually remains valid."""
    calls = [place for place in places if isinstance(place[2], ast.Call)]
    return [place for place in calls if ast.unparse(place[2]).startswith("dnn.MemoryDesc(")]


def _is_ours(node: Any) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node) in OURS


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _stranger(rng: Rng, node: ast.expr, donor: ast.AST) -> ast.expr:
    """Return an expression that does not fit here."""
    return _parsed(rng.choice(STRANGERS))


def _transplant(rng: Rng, node: ast.expr, donor: ast.AST) -> ast.expr:
    """Return an expression of another program, of the same kind if there is one."""
    found = [other for *_, other in _places(donor)]
    alike = [other for other in found if type(other) is type(node)]
    return copy.deepcopy(rng.choice(alike or found or [node]))


def _constant(rng: Rng, node: ast.expr, donor: ast.AST) -> ast.expr:
    """Return another number or word."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str):
        long = len(value) > 40
        return ast.Constant(_garbled(rng, value) if long or rng.random() < 0.3 else _word(rng))
    if isinstance(value, float):
        return _parsed(rng.choice(NUMBERS))
    if isinstance(value, int) and rng.random() < 0.4:
        return ast.Constant(value + rng.choice((-1, 1, 2)))
    return _parsed(rng.choice(INTEGERS))


def _word(rng: Rng) -> str:
    return str(rng.choice(WORDS))


def _garbled(rng: Rng, text: str) -> str:
    """Return the text with a character, number or word dropped, doubled or replaced."""
    unit = rng.choice(("character", "number", "word"))
    parts = list(text) if unit == "character" else _split(text, unit)
    places = [i for i, part in enumerate(parts) if part.strip()] or [0]
    if unit == "number":
        places = [i for i in places if parts[i].isdecimal()] or places
    place = rng.choice(places)
    parts = parts or [""]
    replaced = {
        "character": rng.choice("abx019:=-+@.,_ \"'n#\\\u00b5\u0663"),
        "number": str(rng.choice((0, -1, 2**31, 2**40, 2**63, 10**30, "1e5", "nan", "1.5", ""))),
        "word": rng.choice((_word(rng), f"--{_word(rng)}", "--reset", "--dt=f99", "--alg=", "--")),
    }[unit]
    parts[place] = rng.choice(("", parts[place] * 2, replaced, replaced))
    return "".join(parts)


def _split(text: str, unit: str) -> list[str]:
    return re.split(r"(\d+)" if unit == "number" else r"([ =:+_]+)", text)


def _sequence(rng: Rng, node: Any, donor: ast.AST) -> ast.expr:
    """Return a tuple or list with an element added, removed, moved or of another type."""
    items = list(node.elts)
    place = rng.randrange(len(items) + 1)
    way = rng.choice(("drop", "double", "turn", "insert", "swap", "numpy", "list", "iterator"))
    if way == "drop" and items:
        del items[place % len(items)]
    elif way == "double" and items:
        items.insert(place, copy.deepcopy(items[place % len(items)]))
    elif way == "insert":
        items.insert(place, _parsed(rng.choice(INTEGERS)))
    elif way == "swap" and len(items) > 1:
        items[0], items[-1] = items[-1], items[0]
    elif way == "turn":
        items = items[::-1]
    made: ast.expr = type(node)(elts=items, ctx=ast.Load())
    wrapper = {"numpy": "np.array", "list": "list", "iterator": "iter"}.get(way)
    return ast.Call(func=_parsed(wrapper), args=[made], keywords=[]) if wrapper else made


def _arguments(rng: Rng, node: Any, donor: ast.AST) -> ast.expr:
    """Return a call with an argument missing, doubled, renamed, exchanged or added."""
    call: ast.Call = copy.deepcopy(node)
    way = rng.choice(("drop", "drop", "double", "rename", "exchange", "add", "position"))
    keywords = [k for k in call.keywords if k.arg]
    if way == "position":
        call.args.insert(rng.randrange(len(call.args) + 1), _parsed(rng.choice(STRANGERS)))
    elif way == "double" and call.args:
        call.args.append(copy.deepcopy(rng.choice(call.args)))
    elif way == "exchange" and len(keywords) > 1:
        a, b = rng.sample(keywords, 2)
        a.value, b.value = b.value, a.value
    elif way == "exchange" and len(call.args) > 1:
        call.args[0], call.args[-1] = call.args[-1], call.args[0]
    elif way == "rename" and keywords:
        taken = {k.arg for k in keywords}
        names = sorted({k.arg for k in _keywords(donor)} - taken) or ["src"]
        rng.choice(keywords).arg = rng.choice(names)
    elif way == "add":
        values = {k.arg: k.value for k in _keywords(donor)}
        for keyword in keywords:
            values.pop(keyword.arg, None)
        if values:
            name = rng.choice(sorted(values))
            call.keywords.append(ast.keyword(arg=name, value=copy.deepcopy(values[name])))
    elif call.args or call.keywords:
        place = rng.randrange(len(call.args) + len(call.keywords))
        if place < len(call.args):
            del call.args[place]
        else:
            del call.keywords[place - len(call.args)]
    return call


def _keywords(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg]


def _relaid(rng: Rng, node: Any, donor: ast.AST) -> ast.expr:
    """Return a call of MemoryDesc with another layout of its dims; others as `_arguments`."""
    dims = node.args[0] if node.args else None
    if not (ast.unparse(node.func) == "dnn.MemoryDesc" and isinstance(dims, ast.Tuple)):
        return _arguments(rng, node, donor)
    call: ast.Call = copy.deepcopy(node)
    letters = list("abcdefghijkl"[: len(dims.elts)])
    rng.shuffle(letters)
    tag = "".join(letters)
    if rng.random() < 0.4:
        dim, size = rng.randrange(len(letters)), rng.choice((2, 4, 8, 16))
        tag = tag.replace(letters[dim], letters[dim].upper()) + f"{size}{letters[dim]}"
    if len(call.args) == 1:
        call.args.append(ast.Constant("f32"))
    call.args[2:] = [ast.Constant(rng.choice((tag, tag, tag, "any", None)))]
    if rng.random() < 0.3:
        call.keywords.append(ast.keyword(arg="offset0", value=_parsed(rng.choice(INTEGERS))))
    if rng.random() < 0.3:
        steps = [rng.choice((0, 1, 2, 8, 40, 200, 1000, 2**40)) for _ in letters]
        call.keywords.append(ast.keyword(arg="strides", value=_parsed(f"({steps})")))
    return call


def _entries(rng: Rng, node: Any, donor: ast.AST) -> ast.expr:
    """Return a dict with an entry missing, added or renamed, or with two entries exchanged."""
    made: ast.Dict = copy.deepcopy(node)
    way = rng.choice(("drop", "add", "rename", "exchange", "share"))
    if not made.keys:
        return made
    a, b = (rng.randrange(len(made.keys)) for _ in range(2))
    if way == "drop":
        del made.keys[a], made.values[a]
    elif way == "add":
        made.keys.append(
            ast.Constant(rng.choice(("src", "dst", "bias", "scratchpad", "workspace")))
        )
        made.values.append(copy.deepcopy(made.values[a]))
    elif way == "rename":
        made.keys[a] = ast.Constant(rng.choice(("src", "weights", "post_op_0_src", "src99", "")))
    elif way == "exchange":
        made.values[a], made.values[b] = made.values[b], made.values[a]
    else:  # one memory for two arguments
        shared = ast.NamedExpr(ast.Name("shared", ast.Store()), made.values[a])
        made.values[a] = shared
        made.values[(a + 1) % len(made.keys)] = ast.Name("shared", ast.Load())
        if len(made.keys) == 1:
            made.values[0] = shared
    return made


Change: TypeAlias = Callable[[Rng, Any, ast.AST], ast.expr]
_CHANGES: dict[type[ast.AST], tuple[Change, ...]] = {
    ast.Constant: (_constant, _constant, _constant, _stranger, _transplant),
    ast.Tuple: (_sequence, _sequence, _stranger, _transplant),
    ast.List: (_sequence, _sequence, _stranger, _transplant),
    ast.Call: (_arguments, _arguments, _relaid, _relaid, _stranger, _transplant),
    ast.Name: (_stranger, _transplant),
    ast.Attribute: (_stranger, _transplant),
    ast.Dict: (_entries, _entries, _entries, _stranger),
    ast.UnaryOp: (_stranger,),
    ast.BinOp: (_stranger,),
}
