"""Prints the plugin contract's names with parameters, one per line: `python contract_names.py`.

A new minor version gets a file `tests/data/contract/MAJOR.MINOR.txt` with this output.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from dnncore import backend


def names() -> Iterator[str]:
    """Yield the names of `dnncore.backend` and the members of its classes."""
    for name in sorted(backend.__all__):
        value = getattr(backend, name)
        yield _line(name, value)
        if inspect.isclass(value):
            for member in sorted(_members(value)):
                yield _line(f"{name}.{member}", inspect.getattr_static(value, member))


def _members(cls: type) -> set[str]:
    own = (base for base in cls.__mro__ if base.__module__.startswith("dnncore"))
    found = {name for base in own for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return {name for name in found if not name.startswith("_") and hasattr(cls, name)}


def _line(name: str, value: object) -> str:
    function = getattr(value, "__func__", value)
    if not callable(function):
        return name
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return name
    return f"{name}({', '.join(map(_parameter, parameters))})"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    has_default = parameter.default is not inspect.Parameter.empty
    return f"{stars.get(parameter.kind, '')}{parameter.name}{'=' if has_default else ''}"


if __name__ == "__main__":
    print(*names(), sep="\n")
