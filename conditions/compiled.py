"""Records of conditions in tasks, which are translated to LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

__all__ = ["register"]

WORD, BYTE = ir.IntType(64), ir.IntType(8)


def register(decided: Callable[[int, Any], Any], address: int) -> None:
    """Enable tasks to call `decided`. address: where outcomes are recorded."""

    def emit(builder: Any, number: int, value: Any) -> Any:
        from dnncore_cpu_numba.codegen.numbers_ir import Number, truth

        if not isinstance(value, Number):  # a constant
            return decided(number, value)
        offset = builder.add(WORD(2 * number), builder.zext(truth(builder, value).value, WORD))
        place = builder.inttoptr(builder.add(WORD(address), offset), BYTE.as_pointer())
        builder.store(BYTE(1), place)
        return value

    vars(decided)["emit"] = emit
