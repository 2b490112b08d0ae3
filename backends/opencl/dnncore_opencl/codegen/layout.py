"""The index arithmetic of memory descriptors, in OpenCL C.

A layout divides each logical index into digits and assigns every digit a stride. A plain dim has
one digit. A dim with inner blocks has one digit per block and one for the rest. A kernel computes
offsets of elements from logical indices (`access`) or from a nest of loops over the digits of all
tensors (`Nest`).

The text depends only on the class of a problem: rank, blocks, and which strides are 0 or 1. All
other sizes and strides are scalar arguments, which `Parameters` collects. So problems of one class
share one compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from dnncore.backend import MemoryDesc
from dnncore.planning.loops import is_one_loop, merged
from dnncore_opencl.codegen.vectors import PACKED, TYPES
from dnncore_opencl.runtime.schema import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    Arg,
    Buffer,
    Schema,
    Scratch,
    Value,
)

LARGE = 2**30  # elements that int32 can count, with a margin for work-items beyond the end


class Digit(NamedTuple):
    """One digit of a logical index: the number of its values, and its stride in elements."""

    size: int
    stride: int


Digits = tuple[Digit, ...]  # of one logical index, slowest first


def elements(desc: MemoryDesc) -> int:
    """Return the number of elements from the start of a buffer to the end of a tensor."""
    return desc.nbytes // desc.itemsize * (2 if desc.data_type in PACKED else 1)


@dataclass(frozen=True)
class Spread:
    """A plain tensor with one element per group of neighbours of another tensor.

    sizes: of a group along each dim.
    """

    values: MemoryDesc
    sizes: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        """Return all other attributes from `values`."""
        return getattr(self.values, name)

    @property
    def dims(self) -> tuple[int, ...]:
        """The other tensor's dims; 1 for a dim with only one group."""
        sizes = zip(self.values.dims, self.sizes, strict=True)
        return tuple(n * size if n > 1 else 1 for n, size in sizes)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """The padded dims. They equal `dims`, because the tensor of values is plain."""
        return self.dims

    @classmethod
    def of(cls, values: MemoryDesc, groups: Sequence[int]) -> Spread:
        """Return a tensor of groups of `groups` neighbours along the last dims."""
        return cls(values, (1,) * (values.ndims - len(groups)) + tuple(groups))


def digits(desc: MemoryDesc | Spread, dim: int) -> Digits:
    """Return the digits of dim `dim`; the first one counts whole blocks, or plain elements."""
    if isinstance(desc, Spread):
        first = Digit(desc.values.dims[dim], desc.strides[dim])
        return (first, Digit(desc.sizes[dim], 0)) if desc.sizes[dim] > 1 else (first,)
    inner: list[Digit] = []
    stride = 1
    for place, size in reversed(desc.inner_blocks):
        if place == dim:
            inner.insert(0, Digit(size, stride))
        stride *= size
    blocks = desc.padded_dims[dim] // math.prod(digit.size for digit in inner)
    return (Digit(blocks, desc.strides[dim]), *inner)


class Parameters:
    """The buffers and scalars of a kernel, and their arguments for a problem.

    prefix: of the scalars' names, if a kernel has several lists of scalars. is_wide: whether real
    numbers are doubles.
    """

    def __init__(
        self, largest_offset: int = 0, prefix: str = "p", *, is_wide: bool = False
    ) -> None:
        self._prefix = prefix
        self.is_wide = is_wide
        is_small = largest_offset < LARGE
        self._index = INT if is_small else LONG
        self._buffers: dict[str, Buffer] = {}
        self._scalars: dict[str, Value] = {}
        self.arguments: dict[str, Arg | Scratch | int | float] = {}

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, MemoryDesc],
        written: Container[str],
        *,
        is_restrict: bool = False,
    ) -> Parameters:
        """Return parameters that begin with the buffers of tensors, by name in bind order."""
        parameters = cls(max(elements(desc) for desc in tensors.values()))
        for place, (name, desc) in enumerate(tensors.items()):
            const = "" if name in written else "const "
            parameters.buffer(name, const + TYPES[desc.data_type], Arg(place), is_restrict)
        return parameters

    def buffer(
        self, name: str, text: str, argument: Arg | Scratch, is_restrict: bool = False
    ) -> None:
        """Add a pointer to elements of type `text`. Buffers precede all scalars."""
        self._buffers[name] = Buffer(text, is_restrict)
        self.arguments[name] = argument

    def index(self, value: int) -> str:
        """Return the text for an offset or stride. 0 and 1 are literals, others are parameters."""
        return str(value) if value in (0, 1) else self.size(value)

    def size(self, value: int) -> str:
        """Return the parameter for an extent, whatever its value."""
        return self._add(self._index, int(value))

    def divisor(self, value: int) -> str:
        """Return the parameter for a divisor. Its value is at least 1."""
        text = self.index(value)
        return text if text == "1" else f"max({text}, (INDEX)1)"

    def real(self, value: float) -> str:
        """Return the parameter for a real number."""
        return self._add(DOUBLE if self.is_wide else FLOAT, float(value))

    def _add(self, kind: Value, value: float) -> str:
        name = f"{self._prefix}{len(self._scalars)}"
        self._scalars[name] = kind
        self.arguments[name] = value
        return name

    @property
    def schema(self) -> Schema:
        """The parameters added so far."""
        return Schema(**self._buffers, **self._scalars)

    @property
    def defines(self) -> dict[str, str]:
        """INDEX, the type of offsets, and UINDEX, which divides faster."""
        return {"INDEX": self._index.text, "UINDEX": f"u{self._index.text}"}


