"""Kernels: native functions that are emitted as LLVM IR, one per class of problems."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import Isa


class NativeKernel:
    """Base of the classes of kernels. The fields of a subclass are compiled in."""

    ARGUMENTS: ClassVar[Record]
    isa: Isa

    @property
    def name(self) -> str:
        """An identifier of all properties that are compiled in."""
        return f"{type(self).__name__}_{self.isa.name}_{digest(self, 24)}"

    @property
    def address(self) -> int:
        """The address of the compiled function, which takes `ARGUMENTS`. Raises `BuildError`."""
        return native.function(self.name, self.llvm_text, self.isa).address

    def llvm_text(self, symbol: str) -> str:
        """Return the LLVM assembly of a module that defines the kernel as `symbol`."""
        return vir.function_text(symbol, self.ARGUMENTS, self._emit)

    def _emit(self, builder: Any, args: vir.Values) -> None:
        """Append the body of the function."""
        raise NotImplementedError


def digest(value: object, length: int) -> str:
    """Return a hexadecimal hash of the `repr` of a value."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:length]
