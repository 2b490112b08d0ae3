"""oneDNN's primitive descriptors: the implementation of a problem, and what it needs."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Operation
from dnncore_onednn.layouts import Layouts
from dnncore_onednn.library import Handle, Owned, Unsupported
from dnncore_onednn.operations import SCRATCHPAD, argument_numbers, attributes, creation
from dnncore_onednn.quantization import flat

__all__ = ["Description"]

IMPL_INFO, ALGORITHM, EXEC_ARG = 8, 20, 255  # queries


class Description:
    """One of oneDNN's implementations of an operation. Nothing is compiled.

    numbers: the possible arguments of an execution by name, with oneDNN's enumerators.
    hint: the forward primitive descriptor of a gradient; by default it is made from `op`.

    Raises `Unsupported` if oneDNN does not implement the problem, and `OneDnnError` if it fails.
    """

    def __init__(
        self,
        layouts: Layouts,
        op: Operation,
        attr: Attributes,
        hint: Description | None = None,
    ) -> None:
        self.layouts, self.op, self.attr = layouts, op, attr
        if hint is None and op.forward_op is not None:
            plain = replace(attr, post_ops=(), deterministic=False)
            hint = Description(layouts, op.forward_op, plain)
        self.hint: Description | None = hint
        function, parameters = creation(layouts, op, hint and hint.pd)
        self.pd: Owned = layouts.library.made(
            function, "primitive_desc_destroy", *parameters, attributes(layouts, op, attr)
        )
        self.numbers = {**dict(argument_numbers(op, attr)), "scratchpad": SCRATCHPAD}

    @property
    def impl_name(self) -> str:
        """oneDNN's name of the implementation, such as `jit:avx512_core`."""
        text = ctypes.c_char_p()
        self.layouts.library("primitive_desc_query", self.pd, IMPL_INFO, 0, ctypes.byref(text))
        return (text.value or b"").decode()

    @property
    def algorithm(self) -> str:
        """The algorithm without its operation, such as `direct`."""
        found = ctypes.c_int()
        self.layouts.library("primitive_desc_query", self.pd, ALGORITHM, 0, ctypes.byref(found))
        return self.layouts.library.name("alg_kind", found.value).partition("_")[2]

    @property
    def descs(self) -> dict[str, MemoryDesc]:
        """Descriptors of the present arguments, with all formats chosen, and oneDNN's workspace."""
        extra = self._extra
        found = {name: extra.get(name) or self._desc(name) for name in self.numbers}
        return {name: desc for name, desc in found.items() if desc is not None}

    @property
    def _extra(self) -> dict[str, MemoryDesc]:
        """The arguments of the attributes."""
        return {row.name: desc for row, desc in self.attr.arguments(self.op)}

    @property
    def scratchpad_bytes(self) -> int:
        """Bytes of the argument `scratchpad`; 0 if the attributes leave it to the library."""
        return self.layouts.nbytes(self._md(SCRATCHPAD))

    def built(self) -> Owned:
        """Let oneDNN generate the code of the primitive. Raises `OneDnnError`.

        Unless the user provides the scratchpad, only this Python thread may execute it.
        """
        return self.layouts.library.made("primitive_create", "primitive_destroy", self.pd)

    def advance(self) -> bool:
        """Switch to oneDNN's next implementation. Returns False after the last one."""
        return not self.layouts.library.functions.dnnl_primitive_desc_next_impl(self.pd)

    def argument(self, name: str) -> tuple[int, Owned | Handle | None]:
        """The enumerator of an argument and its descriptor, which is None if it is absent."""
        number, extra = self.numbers[name], self._extra.get(name)
        if extra is not None:
            is_operand = name in dict(self.attr.operands())
            return number, self.layouts.md(extra if is_operand else flat(extra))
        md = self._md(number)
        return number, Handle(md) if self.layouts.is_present(md) else None

    def again(self, op: Operation) -> Description:
        """Return this implementation with the chosen formats, for the current number of threads.

        Raises `Unsupported` if oneDNN lacks this implementation for this number.
        """
        hint = self.hint and self.hint.again(self.hint.op)
        found = Description(self.layouts, op, self.attr, hint)
        while found.impl_name != self.impl_name:
            if not found.advance():
                raise Unsupported(f"{op.KIND}: {self.impl_name} is not for this number of threads")
        return found

    def _desc(self, name: str) -> MemoryDesc | None:
        return self.layouts.desc(self._md(self.numbers[name]))

    def _md(self, number: int) -> Any:
        query = self.layouts.library.functions.dnnl_primitive_desc_query_md
        return query(self.pd, EXEC_ARG, number)
