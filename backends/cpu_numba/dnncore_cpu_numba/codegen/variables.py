"""Variables in the translation of a task, and where branches meet.

A variable that is assigned once is a value. Others have memory on the stack for each kind of number
that they hold; LLVM turns it into registers. Where branches meet, variables of different kinds get
the kind that they have in common.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from numba import types as kinds

from dnncore_cpu_numba.codegen import numbers_ir
from dnncore_cpu_numba.codegen.call_schema import CallMismatch
from dnncore_cpu_numba.codegen.numbers_ir import Address, Number, cast, is_constant, number
from dnncore_cpu_numba.codegen.source import Tree, names_assigned_twice, parameters, tree_of
from dnncore_cpu_numba.codegen.vector_ir import Builder


class _Slot:
    """A variable in memory."""

    __slots__ = ("kind", "pointer")

    def __init__(self, pointer: Any, kind: Any) -> None:
        self.pointer = pointer
        self.kind = kind


def is_held(bound: Any) -> bool:
    """Whether a variable, or parts of it, are in memory."""
    return isinstance(bound, _Slot | tuple)


class Variables:
    """The variables of one call of a function, and the builder of its code."""

    def __init__(
        self, builder: Builder, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        self.builder = builder
        self.function = function
        self.tree: Tree = tree_of(function)
        self.held = names_assigned_twice(self.tree)
        self.slots: dict[tuple[Any, ...], _Slot] = {}
        self.local: dict[str, Any] = {}
        cells = function.__closure__ or ()
        self.closure = dict(zip(function.__code__.co_freevars, cells, strict=True))
        names = parameters(self.tree)
        if len(arguments) != len(names):
            raise CallMismatch(f"{function.__name__} has {names}; got {len(arguments)} arguments")
        for name, value in zip(names, arguments, strict=True):
            self.assign(name, value)

    def assign(self, name: str, value: Any) -> None:
        """Give a variable another value. Nothing reads `_`."""
        if name != "_":
            self.local[name] = self.stored((name,), value) if name in self.held else value

    def stored(self, place: tuple[Any, ...], value: Any) -> Any:
        """Store a value in memory, if it is a number or a tuple of these."""
        if isinstance(value, tuple):
            return tuple(self.stored((*place, i), each) for i, each in enumerate(value))
        if not (isinstance(value, Number) or is_constant(value)):
            return value
        given = number(value)
        slot = self.slots.get((*place, given.kind))
        if slot is None:
            with self.builder.goto_entry_block():
                pointer = self.builder.alloca(numbers_ir.ir_type(given.kind))
            slot = self.slots[*place, given.kind] = _Slot(pointer, given.kind)
        self.builder.store(given.value, slot.pointer)
        return slot

    def loaded(self, bound: Any) -> Any:
        """Return the present value of what a name is bound to."""
        if isinstance(bound, tuple):
            return tuple(map(self.loaded, bound))
        if isinstance(bound, _Slot):
            return Number(self.builder.load(bound.pointer), bound.kind)
        return bound

    def name(self, name: str) -> Any:
        """Return the value of a variable of the function, or a constant."""
        if name in self.local:
            return self.loaded(self.local[name])
        if name in self.closure:
            return self.closure[name].cell_contents
        known = self.function.__globals__
        if name in known:
            return known[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise CallMismatch(f"{name} has no value")

    # -- where branches meet -----------------------------------------------------------------------

    def wait(self) -> Any:
        """End the present block, from which `open_again` continues. Returns the block."""
        block = self.builder.block
        self.builder.unreachable()
        return block

    def open_again(self, block: Any) -> None:
        """Continue at the end of a block that `wait` ended."""
        block.instructions.pop()
        block.terminator = None
        self.builder.position_at_end(block)

    def joined(self, ways: Sequence[tuple[Any, Any]]) -> Any:
        """Let blocks that wait continue at one block. Returns their common value."""
        for block, _ in ways:
            self.open_again(block)
        done = self.builder.append_basic_block("joined")
        value = self.met([block for block, _ in ways], [value for _, value in ways], done)
        for block, _ in ways:
            self.builder.position_at_end(block)
            self.builder.branch(done)
        self.builder.position_at_end(done)
        return value

    def met(self, blocks: Sequence[Any], values: Sequence[Any], done: Any) -> Any:
        """Return the value at `done`, to which unfinished blocks with these values lead."""
        first = values[0]
        if isinstance(first, tuple):
            return tuple(self.met(blocks, each, done) for each in zip(*values, strict=True))
        if all(value is first for value in values):
            return first
        kind = numbers_ir.common([number(value).kind for value in values])
        kind = kinds.int64 if isinstance(kind, Address) and kind.field else kind
        with self.builder.goto_block(done):
            phi = self.builder.phi(numbers_ir.ir_type(kind))
        for block, value in zip(blocks, values, strict=True):
            self.builder.position_at_end(block)
            phi.add_incoming(cast(self.builder, value, kind).value, block)
        return Number(phi, kind)

    def continued(self, ways: Sequence[tuple[Any, dict[str, Any]]], done: Any) -> None:
        """Continue at `done` after unfinished blocks. Variables keep the kinds that they share."""
        known = {name: None for _, local in ways for name in local}
        self.local = {}
        for name in known:
            bound = [local[name] for _, local in ways if name in local]
            if all(each is bound[0] for each in bound):
                if len(bound) == len(ways) or is_held(bound[0]):
                    self.local[name] = bound[0]
            elif len(bound) == len(ways):
                self.local[name] = self.same((name,), [block for block, _ in ways], bound)
        for block, _ in ways:
            self.builder.position_at_end(block)
            self.builder.branch(done)
        self.builder.position_at_end(done)

    def same(self, place: tuple[Any, ...], blocks: Sequence[Any], bound: Sequence[Any]) -> Any:
        """Store different bindings of a variable at the ends of blocks as one kind."""
        if isinstance(bound[0], tuple):
            parts = enumerate(zip(*bound, strict=True))
            return tuple(self.same((*place, i), blocks, each) for i, each in parts)
        if not all(isinstance(each, _Slot) for each in bound):
            return None
        kind = numbers_ir.common([each.kind for each in bound])
        slot = bound[0]
        for block, each in zip(blocks, bound, strict=True):
            self.builder.position_at_end(block)
            slot = self.stored(place, cast(self.builder, self.loaded(each), kind))
        return slot

    def repeated(self, before: dict[str, Any]) -> None:
        """Store variables that have changed their kind as they were before the loop."""
        for name, bound in before.items():
            now = self.local[name]
            if now is not bound and isinstance(bound, _Slot):
                value = cast(self.builder, self.loaded(now), bound.kind)
                if numbers_ir.common([bound.kind, now.kind]) != bound.kind:
                    raise CallMismatch(f"{name} is {bound.kind} and {now.kind} in a loop")
                self.builder.store(value.value, bound.pointer)