def offset_text(chain: Digits, index: str, parameters: Parameters) -> str:
    """Return the term of `index` in an offset, with a leading plus; empty if it is 0."""
    text, below = "", 1
    for digit in reversed(chain):
        value = f"(UINDEX){index} / {below}" if below > 1 else index
        if digit is not chain[0]:
            value = f"{value if below > 1 else f'(UINDEX){index}'} % {digit.size}"
        below *= digit.size
        if digit.stride and digit.size > 1:
            value = value if value == index else f"(INDEX)({value})"
            slowest = digit is chain[0]
            stride = parameters.index(digit.stride) if slowest else str(digit.stride)
            text += f" + {value}" if stride == "1" else f" + {value} * {stride}"
    return text


def access(
    name: str,
    desc: MemoryDesc,
    coordinates: Sequence[str],
    used: Sequence[str],
    parameters: Parameters,
) -> dict[str, str]:
    """Define NAME_AT(coordinates), the offset of an element by its logical index.

    used: the coordinate of each of the tensor's dims. Other coordinates are ignored.
    """
    text = parameters.index(desc.offset0)
    for dim, coordinate in enumerate(used):
        text += offset_text(digits(desc, dim), f"({coordinate})", parameters)
    return {f"{name}_AT({', '.join(coordinates)})": f"({text})"}


