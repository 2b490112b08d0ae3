"""Staging: blocked tensors are copied to plain tensors in the scratchpad, and results back.

So kernels for plain tensors can serve every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from dnncore.backend import Attributes, MemoryDesc, OpT, PostOp, Reorder
from dnncore_opencl.copies.transpose import TransposedPass
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.elementwise.random import MASK
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import Launch, padded
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Constant, Scratch

ROW_MAJOR = "abcdefghijkl"
ALIGNMENT = 128  # bytes: the cache line of any device


def plain(desc: MemoryDesc) -> MemoryDesc:
    """Return a layout with strides only: the tensor's own if plain, otherwise row-major."""
    return desc if desc.is_plain else desc.with_format(ROW_MAJOR[: desc.ndims])


@dataclass(frozen=True)
class Conversion:
    """How a copy changes elements.

    data_type: of the copy. attr: scales and zero points of the tensor, under the name src. sources:
    the places of their memories.
    """

    data_type: str
    attr: Attributes
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Staging(Generic[OpT]):
    """`op` and `attr` with plain tensors only, and the copies to and from these.

    copies: by place in bind order, pairs of a tensor's own layout and its copy's layout. The copies
    are in the first `nbytes` bytes of the scratchpad. reads, writes: the places that are copied
    before and after the operation. mask: the place of the dropout mask, whose layout is dst's, if
    dst is copied. Then `attr` has no mask, and a separate launch writes it.
    """

    op: OpT
    attr: Attributes
    copies: Mapping[int, tuple[MemoryDesc, MemoryDesc]]
    reads: Sequence[int]
    writes: Sequence[int]
    nbytes: int
    conversions: Mapping[int, Conversion]
    mask: int | None = None

    @classmethod
    def of(
        cls,
        op: OpT,
        attr: Attributes,
        wanted: Callable[[str, MemoryDesc], MemoryDesc] = lambda _, desc: plain(desc),
        conversions: Mapping[str, Conversion] | None = None,
    ) -> Staging[OpT]:
        """Plan copies of all tensors that do not have the wanted layout. Formats must be resolved.

        wanted: returns the wanted layout of a tensor, given its name. Operands of post-ops become
        plain. conversions: by tensor name. Converted copies are row-major. In the operation, the
        tensors keep their types.
        """
        area = _Area()
        tensors = op.tensors()
        conversions = conversions or {}
        converted = {
            place: conversions[a.name]
            for place, (a, _) in enumerate(tensors)
            if a.name in conversions
        }
        descs = {
            a.name: area.converted(i, desc, conversions[a.name].data_type)
            if a.name in conversions
            else area.taken(i, desc, wanted(a.name, desc))
            for i, (a, desc) in enumerate(tensors)
        }
        places = iter(range(len(tensors), len(tensors) + len(attr.operands())))

        def operand(desc: MemoryDesc) -> MemoryDesc:
            return area.taken(next(places), desc, plain(desc))

        steps = tuple(_moved(step, operand) for step in attr.post_ops)
        written = [i for i, (a, _) in enumerate(tensors) if a.direction == "out"]
        kept = written[1:] if attr.reads_dst else written
        names = [a.name for a, _ in (*tensors, *attr.arguments(op))]
        mask = None
        if MASK in names and names.index(op.result_name) in area.copies:
            assert attr.dropout is not None
            mask = names.index(MASK)
            attr = replace(attr, dropout=replace(attr.dropout, has_mask=False))
        return cls(
            op.with_descs(**descs) if area.copies else op,
            replace(attr, post_ops=steps) if area.copies else attr,
            area.copies,
            [i for i in area.copies if i not in kept],
            [i for i in area.copies if i in written],
            area.nbytes,
            converted,
            mask,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the implementation."""
        return ("compiles", "copies") if self.copies else ("compiles",)

    def program(self, engine: OpenCLEngine, launches: Sequence[Launch]) -> LaunchProgram:
        """Return an executable of the launches, with the copies before and after them."""
        before = [self._copy(engine, i, *self.copies[i], back=False) for i in self.reads]
        after = [self._copy(engine, i, *self.copies[i], back=True) for i in self.writes]
        buffers: dict[int, Arg | Scratch] = dict.fromkeys(self.copies, Scratch())
        if self.mask is not None:
            after.append(self._mask(engine, self.mask))
            buffers[self.mask] = Arg(self.mask + 1)  # the argument after the mask
        within = [redirected(launch, buffers) for launch in launches]
        all_launches = (*before, *within, *after)
        return LaunchProgram(engine, [launch for launch in all_launches if launch is not None])

    def _mask(self, engine: OpenCLEngine, place: int) -> Launch | None:
        """Return the launch that computes the mask; None if it has no element."""
        names = [a.name for a, _ in self.op.tensors()]
        own, _ = self.copies[names.index(self.op.result_name)]
        if not own.nelems:
            return None
        arguments = {
            i: (argument.name, desc)
            for i, (argument, desc) in enumerate(self.attr.arguments(self.op), len(names))
            if argument.name.startswith("dropout")
        }
        work = Pass(engine, [own.with_data_type("u8")], 0)
        work.take_mask(self.attr, arguments)
        return redirected(work.launch(), {0: Arg(place)})

    def _copy(
        self, engine: OpenCLEngine, place: int, own: MemoryDesc, copy: MemoryDesc, *, back: bool
    ) -> Launch | None:
        """Return the launch that copies one tensor; None if it has no element."""
        if not own.nelems:
            return None
        if place in self.conversions:
            return _conversion(engine, place, own, copy, self.conversions[place])
        src, dst = (copy, own) if back else (own, copy)
        transposed = TransposedPass(engine, [src, dst], 1)
        work = transposed if transposed.is_fit else Pass(engine, [src, dst], 1)
        work.copies_bits = True
        work.start("v0", work.kind(1))
        buffers = (Scratch(), Arg(place)) if back else (Arg(place), Scratch())
        return redirected(work.launch(), dict(enumerate(buffers)))


def _conversion(
    engine: OpenCLEngine, place: int, own: MemoryDesc, copy: MemoryDesc, conversion: Conversion
) -> Launch:
    """Return the launch that converts a tensor."""
    work = Pass(engine, [own, copy], 1)
    work.take(Reorder(src=own, dst=copy), conversion.attr)
    work.parameters.is_wide = copy.data_type == "f64"
    if copy.data_type in ("f32", "f64"):
        work.start(work.dequantized("src"))
    elif conversion.sources:
        work.keeps_integers = True
        work.start(f"convert_intLANES({work.difference('src')})", "int")
    else:
        work.copies_bits = True
        work.start("v0", work.kind(1))
    sources = {2 + i: Arg(source) for i, source in enumerate(conversion.sources)}
    return redirected(work.launch(), {0: Arg(place), 1: Scratch(), **sources})


@dataclass
class _Area:
    """The part of the scratchpad that is assigned to copies so far."""

    copies: dict[int, tuple[MemoryDesc, MemoryDesc]] = field(default_factory=dict)
    nbytes: int = 0

    def taken(self, place: int, desc: MemoryDesc, wanted: MemoryDesc) -> MemoryDesc:
        """Return the tensor itself if it has the wanted layout, else its copy."""
        return desc if wanted == desc else self._copied(place, desc, wanted)

    def converted(self, place: int, desc: MemoryDesc, data_type: str) -> MemoryDesc:
        """Return the layout of a row-major converted copy, with the data type of the tensor."""
        wanted = desc.with_format(ROW_MAJOR[: desc.ndims]).with_data_type(data_type)
        return self._copied(place, desc, wanted).with_data_type(desc.data_type)

    def _copied(self, place: int, desc: MemoryDesc, wanted: MemoryDesc) -> MemoryDesc:
        copy = wanted.with_offset0(self.nbytes // wanted.itemsize)
        self.nbytes = padded(max(self.nbytes, copy.nbytes), ALIGNMENT)
        self.copies[place] = (desc, copy)
        return copy


def _moved(step: PostOp, taken: Callable[[MemoryDesc], MemoryDesc]) -> PostOp:
    """Replace a step's operands, in their order."""
    operands: dict[str, Any] = {name: taken(desc) for name, desc in step.operands}
    return replace(step, **operands)


def redirected(launch: Launch, buffers: Mapping[int, Arg | Scratch | Constant]) -> Launch:
    """Return the launch with other buffers. `buffers` maps former places to new buffers."""
    arguments = {
        name: buffers.get(given.index, given) if isinstance(given, Arg) else given
        for name, given in launch.arguments.items()
    }
    return replace(launch, arguments=arguments)
