"""The syntax trees of Python functions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Tree = ast.FunctionDef | ast.Lambda


def tree_of(function: Callable[..., Any]) -> Tree:
    """Return the syntax tree of a function or lambda.

    Raises `ValueError` if its first line has several with the same parameters.
    """
    code = function.__code__
    found = [
        each
        for each in _trees(code.co_filename).get(code.co_firstlineno, ())
        if parameters(each) == code.co_varnames[: code.co_argcount]
    ]
    if len(found) != 1:
        raise ValueError(f"{function} is not the only such function in its line")
    return found[0]


def body_of(tree: Tree) -> Sequence[ast.stmt]:
    """Return the statements of a function. A lambda returns its value."""
    return [ast.Return(tree.body)] if isinstance(tree, ast.Lambda) else tree.body


def parameters(tree: Tree) -> tuple[str, ...]:
    """Return the names of the parameters."""
    return tuple(each.arg for each in tree.args.args)


@functools.cache
def names_assigned_twice(tree: Tree) -> frozenset[str]:
    """Return the names that have several values: parameters are the first ones."""
    once, twice = set(parameters(tree)), set[str]()
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            (twice if each.id in once else once).add(each.id)
    return frozenset(twice)


def parsed(file: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(Path(file).read_text(encoding="utf-8"))


@functools.cache
def _trees(file: str) -> dict[int, list[Tree]]:
    """Return the functions of a file by the number of their first line, that of a decorator."""
    found: dict[int, list[Tree]] = {}
    for each in ast.walk(parsed(file)):
        if isinstance(each, ast.FunctionDef | ast.Lambda):
            decorators = getattr(each, "decorator_list", [])
            line = min([each.lineno, *(one.lineno for one in decorators)])
            found.setdefault(line, []).append(each)
    return found
