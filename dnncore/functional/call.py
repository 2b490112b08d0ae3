"""One call: takes arrays of any kind, runs the operation and returns an array of this kind.

Each function of this package has a planner, which creates the operation from the shapes and types
of inputs and from options. Its plan is kept per signature, with the compiled primitive. So a later
call with the same signature selects nothing and creates no descriptor. It only creates memories
over its inputs and over a new result, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.cache import MemoryCache
from dnncore.engines.array_kinds import ArrayKind
from dnncore.engines.engine import Engine
from dnncore.engines.threads import get_num_threads
from dnncore.environment import values as values_of
from dnncore.errors import DataTypeError, DescriptorError
from dnncore.functional.compiled import CompiledCall, Plan, first_of_device
from dnncore.functional.kinds import NEUTRAL, common_kind, host_array, is_untyped
from dnncore.functional.messages import in_words_of
from dnncore.functional.operands import Values, typed
from dnncore.post_op import PostOp
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.plugins import registry

__all__ = ["EngineLike", "Plan", "call", "calls"]

EngineLike = Engine | str | None
"""An engine, its name, or None for `dnncore.engine()`."""

CAPACITY = 512  # signatures
MOST = 2.0**63  # numbers below it need no check


Planner = Callable[..., Plan]
"""planner(function, operands, *options) returns a plan."""


_variables = values_of(
    "DNNCORE_ENGINE",
    "DNNCORE_IMPL",
    "DNNCORE_SKIP_IMPL",
    "DNNCORE_PREFER",
    "DNNCORE_HOST_FALLBACK",
)


def call(
    planner: Planner, function: str, values: dict[str, Values], engine: EngineLike, *options: Any
) -> Any:
    """Return the result of a function as a new array of the inputs' kind; a tuple if the plan has
    several results.

    function: the function's name, for messages.
    values: its inputs by name. A bias of None is omitted.
    options: the options of the planner.

    Raises `DescriptorError` for values and options that do not fit, and the errors of
    `dnncore.engine`, `PrimitiveDesc` and `Primitive.execute`.

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
    if engine is not None and type(engine) is not str and not isinstance(engine, Engine):
        open_engine(engine)  # raises the error
    device_kind: Any = kind if kind is not None and kind.is_device else None
    if engine is None and device_kind is not None:
        engine = device_kind.engine(first_of_device(arrays))
    exact = _exact(options)
    circumstances = (registry.generation, get_num_threads(), _variables())
    key = (planner, function, engine, exact, circumstances, *signature)
    compiled = None if exact is None else calls.find(key)
    if compiled is not None and compiled.engine.is_lost and not isinstance(engine, Engine):
        calls.forget(lambda other: other == key)  # the name now means another engine
        compiled = None
    if compiled is None:
        compiled = _compiled(key, exact, planner, function, values, signature, engine, options)
    if device_kind is not None:
        results = compiled.on_arrays(arrays, device_kind)
    else:
        results = compiled(arrays)
        if kind is not None:
            results = [kind.result(array) for array in results]  # type: ignore[attr-defined]  # kinds of hosts
    return results[0] if len(results) == 1 else tuple(results)


def _read(function: str, name: str, value: Values, kind: ArrayKind) -> tuple[Any, Any]:
    """Return an array and its type, which is None for Python's numbers. A device's array is
    returned as is.
    """
    is_neutral = isinstance(value, NEUTRAL)
    if kind.is_device and not is_neutral:
        return value, value.dtype
    if is_neutral and type(value) in (int, float) and name != "condition" and abs(value) < MOST:
        return np.array(value, np.float64), None
    array = host_array(f"{function}: {name}", value, kind)
    if not is_neutral:
        return array, array.dtype
    if name == "mask" and np.asarray(value).dtype.kind == "b":  # of which `array` has numbers
        return array, np.dtype(bool)
    return array, array.dtype if name == "condition" or not is_untyped(value) else None


def _exact(options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a key of options that differs for 1, 1.0 and True, and for 0.0 and -0.0.

    Returns None for objects that may change, or that hashes do not distinguish.
    """
    kinds = tuple(map(type, options))
    if _IMMUTABLE.issuperset(kinds):
        return kinds, options
    key: list[Any] = []
    part: Any
    for kind, option in zip(kinds, options, strict=True):
        if kind is tuple:
            part = _exact(option)
            if part is None:
                return None
        elif kind is float:
            part = option.hex()
        elif kind in _IMMUTABLE:
            part = option
        elif isinstance(option, np.number | np.bool_):
            part = option.tobytes()
        else:
            return None
        key.append(part)
    return kinds, tuple(key)


_IMMUTABLE = frozenset((int, str, bool, type(None), PostOp))


calls: MemoryCache[CompiledCall] = MemoryCache(CAPACITY)
"""Compiled calls by signature. The least recently used are dropped."""


def _compiled(
    key: tuple[Any, ...],
    exact: object,
    planner: Planner,
    function: str,
    values: Mapping[str, Values],
    signature: Sequence[Any],
    engine: EngineLike,
    options: tuple[Any, ...],
) -> CompiledCall:
    """Compile a call, and keep it unless its options may change."""
    opened = engine if isinstance(engine, Engine) else open_engine(engine)
    names = [name for name, value in values.items() if value is not None or name != "bias"]
    shapes = dict(zip(names, signature[::2], strict=True))
    types = dict(zip(names, signature[1::2], strict=True))

    def make() -> CompiledCall:
        try:
            plan = planner(function, typed(function, shapes, types), *options)
        except DataTypeError as error:
            wide = ", ".join(name for name, dtype in types.items() if dtype == np.float64)
            raise DataTypeError(
                f"{in_words_of(function, str(error))}; convert arrays of float64 to float32, here"
                f" {wide}"
            ) from None
        except DescriptorError as error:
            raise DescriptorError(in_words_of(function, str(error))) from None
        return CompiledCall(opened, plan, names)

    return make() if exact is None else calls.get(key, make)