@dataclass(frozen=True)
class Loop:
    """One loop of a nest.

    Its variable times `weight` is a term of the logical index of dim `dim`. chains: the digits of
    each operand; one digit each, unless blocks do not nest.
    """

    dim: int
    weight: int
    size: int
    chains: tuple[Digits, ...]

    @property
    def strides(self) -> tuple[int | None, ...]:
        """The stride per operand; None if it is not constant."""
        return tuple(
            sum(digit.stride for digit in chain) if len(chain) < 2 else None
            for chain in self.chains
        )

    def in_vectors(self, lanes: int) -> Loop:
        """Return the loop with steps of `lanes` iterations."""
        chains = tuple(
            tuple(Digit(digit.size // lanes, digit.stride * lanes) for digit in chain)
            for chain in self.chains
        )
        return Loop(self.dim, self.weight * lanes, self.size // lanes, chains)

    def around(self, inner: Loop) -> Loop | None:
        """Return this loop and the next inner loop as one; None if this is impossible."""
        if not is_one_loop(self.strides, inner.strides, inner.size):
            return None
        size = self.size * inner.size
        steps = (sum(digit.stride for digit in chain) for chain in inner.chains)
        chains = tuple((Digit(size, step),) for step in steps)
        return Loop(inner.dim, inner.weight, size, chains)


@dataclass(frozen=True)
class Nest:
    """Loops, outermost first, over tensors of one logical shape, in the order of one, the leader.

    They visit each element of the leader once, including padding. shape, padded: the leader's dims
    without and with padding. skips: dims along which the loops run past the leader, to the end of
    another tensor's block. masks: dims along which padding must be detected.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    loops: tuple[Loop, ...]
    skips: tuple[int, ...]
    masks: tuple[int, ...]

    @classmethod
    def of(
        cls,
        descs: Sequence[MemoryDesc | Spread],
        leader: int = 0,
        dims: Iterable[int] | None = None,
        *,
        mask_padding: bool = True,
        merge: bool = True,
    ) -> Nest:
        """Return the nest of `descs`. Dims of size 1 are broadcast to the leader's.

        leader: the place of the tensor whose order the loops follow. dims: the logical dims of the
        loops, all by default. mask_padding: whether the leader's padding must be detected. merge:
        whether loops that need no separate index are joined.
        """
        lead = descs[leader]
        loops, skips, masks = [], [], []
        for dim in range(lead.ndims) if dims is None else dims:
            split = _split(descs, lead, dim)
            loops += split
            if math.prod(loop.size for loop in split) > lead.padded_dims[dim]:
                skips.append(dim)
            if mask_padding and lead.padded_dims[dim] > lead.dims[dim]:
                masks.append(dim)
        loops = [loop for loop in loops if loop.size > 1]
        loops.sort(key=lambda loop: -max((d.stride for d in loop.chains[leader]), default=0))
        if merge:
            guarded = {*skips, *masks}

            def join(outer: Loop, inner: Loop) -> Loop | None:
                needs_index = guarded & {outer.dim, inner.dim}
                return None if needs_index else outer.around(inner)

            loops = list(merged(loops, join))
        return cls(lead.dims, lead.padded_dims, tuple(loops), tuple(skips), tuple(masks))

    @property
    def size(self) -> int:
        """Iterations of all loops. The tensor must have elements."""
        return math.prod(loop.size for loop in self.loops)

    @property
    def guarded(self) -> set[int]:
        """The dims whose logical index a kernel must test."""
        return {*self.skips, *self.masks}

    def index_text(self, dim: int, variables: Sequence[str]) -> str:
        """Return the logical index of `dim`, which must have a loop, as text of the variables."""
        terms = [
            name if loop.weight == 1 else f"{name} * {loop.weight}"
            for loop, name in zip(self.loops, variables, strict=True)
            if loop.dim == dim
        ]
        return " + ".join(terms)

    def conditions(self, variables: Sequence[str], parameters: Parameters) -> tuple[str, str]:
        """Return two conditions: the leader has the element, and the element is not padding."""

        def below(dims: Iterable[int], limits: Sequence[int]) -> str:
            return " && ".join(
                f"{self.index_text(dim, variables)} < {parameters.size(limits[dim])}"
                for dim in dims
            )

        return below(self.skips, self.padded) or "1", below(self.masks, self.shape) or "1"


def _split(descs: Sequence[MemoryDesc | Spread], lead: MemoryDesc | Spread, dim: int) -> list[Loop]:
    """Divide a dim by the blocks of all tensors into loops with constant strides.

    If the blocks of two tensors do not nest (blocks of 16 and 24), the dim remains one loop.
    """
    chains = [() if desc.dims[dim] == 1 < lead.dims[dim] else digits(desc, dim) for desc in descs]
    cuts = {1}
    for chain in chains:
        below = 1
        for digit in reversed(chain[1:]):
            below *= digit.size
            cuts.add(below)
    ends = sorted(cuts)
    padded = lead.padded_dims[dim]
    if any(high % low for low, high in pairwise(ends)):
        return [Loop(dim, 1, padded, tuple(chains))]
    bounds = [*ends, ends[-1] * -(-padded // ends[-1])]
    return [
        Loop(dim, low, high // low, tuple(_part(chain, low, high // low) for chain in chains))
        for low, high in reversed(list(pairwise(bounds)))
    ]


def _part(chain: Digits, low: int, size: int) -> Digits:
    """Return the digit of `chain` for the `size` values of an index in steps of `low`."""
    below = 1
    for digit in reversed(chain):
        if low < below * digit.size or digit is chain[0]:
            return (Digit(size, digit.stride * (low // below)),)
        below *= digit.size
    return ()


def decode(number: str, names: Sequence[str], sizes: Sequence[int], parameters: Parameters) -> str:
    """Return statements that split `number` into variables. The last one is the fastest."""
    if not names:
        return ""
    text = ""
    for name, size in zip(reversed(names[1:]), reversed(sizes[1:]), strict=True):
        if size == 1:
            text += f"const INDEX {name} = 0; "
        else:
            count = f"(UINDEX){parameters.size(size)}"
            text += f"const INDEX {name} = (UINDEX){number} % {count}; "
            text += f"{number} = (UINDEX){number} / {count}; "
    return text + f"const INDEX {names[0]} = {number}; "
