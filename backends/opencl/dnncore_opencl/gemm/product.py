"""Matrix products over strided operands: what convolution, inner product and matmul are made of.

    c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]

n and k have up to four digits: a convolution's n is (image, depth, height, width) and its k
(channel, depth, height, width of the kernel). The batch z has any number, of which kernels count
three; `split` makes products of the others. Each operand has a stride per digit, so no operand is
ever copied into matrix form. If b is an image, a `Window` has its borders.

A family (`gemm/family.py`) plans the kernels that compute this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Attributes, MatMul, MemoryDesc, Operation, PostOp
from dnncore_opencl.codegen.digits import extended
from dnncore_opencl.codegen.layout import elements
from dnncore_opencl.codegen.vectors import INTEGERS
from dnncore_opencl.elementwise.epilogue import NO_SCALING, Random, Scaling
from dnncore_opencl.elementwise.random import MASK, is_random

BATCH_DIGITS = 3  # that a kernel counts


@dataclass(frozen=True)
class Strides:
    """An operand's strides, in elements, per digit; 0 where it does not depend on one."""

    batch: tuple[int, ...] = ()
    m: int = 0
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shares:
    """How many neighbours along m, the last digit of n and each digit of k have one element."""

    m: int = 1
    n: int = 1
    k: tuple[int, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """An operand: the place of its memory, its first element, its strides and its shares."""

    index: int
    offset: int
    strides: Strides
    end: int = 0  # elements of its buffer
    data_type: str = "f32"
    shares: Shares = Shares()

    def with_batch(self, digits: Sequence[int], index: Sequence[tuple[int, int]]) -> Matrix:
        """Keep some digits of the batch; `index` gives the others as (digit, value)."""
        batch = self.strides.batch
        offset = self.offset + sum(batch[digit] * value for digit, value in index)
        kept = tuple(batch[digit] for digit in digits)
        return replace(self, offset=offset, strides=replace(self.strides, batch=kept))


@dataclass(frozen=True)
class Decoding:
    """The zero points that are subtracted from elements of b, and the scales of the differences."""

    scales: Matrix | None
    zero_points: Matrix | None


@dataclass(frozen=True)
class Window:
    """Where b is an image: coordinate = at + n * its digit of n + k * its digit of k, per dim.

    Elements at a coordinate below 0 or not below `size` are 0. One entry per spatial dim.
    """

    at: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Gemm:
    """A batch of products, often one: sizes, operands, and the steps that a result goes through.

    operands: those of the steps in their order: scales of the sum, those of post_ops, scales and
    zero points of c; `scaling` has the types of all but those of post_ops. zero_points: one number
    that is subtracted from each element of a, and of b. rounds_each: whether each step is rounded,
    as those of integers. keeps_floats: whether c has floats although it is in the scratchpad.
    decoding: of b, whose elements are decoded as they are read.
    """

    m: int
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Matrix
    b: Matrix
    c: Matrix
    batch: tuple[int, ...] = ()
    window: Window | None = None
    post_ops: tuple[PostOp, ...] = ()
    operands: tuple[Matrix, ...] = ()
    fpmath: str = "strict"
    scaling: Scaling = NO_SCALING
    zero_points: tuple[Matrix | None, Matrix | None] = (None, None)
    rounds_each: bool = False
    keeps_floats: bool = False
    decoding: Decoding | None = None

    @property
    def is_exact(self) -> bool:
        """Whether each step behind the sum is rounded."""
        return self.rounds_each or self.is_integer

    @property
    def is_integer(self) -> bool:
        """Whether products are those of integers, whose sums are exact."""
        return {self.a.data_type, self.b.data_type} <= set(INTEGERS)

    @property
    def is_wide(self) -> bool:
        """Whether products are those of f64, which are computed in f64."""
        return self.a.data_type == "f64"

    @property
    def sum_type(self) -> str:
        """The type of sums in the scratchpad."""
        return "f64" if self.is_wide else "f32"

    @property
    def sum_bytes(self) -> int:
        """The bytes of one sum of products."""
        return 8 if self.is_wide else 4

    @property
    def batches(self) -> int:
        """Products in the batch."""
        return math.prod(self.batch)

    @property
    def needed_window(self) -> Window | None:
        """The window; None if nothing is ever outside."""
        window = self.window
        if window is None:
            return None
        dims = len(window.size)
        sizes = (self.n[-dims:], self.k[-dims:], window.size)
        for at, n_step, k_step, n, k, size in zip(
            window.at, window.n, window.k, *sizes, strict=True
        ):
            reach = (n_step * (n - 1), k_step * (k - 1))
            first, last = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
            if at + first < 0 or at + last >= size:
                return window
        return None

    @property
    def columns(self) -> int:
        """Values of n."""
        return math.prod(self.n)

    @property
    def depth(self) -> int:
        """Values of k."""
        return math.prod(self.k)

    @property
    def size(self) -> int:
        """Elements of c."""
        return self.batches * self.m * self.columns


def split(gemm: Gemm) -> Iterator[Gemm]:
    """Return products of three batch digits at most: the largest, for each value of the others."""
    order = sorted(range(len(gemm.batch)), key=gemm.batch.__getitem__)
    looped, kept = order[:-BATCH_DIGITS], sorted(order[-BATCH_DIGITS:])
    if not looped:
        yield gemm
        return
    zero_m, zero_n = gemm.zero_points
    for values in itertools.product(*(range(gemm.batch[digit]) for digit in looped)):
        index = list(zip(looped, values, strict=True))
        yield replace(
            gemm,
            batch=tuple(gemm.batch[digit] for digit in kept),
            a=gemm.a.with_batch(kept, index),
            b=gemm.b.with_batch(kept, index),
            c=gemm.c.with_batch(kept, index),
            operands=tuple(operand.with_batch(kept, index) for operand in gemm.operands),
            zero_points=(
                zero_m and zero_m.with_batch(kept, index),
                zero_n and zero_n.with_batch(kept, index),
            ),
        )


def matrix(index: int, desc: MemoryDesc, strides: Strides, offset: int = 0) -> Matrix:
    """The operand at place `index`; `offset` moves its first element."""
    return Matrix(index, desc.offset0 + offset, strides, elements(desc), desc.data_type)


def broadcast_strides(desc: MemoryDesc) -> tuple[int, ...]:
    """A tensor's strides with 0 for its dims of size 1."""
    return tuple(0 if d == 1 else s for d, s in zip(desc.dims, desc.strides, strict=True))


def chain(
    op: Operation,
    attr: Attributes,
    result_strides: Callable[[Sequence[int]], Strides],
    bias_strides: Callable[[Sequence[int]], Strides] | None = None,
    scale_strides: Mapping[str, Callable[[Sequence[int]], Strides]] | None = None,
) -> dict[str, Any]:
    """Return a product's steps: the fields `post_ops`, `operands`, `scaling`, and `fpmath`.

    result_strides: turns strides per dim of the result into strides per digit, as bias_strides does
    for the bias, which is nothing but a first step, and scale_strides for the scales of src and
    weights, in the order of a and b.
    """
    places = {argument.name: i for i, (argument, _) in enumerate(op.tensors())}
    post_ops, operands = list(attr.post_ops), []
    bias = getattr(op, "bias", None)
    if bias is not None:
        assert bias_strides is not None, "an operation with a bias"
        post_ops.insert(0, PostOp.binary("add", bias))
        strides = bias_strides(broadcast_strides(bias))
        operands.append(matrix(places["bias"], bias, strides))
    for i, (_, desc) in enumerate(attr.operands()):
        strides = result_strides(broadcast_strides(desc))
        operands.append(matrix(len(places) + i, desc, strides))
    named = {
        argument.name: (len(places) + i, desc)
        for i, (argument, desc) in enumerate(attr.arguments(op))
    }
    of_tensors = dict(scale_strides or {}) | {op.result_name: result_strides}

    def values(*names: str) -> list[Matrix]:
        found = [(name, *named[name]) for name in names if name in named]
        return [
            matrix(place, desc, of_tensors[name.split("_")[0]](broadcast_strides(desc)))
            for name, place, desc in found
        ]

    factors = [
        replace(own, shares=_shares(op, name, attr.scales[name].groups))
        for name in ("src", "weights")
        for own in values(f"{name}_scales")
    ]
    scales, zero_points = values("dst_scales"), values("dst_zero_points")
    random, numbered = _random(op, attr, named, result_strides, before=bias is not None)
    numbers = []
    for name in scale_strides or ("src", "weights"):
        (found,) = values(f"{name}_zero_points") or (None,)
        if found:
            shares = _shares(op, name, attr.zero_points[name].groups)
            found = replace(found, shares=shares)
        numbers.append(found)
    return {
        "post_ops": tuple(post_ops),
        "operands": (*factors, *operands, *scales, *zero_points, *numbered),
        "scaling": Scaling(
            tuple(own.data_type for own in factors),
            tuple(own.data_type for own in scales),
            tuple(own.data_type for own in zero_points),
            random,
        ),
        "zero_points": tuple(numbers),
        "fpmath": attr.fpmath,
    }


def factor_dims(op: Operation, name: str) -> tuple[int, int]:
    """The dim of a factor along which it is summed up, and the one beside it."""
    if isinstance(op, MatMul):
        return (-2, -1) if name == "weights" else (-1, -2)
    return 1, 0


def _shares(op: Operation, name: str, groups: Sequence[int]) -> Shares:
    """The neighbours that have one scale or zero point of a factor.

    groups: along the last dims of the factor.
    """
    if not groups:
        return Shares()
    sizes = extended(groups, getattr(op, name).ndims, 1)
    along, beside = factor_dims(op, name)
    k = (sizes[along],) if isinstance(op, MatMul) else sizes[1:]
    return Shares(m=sizes[beside], k=k) if name == "src" else Shares(n=sizes[beside], k=k)


def _random(
    op: Operation,
    attr: Attributes,
    named: Mapping[str, tuple[int, MemoryDesc]],
    result_strides: Callable[[Sequence[int]], Strides],
    *,
    before: bool,
) -> tuple[Random | None, list[Matrix]]:
    """The steps with random numbers, and the operands that they have."""
    if not is_random(attr):
        return None, []
    places = MemoryDesc(op.result.dims, "u8")
    operands = [matrix(0, places, result_strides(broadcast_strides(places)))]
    scalars = []
    for name, (place, desc) in named.items():
        if name == MASK:
            operands.append(matrix(place, desc, result_strides(broadcast_strides(desc))))
        elif name.startswith(("dropout_", "rounding_")):
            scalars.append((name, desc.data_type, place))
    return Random(attr, int(before), op.result.data_type, tuple(scalars)), operands
