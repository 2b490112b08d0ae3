"""Reorder: dst = src in another format or data type, by the copies of `copies/reformat.py`.

With attributes, a reorder is a chain (`elementwise/chains.py`) with the steps of docs/types.md. Its
buffers are f32. They are f64 if f32 may not represent differences to zero points, or if f64 or s32
tensors have post-ops but no scales and zero points. Tensors of 4-bit elements are unpacked to bytes
in the scratchpad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, Refused, Reorder
from dnncore_cpu_numba.codegen.type_conversion import F8, FLOATS, INTEGERS, PACKED
from dnncore_cpu_numba.convolution.winograd.weights import WinogradReorder
from dnncore_cpu_numba.copies.nibbles import Nibbles
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import chain_steps, zero_padding
from dnncore_cpu_numba.elementwise.finish import WORDS, finish, is_finished
from dnncore_cpu_numba.elementwise.implementation import refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary
from dnncore_cpu_numba.runtime.program import Program, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

SRC_TERMS = (("zero_points", "sub"), ("scales", "mul"))


class ReorderImplementation(Implementation[Reorder]):
    """Copy, transpose and convert in one pass."""

    name = "cpu_numba:simd"
    data_types = ("f64", *FLOATS, *F8, *INTEGERS, *PACKED)
    attributes = (*WORDS, "zero_points", "groups")
    takes_repeats = True

    def accept(self, op: Reorder, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and every attribute."""
        if refusal := refuse_post_ops(op, attr):
            return refusal
        plan = _Plan.of(op, attr)
        return Accepted(
            op,
            build=lambda: plan.program(engine.num_threads),
            efficiency=0.6 if op.src.data_type == op.dst.data_type else 0.3,  # on 2 cores, measured
            scratchpad_bytes=plan.nbytes,
            notes=("compiles",),
        )


@dataclass(frozen=True)
class _Plan:
    """The tensors of a reorder. packed: copies of the tensors of 4-bit elements, by name."""

    op: Reorder
    attr: Attributes
    tensors: Mapping[str, Tensor]
    packed: Mapping[str, Nibbles]
    nbytes: int

    @classmethod
    def of(cls, op: Reorder, attr: Attributes) -> _Plan:
        """Return the plan of an operation."""
        tensors, packed, nbytes = arguments(op, attr=attr), {}, 0
        for name, tensor in tensors.items():
            if tensor.desc.is_packed:
                packed[name] = Nibbles(tensor, nbytes)
                nbytes += packed[name].nbytes
                tensors[name] = packed[name].bytes
        return cls(op, attr, tensors, packed, nbytes)

    def program(self, num_threads: int) -> Executable:
        """Return the executable."""
        return Program(self._steps, num_threads)

    def _steps(self) -> list[Step]:
        before, after = [], []
        for name, nibbles in self.packed.items():
            if name == "dst":
                after += nibbles.write()
            if name != "dst" or self.attr.reads_dst or nibbles.keeps_others:
                before += nibbles.read()
        dst, src = self.tensors["dst"], self.tensors["src"]
        if self.attr.scales or self.attr.zero_points or is_finished(self.op, self.attr):
            return [*before, *self._chain(), *after]
        return [*before, *copy_steps(dst, src), *zero_padding(dst), *after]

    def _chain(self) -> list[Step]:
        op, attr = self.op, self.attr
        tensors = [self.tensors["dst"], self.tensors["src"]]
        stages: list[Stage] = []
        for kind, algorithm in SRC_TERMS:
            if "src" in getattr(attr, kind):
                stages.append(binary(algorithm, len(tensors)))
                tensors.append(self.tensors[f"src_{kind}"])
        held, stepwise = _held(op, attr)
        if stepwise:
            stages = [replace(stage, stepwise=i > 0) for i, stage in enumerate(stages)]
        ending = finish(op, attr, self.tensors, len(tensors), stepwise=stepwise)
        return chain_steps(op.dst.dims, tensors + ending.tensors, stages + ending.stages, held)


def _held(op: Reorder, attr: Attributes) -> tuple[str, bool]:
    """Return the type of the buffers, and whether stages after the first compute in f32."""
    if zero_points := attr.zero_points.get("src"):
        wide = "s32" in (op.src.data_type, zero_points.data_type)
        return ("f64", True) if wide else ("f32", False)
    if attr.scales or attr.zero_points:
        return "f32", False
    is_wide = bool({"f64", "s32"} & {op.src.data_type, op.dst.data_type})
    return "f64" if is_wide else "f32", False


TABLE = (ReorderImplementation(), WinogradReorder())
