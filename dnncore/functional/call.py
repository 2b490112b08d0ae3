"""One call: takes arrays of any kind, runs the operation and returns an array of this kind.

A function of this package is a plan: it makes the operation of its inputs' shapes and types and of
its options. What a plan gives is kept per signature, with the compiled primitive. So a later call
with the same signature selects nothing and makes no descriptor. It makes memories over its inputs
and over a new result, and launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.attributes import PostOp
from dnncore.cache import MemoryCache
from dnncore.engines.array_kinds import ArrayKind, DeviceArrays
from dnncore.engines.engine import Engine
from dnncore.engines.threads import get_num_threads
from dnncore.environment import values as values_of
from dnncore.functional.compiled import CompiledCall, Plan, first_of_device
from dnncore.functional.kinds import NEUTRAL, common_kind, host_array, is_untyped
from dnncore.functional.operands import Values, typed
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.plugins import registry

__all__ = ["EngineLike", "Plan", "call", "calls"]

EngineLike = Engine | str | None
"""An engine, its name, or None for `dnncore.engine()`."""

CAPACITY = 512  # signatures
NAMES = 64  # of engines


Planner = Callable[..., Plan]
"""Makes a plan: planner(function, operands, *options)."""


_variables = values_of(
    "DNNCORE_IMPL", "DNNCORE_SKIP_IMPL", "DNNCORE_PREFER", "DNNCORE_HOST_FALLBACK"
)


def call(
    planner: Planner, function: str, values: dict[str, Values], engine: EngineLike, *options: Any
) -> Any:
    """Return the result of a function as a new array of the inputs' kind.

    function: its name, for messages. values: its inputs by name; a bias of None is left out.
    options: of the planner. Raises `DescriptorError` for values and options that do not fit, and
    the errors of `dnncore.engine`, `PrimitiveDesc` and `Primitive.execute`.

    If the engine has only the reference or the host fallback for half types, the operation is
    computed with float32 tensors and the result is rounded. Half types are also summed in float32.
    """
    arrays: list[Any] = []
    signature: list[Any] = []
    kind: ArrayKind | None = None
    for name, value in values.items():
        if type(value) is np.ndarray:
            arrays.append(value)
            signature += (value.shape, value.dtype)
        elif value is not None or name != "bias":
            kind = kind or common_kind(function, values)
            array, dtype = _read(function, name, value, kind)
            arrays.append(array)
            signature += (array.shape, dtype)
    if isinstance(kind, DeviceArrays):
        engine = kind.engine(first_of_device(arrays)) if engine is None else _opened(engine)
    else:
        engine = _opened(engine)
    exact = _exact(options)
    make = functools.partial(_made, planner, function, values, signature, engine, options)
    if exact is None:
        compiled = make()
    else:
        circumstances = (registry.generation, get_num_threads(), _variables())
        key = (planner, function, engine, exact, circumstances, *signature)
        compiled = calls.get(key, make)
    if isinstance(kind, DeviceArrays):
        return compiled.on_arrays(arrays, kind)
    result = compiled(arrays)
    return result if kind is None else kind.result(result)  # type: ignore[attr-defined]


def _read(function: str, name: str, value: Values, kind: ArrayKind) -> tuple[Any, Any]:
    """An array and its type, which is None for Python's numbers. A device's array is the value."""
    if isinstance(kind, DeviceArrays) and not isinstance(value, NEUTRAL):
        return value, value.dtype
    is_condition = name == "condition"
    own = np.float64 if is_condition else np.float32
    array = host_array(f"{function}: {name}", value, own, kind)
    return array, array.dtype if is_condition or not is_untyped(value) else None


def _opened(engine: EngineLike) -> Engine:
    """The engine, opened if given by name. Raises the errors of `dnncore.engine`."""
    if isinstance(engine, Engine):
        return engine
    if engine is not None and type(engine) is not str:
        return open_engine(engine)
    key = (engine, _default(), registry.generation)
    found = _engines.get(key)
    if found is None or found.is_lost:
        if len(_engines) >= NAMES:
            _engines.clear()
        found = _engines[key] = open_engine(engine)
    return found


_default = values_of("DNNCORE_ENGINE")
_engines: dict[object, Engine] = {}  # by name; `dnncore.engine` takes 2 us


def _exact(options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A key of options that differs for 1, 1.0 and True, and for 0.0 and -0.0.

    None for objects that may change or that hashes do not tell apart.
    """
    kinds = tuple(map(type, options))
    if _IMMUTABLE.issuperset(kinds):
        return kinds, options
    key: list[Any] = []
    for kind, option in zip(kinds, options, strict=True):
        part = _exact(option) if kind is tuple else option.hex() if kind is float else option
        if (part is None and kind is tuple) or kind not in _EXACT:
            return None
        key.append(part)
    return kinds, tuple(key)


_IMMUTABLE = frozenset((int, str, bool, type(None), PostOp))
_EXACT = _IMMUTABLE | {float, tuple}


calls: MemoryCache[CompiledCall] = MemoryCache(CAPACITY)
"""Compiled calls by signature, the least recently used of which are dropped."""


def _made(
    planner: Planner,
    function: str,
    values: Mapping[str, Values],
    signature: Sequence[Any],
    engine: Engine,
    options: tuple[Any, ...],
) -> CompiledCall:
    names = [name for name, value in values.items() if value is not None or name != "bias"]
    shapes = dict(zip(names, signature[::2], strict=True))
    types = dict(zip(names, signature[1::2], strict=True))
    plan = planner(function, typed(function, shapes, types), *options)
    return CompiledCall(engine, plan, names)
