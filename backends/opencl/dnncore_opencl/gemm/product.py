"""Matrix products over strided operands. Convolution, inner product and matmul consist of these.

    c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]

n and k have up to four digits. For a convolution, n is (image, depth, height, width) and k is
(channel, depth, height, width of the kernel). The batch z may have any number of digits. Kernels
support three; `split` creates one product per value of the others. Each operand has a stride per
digit, so no operand is copied into matrix form. If b is an image, a `Window` defines its borders.

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

BATCH_DIGITS = 3  # of a batch in a kernel


@dataclass(frozen=True)
class Strides:
    """An operand's strides in elements, per digit; 0 for digits on which it does not depend."""

    batch: tuple[int, ...] = ()
    m: int = 0
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shares:
    """How many consecutive indices m, n (last digit) and k (each digit) share one element."""

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
        """Keep some digits of the batch. `index` fixes the others, as (digit, value)."""
        batch = self.strides.batch
        offset = self.offset + sum(batch[digit] * value for digit, value in index)
        kept = tuple(batch[digit] for digit in digits)
        return replace(self, offset=offset, strides=replace(self.strides, batch=kept))


@dataclass(frozen=True)
class Decoding:
    """How b is decoded: zero points are subtracted from its elements, then scales multiply."""

    scales: Matrix | None
    zero_points: Matrix | None


@dataclass(frozen=True)
class Window:
    """Borders of b as an image: coordinate = at + n * digit of n + k * digit of k, per spatial dim.

    Elements at coordinates below 0 or at `size` and above are 0. One entry per spatial dim.
    """

    at: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Gemm:
    """A batch of products: sizes, operands, and the steps that are applied to a result.

    operands: the operands of the steps, in order: scales of the sum, operands of post_ops, scales
    and zero points of c. `scaling` has the types of all but those of post_ops. zero_points: a
    number subtracted from each element of a, and one for b. rounds_each: whether each step is
    rounded, as for integers. keeps_floats: whether c is stored as floats even in the scratchpad.
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
        """Whether each step after the sum is rounded."""
        return self.rounds_each or self.is_integer

    @property
    def is_integer(self) -> bool:
        """Whether the products are of integers, whose sums are exact."""
        return {self.a.data_type, self.b.data_type} <= set(INTEGERS)

    @property
    def is_wide(self) -> bool:
        """Whether the products are of f64 and are computed in f64."""
        return self.a.data_type == "f64"

    @property
    def sum_type(self) -> str:
        """The data type of sums in the scratchpad."""
        return "f64" if self.is_wide else "f32"

    @property
    def sum_bytes(self) -> int:
        """The bytes of one sum of products."""
        return 8 if self.is_wide else 4

    @property
    def batches(self) -> int:
        """The number of products in the batch."""
        return math.prod(self.batch)

    @property
    def needed_window(self) -> Window | None:
        """The window; None if no element is outside of the image."""
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
        """The number of values of n."""
        return math.prod(self.n)

    @property
    def depth(self) -> int:
        """The number of values of k."""
        return math.prod(self.k)

    @property
    def size(self) -> int:
        """The number of elements of c."""
        return self.batches * self.m * self.columns


def split(gemm: Gemm) -> Iterator[Gemm]:
    """Yield products over the three largest batch digits, one per value of the other digits."""
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
    """Return the operand at place `index`. `offset` shifts its first element."""
    return Matrix(index, desc.offset0 + offset, strides, elements(desc), desc.data_type)


def broadcast_strides(desc: MemoryDesc) -> tuple[int, ...]:
    """Return a tensor's strides, with 0 for dims of size 1."""
    return tuple(0 if d == 1 else s for d, s in zip(desc.dims, desc.strides, strict=True))


def chain(
    op: Operation,
    attr: Attributes,
    result_strides: Callable[[Sequence[int]], Strides],
    bias_strides: Callable[[Sequence[int]], Strides] | None = None,
    scale_strides: Mapping[str, Callable[[Sequence[int]], Strides]] | None = None,
) -> dict[str, Any]:
    """Return a product's steps: the fields `post_ops`, `operands`, `scaling`, and `fpmath`.

    result_strides: converts strides per dim of the result to strides per digit. bias_strides: the
    same for the bias, which is added as the first step. scale_strides: the same for the scales of
    src and weights, in the order a, b.
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
    """Return the dim along which a factor is summed, and its other matrix dim."""
    if isinstance(op, MatMul):
        return (-2, -1) if name == "weights" else (-1, -2)
    return 1, 0


def _shares(op: Operation, name: str, groups: Sequence[int]) -> Shares:
    """Return how many neighbours share one scale or zero point of a factor.

    groups: group sizes along the last dims of the factor.
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
    """Return the steps that use random numbers, and their operands."""
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
