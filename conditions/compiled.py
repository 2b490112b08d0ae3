"""Records of conditions in functions that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

__all__ = ["register"]

WORD, BYTE = ir.IntType(64), ir.IntType(8)


def register(decided: Callable[[int, Any], Any], address: int) -> None:
    """Enable numba to compile calls of `decided`. address: where outcomes are recorded."""

    @intrinsic  # type: ignore[untyped-decorator]
    def record(_context: Any, number: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            truth = context.cast(builder, args[1], signature.args[1], types.boolean)
            offset = builder.add(builder.shl(args[0], WORD(1)), builder.zext(truth, WORD))
            place = builder.inttoptr(builder.add(WORD(address), offset), BYTE.as_pointer())
            builder.store(BYTE(1), place)
            return args[1]

        return value(types.int64, value), emit

    @overload(decided)
    def typed(number, value):  # type: ignore[no-untyped-def]
        return lambda number, value: record(number, value)
