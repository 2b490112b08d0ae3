"""Plans of programs: their steps, the scratchpad, and copies of tensors in unsuitable layouts.

Each matrix implementation supports a few layouts. Tensors in other layouts are copied to or from
the scratchpad by steps of the same program, so that no layout is refused. Planning is fast: steps
are created and kernels are compiled only when the plan is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    Operation,
    OpT,
    Refused,
)
from dnncore_cpu_numba.codegen.isa import DOT_ISAS, Isa
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.copies.gather import gather_tensor_step
from dnncore_cpu_numba.copies.nibbles import UNPACKED, Nibbles
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.epilogue import has_calls
from dnncore_cpu_numba.elementwise.finish import POST_OP_WORDS, finish
from dnncore_cpu_numba.elementwise.post_ops import Stage, refuse_unknown
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.placed import placed_steps
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS
from dnncore_cpu_numba.gemm.tiling import Blocking, knobs
from dnncore_cpu_numba.runtime.program import Part, Program, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

ALIGNMENT = 128  # bytes
PRODUCT_WORDS = (*POST_OP_WORDS, "dropout", "stochastic_rounding")
INTEGERS = frozenset({"s8", "u8", "s32"})
COPY_EFFICIENCY = 0.5  # part of the memory bandwidth that copies reach; measured
NOT_HIDDEN = 0.05  # part of the arithmetic time that memory accesses do not hide
LAUNCH = 3e-6  # seconds from the end of a step to the start of the next; measured


class ProgramPlan:
    """Collects the scratchpad and the steps of one program.

    tensors: the arguments of the operation and the post-ops' operands, by name. Arguments of the
    operation that are not f32 are replaced by f32 tensors of the same layout in the scratchpad.
    kept: the names of arguments that keep their types. Attributes' arguments of 4-bit elements are
    replaced by copies with one byte per element.
    """

    def __init__(
        self, op: Operation, attr: Attributes, blocking: Blocking, kept: Collection[str] = (),
        workspace: MemoryDesc | None = None,
    ) -> None:  # fmt: skip
        self.tensors = arguments(op, workspace, attr)
        self._parts: list[Callable[[], Sequence[Part]]] = []
        self._pending: dict[int, Callable[[], None]] = {}  # id(copy) -> appends the copy back
        self._copied = 0  # bytes read and written
        self._launches = 0
        self._top = 0  # offset of the next part of the scratchpad
        self.blocking = blocking
        self.num_threads = blocking.threads
        self.nbytes = 0  # size of the scratchpad
        self._rounded: list[tuple[Tensor, Tensor]] = []  # (f32 tensor, output) pairs
        for argument, desc in op.tensors():
            name, is_output = argument.name, argument.direction == "out"
            is_wide = desc.data_type == "f32" or desc.format_kind != "blocked"
            if not is_wide and name not in kept:
                tensor = self.tensors[name]
                room = self.scratch(desc.like(desc).with_data_type("f32"))
                if is_output:
                    self._rounded.append((room, tensor))
                if not is_output or (attr.reads_dst and name == op.result_name):
                    self._convert(tensor, room)
                self.tensors[name] = room
        for argument, desc in attr.arguments(op):
            if desc.is_packed:
                self.tensors[argument.name] = self._unpacked(self.tensors[argument.name])

    def _unpacked(self, tensor: Tensor) -> Tensor:
        """Return a copy of 4-bit elements with one byte per element."""
        nibbles = Nibbles(tensor, self._top)
        self.scratch(MemoryDesc((nibbles.nbytes,), "u8"))
        self._append(nibbles.read, 3 * tensor.desc.nbytes)
        copy = nibbles.bytes
        return copy.seen_as(copy.desc.with_data_type(UNPACKED[tensor.desc.data_type]))

    def _convert(self, source: Tensor, target: Tensor) -> None:
        """Append a conversion to another type in the same layout, including padding."""
        source, target = (
            tensor.seen_as(view)
            for tensor, view in zip(
                (source, target), _physical(source.desc, target.desc), strict=True
            )
        )
        nbytes = source.desc.nbytes + target.desc.nbytes
        self._append(lambda: copy_steps(target, source), nbytes)

    def operands(self, attr: Attributes) -> list[Tensor]:
        """Return the post-ops' operands in order, all as f32."""
        return [self.as_f32(self.tensors[name]) for name, _ in attr.operands()]

    def as_f32(self, tensor: Tensor) -> Tensor:
        """Return a tensor of f32, or a conversion to f32 in the scratchpad."""
        if tensor.desc.data_type == "f32":
            return tensor
        room = self.scratch(MemoryDesc(tensor.desc.dims))
        self.chain([room, tensor], [])
        return room

    def chain(self, tensors: Sequence[Tensor], stages: Sequence[Stage]) -> None:
        """Append a chain of stages. tensors: dst, src, then the stages' operands."""
        held = "f64" if tensors[0].desc.data_type == "f64" else "f32"
        self._append(
            lambda: chain_steps(tensors[0].desc.dims, tensors, stages, held),
            sum(tensor.desc.nbytes for tensor in tensors),
        )

    def scratch(self, desc: MemoryDesc) -> Tensor:
        """Reserve a part of the scratchpad."""
        start = self._top
        self._top += -(-desc.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = max(self.nbytes, self._top)
        return Tensor(Scratch(start), desc)

    def repeat(
        self, stretches: Sequence[tuple[int, int]], part: Callable[[ProgramPlan, int, int], None]
    ) -> None:
        """Call part(plan, first, count) for each stretch of images. There is at least one.

        Each call appends steps. All calls may use the same part of the scratchpad. The first call
        runs now and determines the size of the scratchpad. The other calls run when the plan is
        built, which saves most of the planning time.
        """
        top, copied, launches = self._top, self._copied, self._launches
        part(self, *stretches[0])
        self._top = top
        self._copied += (len(stretches) - 1) * (self._copied - copied)
        self._launches += (len(stretches) - 1) * (self._launches - launches)

        def others() -> list[Part]:
            steps: list[Part] = []
            for stretch in stretches[1:]:
                plan = copy(self)
                plan._top, plan._parts, plan._pending = top, [], {}
                part(plan, *stretch)
                steps += plan.steps()
            return steps

        self._parts.append(others)

    def read(
        self,
        tensor: Tensor,
        wanted: MemoryDesc | str | None = None,
        starts: Sequence[int] | None = None,
        *,
        expand: bool = False,
        order: Sequence[int] | None = None,
    ) -> Tensor:
        """Return an input, or its copy in the wanted layout or format.

        starts, expand, order: as in `gather_tensor_step`.
        """
        wanted = _missing(tensor.desc, wanted)
        if wanted is None:
            return tensor
        room = self.scratch(wanted)
        self._copy(tensor, room, starts=starts, expand=expand, order=order)
        return room

    def flipped(
        self, tensor: Tensor, wanted: MemoryDesc, starts: Sequence[int] | None = None
    ) -> Tensor:
        """Return a copy of s8 elements as u8 elements, with 128 added. starts: as in `read`."""
        room = self.scratch(wanted)
        self._append(
            lambda: placed_steps(tensor, room, starts, flipped=True),
            tensor.desc.nbytes + wanted.nbytes,
        )
        return room

    def write(
        self,
        tensor: Tensor,
        wanted: MemoryDesc | str | None = None,
        *,
        old: bool = False,
        order: Sequence[int] | None = None,
    ) -> Tensor:
        """Return an output, or a tensor for it in the wanted layout or format.

        `written` or `accepted` appends the copy from that tensor to the output.
        old: the old values of the output are read.
        order: for each index of dim 1 of the returned tensor, the index in the output.
        """
        wanted = _missing(tensor.desc, wanted)
        if wanted is None:
            return tensor
        room = self.scratch(wanted)
        if old:
            self._copy(tensor, room, order=order)
        back = None if order is None else np.argsort(order).tolist()
        self._pending[id(room)] = partial(self._copy, room, tensor, order=back)
        return room

    def written(self, tensor: Tensor) -> None:
        """Append the copy to an output now if `write` returned this tensor for one."""
        if append := self._pending.pop(id(tensor), None):
            append()

    def _copy(self, source: Tensor, target: Tensor, **options: Any) -> None:
        """Append a copy between layouts. options: those of `gather_tensor_step`."""
        a, b = source.desc, target.desc
        moves = any(options.get("starts") or ()) or options.get("order")

        def steps() -> list[Step]:
            if a.dims == b.dims and not (b.has_padding or moves):
                return copy_steps(target, source)
            if a.data_type == b.data_type == "f32":
                return [gather_tensor_step(source, target, **options)]
            assert not any(options.get(name) for name in ("expand", "order"))
            return placed_steps(source, target, options.get("starts"))

        self._append(steps, a.nbytes + b.nbytes)

    def add(self, part: Callable[[], Step], copied: int = 0) -> None:
        """Append a step that is created when the plan is built. copied: its bytes if it copies."""
        self._append(lambda: [part()], copied)

    def add_steps(self, part: Callable[[], Sequence[Part]]) -> None:
        """Append steps that are created when the plan is built."""
        self._append(part, 0)

    def _append(self, part: Callable[[], Sequence[Part]], copied: int) -> None:
        self._parts.append(part)
        self._copied += copied
        self._launches += 1

    def _copy_back(self) -> None:
        """Append the copies from the scratchpad to outputs."""
        for append in self._pending.values():
            append()
        self._pending.clear()

    def apart(self, append: Callable[[], None]) -> Callable[[], list[Step]]:
        """Return a function that makes the steps that `append` appends. They may run several times.

        It must be called in each build: only then does the program keep the code of its kernels.
        `append` repeats no steps.
        """
        parts, self._parts = self._parts, []
        append()
        own, self._parts = self._parts, parts
        return lambda: [cast(Step, step) for part in own for step in part()]

    def finish(self, op: Operation, attr: Attributes, room: Tensor, *, stepwise: bool) -> None:
        """Append the chain that computes the output from a result in the scratchpad.

        room: the result before post-ops. stepwise: each stage rounds to f32, as after integer
        products.
        """
        self._copy_back()
        ending = finish(op, attr, self.tensors, 2, self._top, stepwise=stepwise)
        self._top += ending.nbytes
        self.nbytes = max(self.nbytes, self._top)
        tensors = [self.tensors[op.result_name], room, *ending.tensors]
        held = "f64" if stepwise else room.desc.data_type

        def steps() -> list[Step]:
            chain = chain_steps(op.result.dims, tensors, ending.stages, held)
            return [*ending.before(), *chain]

        self._append(steps, sum(tensor.desc.nbytes for tensor in tensors))

    def steps(self) -> list[Part]:
        """Return the steps. Compiles the kernels."""
        return [step for part in self._parts for step in part()]

    def accepted(self, op: Operation, engine: Any, utilisation: float) -> Accepted:
        """Finish the plan and return it as accepted.

        op: the operation with all formats resolved. utilisation: the part of the peak that tiles
        reach if their data are in cache.
        """
        self._copy_back()
        for room, tensor in self._rounded:
            self._convert(room, tensor)
        return Accepted(
            op,
            lambda: Program(self.steps, self.num_threads),
            seconds=self._seconds(op, engine, utilisation),
            scratchpad_bytes=self.nbytes,
            notes=("compiles", "copies") if self._copied else ("compiles",),
        )

    def _seconds(self, op: Operation, engine: Any, utilisation: float) -> float:
        """Return the estimated time: arithmetic at a part of the peak, copies and launches."""
        peaks = engine.peaks
        arithmetic = peaks.ideal_seconds(op.flops / utilisation, op.bytes)
        arithmetic += NOT_HIDDEN * peaks.ideal_seconds(op.flops / utilisation, 0)
        launches = self._launches - 1
        copies = self._copied / (peaks.bandwidth * COPY_EFFICIENCY)
        return float(arithmetic + copies + launches * LAUNCH)


class PlannedImplementation(Implementation[OpT]):
    """An implementation that plans for one instruction set.

    HAS_KNOBS: whether its plans depend on `Blocking`.
    """

    data_types: Collection[str] = FLOATS
    attributes: Collection[str] = PRODUCT_WORDS
    NAME: ClassVar[str] = "cpu_numba:brgemm:{isa.name}"
    HAS_KNOBS: ClassVar[bool] = True

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.name = self.NAME.format(isa=isa)

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: object) -> Accepted | Refused:
        """Resolve formats and plan."""
        if refused := self.refused(op, attr):
            return refused
        return self._planned(self.resolved(op), attr, engine, {})

    def _planned(
        self, op: OpT, attr: Attributes, engine: Any, values: Mapping[str, Any]
    ) -> Accepted:
        """Return the acceptance for these values of knobs."""
        blocking = Blocking(engine.num_threads, **values)
        if self.has_second_pass(op, attr):
            plan = self._in_two_passes(op, attr, blocking)
        else:
            plan = ProgramPlan(op, attr, blocking, self.kept(op))
            self.plan(plan, op, attr)
        answer = plan.accepted(op, engine, self.utilisation(op))
        own = knobs(self.isa) if self.HAS_KNOBS else ()
        tune = partial(self._planned, op, attr, engine) if own else None
        return replace(answer, knobs=own, tune=tune)

    def has_second_pass(self, op: OpT, attr: Attributes) -> bool:
        """Whether the products are followed by random numbers or by functions of f64."""
        random = attr.dropout is not None or attr.rounding == "stochastic"
        return random or (op.data_type == "f64" and has_calls(attr))

    def _in_two_passes(self, op: OpT, attr: Attributes, blocking: Blocking) -> ProgramPlan:
        """Plan scaled sums with bias into the scratchpad, then a chain to the result."""
        name, held = op.result_name, "f64" if op.data_type == "f64" else "f32"
        plan = ProgramPlan(op, attr, blocking, (*self.kept(op), name))
        result = plan.tensors[name]
        room = plan.scratch(op.result.with_data_type(held).with_offset0(0))
        plan.tensors[name] = room
        scales = {key: own for key, own in attr.scales.items() if key != name}
        zero_points = {key: own for key, own in attr.zero_points.items() if key != name}
        first = replace(
            attr, post_ops=(), dropout=None, rounding="environment", scales=scales,
            zero_points=zero_points,
        )  # fmt: skip
        self.plan(plan, op.with_descs(**{name: room.desc}), first)
        plan.tensors[name] = result
        plan.finish(op, attr, room, stepwise=self.arithmetic(op).is_integer)
        return plan

    def refused(self, op: OpT, attr: Attributes) -> Refused | None:
        """The reason to refuse an operation, or None."""
        if obstacle := self.isa.obstacle:
            return Refused("device", obstacle)
        arithmetic = self.arithmetic(op)
        factors = [desc.data_type for _, desc in op.tensors()[:2]]
        if factors[0] in INTEGERS and not arithmetic.is_integer:
            return Refused("type", f"has no products of {' and '.join(factors)}")
        if self.isa in DOT_ISAS and (arithmetic.group == 1 or not arithmetic.is_native(self.isa)):
            return Refused("type", f"{self.isa.name} has no products of {op.data_type} of its own")
        if arithmetic.a == "bf16" and attr.fpmath == "ieee":
            text = f"fpmath ieee keeps subnormal numbers; {self.isa.name} takes them as 0"
            return Refused("attribute", text)
        rows = len(attr.operands()) + len(attr.post_ops)  # each post-op may be a call
        if rows >= MOST_OPERANDS:
            return Refused("attribute", f"{rows} operands and steps; fewer than {MOST_OPERANDS} do")
        return refuse_unknown(attr.post_ops)

    def arithmetic(self, op: OpT) -> Arithmetic:
        """Return the arithmetic that this implementation uses for the operation."""
        return F32_PRODUCTS

    def kept(self, op: OpT) -> tuple[str, ...]:
        """Return the names of arguments that are read or written without conversion."""
        return ()

    def resolved(self, op: OpT) -> OpT:
        """Return the operation with every `any` replaced by a format."""
        raise NotImplementedError

    def plan(self, plan: ProgramPlan, op: OpT, attr: Attributes) -> None:
        """Append the steps of the operation."""
        raise NotImplementedError

    def utilisation(self, op: OpT) -> float:
        """Return the part of the peak that tiles reach if their data are in cache."""
        raise NotImplementedError


def _missing(desc: MemoryDesc, wanted: MemoryDesc | str | None) -> MemoryDesc | None:
    """Return the wanted layout, or None if `wanted` is a format that the tensor has."""
    if isinstance(wanted, str):
        return None if desc.matches(wanted) else desc.with_format(wanted)
    return wanted


def _physical(*descs: MemoryDesc) -> list[MemoryDesc]:
    """Return descriptors of the same layout as plain arrays of all elements, with padding."""
    if all(desc.is_dense for desc in descs):
        return [MemoryDesc((math.prod(desc.padded_dims),), desc.data_type) for desc in descs]
    kept = [dim for dim, size in enumerate(descs[0].physical_shape) if size != 1] or [0]

    def plain(desc: MemoryDesc) -> MemoryDesc:
        shape, strides = (
            [values[dim] for dim in kept] for values in (desc.physical_shape, desc.physical_strides)
        )
        return MemoryDesc(shape, desc.data_type, strides=strides)

    return [plain(desc) for desc in descs]
