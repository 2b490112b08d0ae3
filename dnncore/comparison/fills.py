"""Values of inputs for checks of results, from a seed. `FILLS` is the table of all kinds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from ml_dtypes import iinfo

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.attributes import Attributes
from dnncore.comparison.quantized import is_integer_product
from dnncore.ops import Operation, PoolingForward, Reduction, Reorder
from dnncore.ops.rnn import RNN
from dnncore.problem import driver_of
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "FILLS",
    "NOT_NEGATIVE",
    "Fill",
    "FillKind",
    "FillName",
    "fill_inputs",
    "fill_integers",
    "fill_normal",
    "keeps_integers",
    "operand_names",
    "reads",
]

Array = np.ndarray[Any, Any]
Seed = int | Sequence[int]
Fill: TypeAlias = Callable[[MemoryDesc, Seed], Array]
FillName: TypeAlias = Literal[
    "integers", "random", "ties", "cancellation", "wide", "large", "tiny", "special", "slabs",
    "special_operands",
]  # fmt: skip


def fill_integers(
    desc: MemoryDesc, seed: Seed, low: int = -4, high: int = 4, density: float = 1.0
) -> Array:
    """Draw integers from low to high, then set a share of 1 - density of them to zero.

    A million products of such numbers have an exact sum in float32, in any order. Unsigned types
    start at 0. Returns an array of desc's dims and dtype.
    """
    rng = np.random.default_rng(seed)
    low = max(low, 0) if desc.data_type.startswith("u") else low
    values = rng.integers(low, high, desc.dims, endpoint=True)
    return (values * (rng.random(desc.dims) < density)).astype(desc.dtype)


def fill_normal(desc: MemoryDesc, seed: Seed, scale: float = 1.0, mean: float = 0.0) -> Array:
    """Draw from the normal distribution. Return an array of desc's dims and dtype."""
    values = mean + scale * np.random.default_rng(seed).standard_normal(desc.dims)
    return values.astype(desc.dtype)


# -- scales, zero points and the like --------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """Fills for arguments of attributes: scales, zero points, the probability and the seeds of
    dropout.

    scales: scales(op, name, desc, seed) returns the scales of the tensor `name`.
    zero_points: zero_points(name, desc, seed) returns the zero points of the tensor `name`.
    shares: the probabilities of dropout.
    """

    scales: Callable[[Operation, str, MemoryDesc, Seed], Array]
    zero_points: Callable[[str, MemoryDesc, Seed], Array]
    shares: tuple[float, ...] = (0.1, 0.3, 0.9)

    def __call__(self, op: Operation, name: str, desc: MemoryDesc, seed: Seed) -> Array:
        """Return the values of an argument."""
        if name.endswith(("seed", "offset")):
            return _any_integers(desc, seed)
        if name == "dropout_probability":
            rng = np.random.default_rng(seed)
            return rng.choice(self.shares, desc.dims).astype(desc.dtype)
        if name.endswith("_zero_points"):
            return self.zero_points(name, desc, seed)
        return self.scales(op, name, desc, seed)


def _is_of_result(name: str) -> bool:
    return name.startswith(("dst", "diff"))


def _zero_points(most: int) -> Callable[[str, MemoryDesc, Seed], Array]:
    """Return a function that draws integers from -most to most, in types of 4 bits from -3 to 3."""

    def draw(_name: str, desc: MemoryDesc, seed: Seed) -> Array:
        own = min(most, 3) if data_type(desc.data_type).bits < 8 else most
        return fill_integers(desc, seed, -own, own)

    return draw


def _tied_zero_points(name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw small integers; for the result, magnitudes up to 100, so that digits cancel."""
    if not _is_of_result(name):
        return _zero_points(3)(name, desc, seed)
    signs = fill_integers(desc, seed, -1, 1)
    magnitudes = 2.0 ** np.random.default_rng(seed).uniform(0, np.log2(100), desc.dims)
    return (signs * np.minimum(magnitudes, iinfo(desc.dtype).max)).astype(desc.dtype)  # type: ignore[no-untyped-call]


def _usual_scales(_op: Operation, name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw scales for which products of any s8 and u8 are about sqrt(K).

    Most results then stay within s8.
    """
    low, high = (0.05, 0.3) if _is_of_result(name) else (1 / 128, 1 / 40)
    return np.random.default_rng(seed).uniform(low, high, desc.dims).astype(desc.dtype)


def _powers_of_two(_op: Operation, _name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw powers of two, for which small integers have exact results."""
    return (2.0 ** np.random.default_rng(seed).integers(-2, 2, desc.dims)).astype(desc.dtype)


ODD = (3, 5, 7, 11)


def _tied_scales(op: Operation, name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw powers of two, times one odd factor where docs/types.md defines all steps.

    The odd factors cancel, so that many results lie in the middle of two integers. An
    implementation that divides, or that contracts steps, computes numbers next to the middle.
    """
    factor = 1
    if isinstance(op, Reorder) or is_integer_product(op):
        factor = np.random.default_rng(np.ravel(seed)[0]).choice(ODD)  # the same for all names
    values: Array = _powers_of_two(op, name, desc, seed) * factor
    return values.astype(desc.dtype)


def _wide_scales(_op: Operation, _name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw magnitudes from 1/256 to 256, of both signs."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], desc.dims)
    values: Array = signs * 2.0 ** rng.uniform(-8, 8, desc.dims)
    return values.astype(desc.dtype)


WIDEST = {"weights": 18}
"""Bits of the zero points of s32. With 24 bits of src, sums of 2,000 products fit into 53 bits."""


def _wide_zero_points(name: str, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw any integer of a type with up to 8 bits. For s32, draw integers that make sums wrap."""
    if data_type(desc.data_type).bits <= 8:
        return _any_integers(desc, seed)
    rng = np.random.default_rng(seed)
    bits = WIDEST.get(name.removesuffix("_zero_points"), 24)
    signs = rng.choice([-1, 1], desc.dims)
    values: Array = np.rint(signs * 2.0 ** rng.uniform(bits / 2, bits, desc.dims))
    return values.astype(desc.dtype)


USUAL = Parameters(_usual_scales, _zero_points(20))
EXACT = Parameters(_powers_of_two, _zero_points(3), (0.5, 0.75))
TIED = Parameters(_tied_scales, _tied_zero_points, (0.5, 0.75))
WIDE = Parameters(_wide_scales, _wide_zero_points)


# -- kinds of values ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FillKind:
    """A kind of values with which results are checked.

    draw: draw(op, desc, seed) returns the values of a floating-point tensor of the operation.
    integers: the same for a tensor of integers.
    exact_terms, exact_result: sums of up to `exact_terms` products are exact in f32, in any order,
        if the magnitude of the result is at most `exact_result`. 0 if sums are rounded.
    exact_chains: whether results are also exact after post-ops that read tensors.
    of: the inputs with such values; all other inputs are random. "one factor" means only the first
        factor of products. Then an infinity is never multiplied by the zeros of padding, which an
        implementation may multiply or omit. "operands": bias, operands of post-ops, and old values
        of the result.
    random_order: whether bounds for terms in random order apply. They do not apply if few terms are
        large, or if squares exceed f32's range.
    parameters: fills for scales, zero points and dropout.
    """

    draw: Callable[[Operation, MemoryDesc, Seed], Array]
    integers: Callable[[MemoryDesc, Seed], Array] = fill_integers
    exact_terms: float = 0.0
    exact_result: float = 0.0
    exact_chains: bool = True
    of: Literal["all", "one factor", "operands"] = "all"
    random_order: bool = False
    parameters: Parameters = field(default_factory=lambda: USUAL)

    def __call__(self, op: Operation) -> Fill:
        """Return the function that fills the operation's tensors."""
        return _FillOf(self, op)


@dataclass(frozen=True)
class _FillOf:
    """A function that fills tensors of an operation."""

    kind: FillKind
    op: Operation

    @property
    def parameters(self) -> Parameters:
        return self.kind.parameters

    def __call__(self, desc: MemoryDesc, seed: Seed) -> Array:
        if desc.data_type[0] in "su":
            return self.kind.integers(desc, seed)
        return self.kind.draw(self.op, desc, seed)


def _all_small_integers(desc: MemoryDesc, seed: Seed) -> Array:
    """Draw from all integers of a type with 8 or fewer bits, and from 2**20 of s32."""
    if data_type(desc.data_type).bits <= 8:
        return _any_integers(desc, seed)
    return fill_integers(desc, seed, -(2**20), 2**20)


def _any_integers(desc: MemoryDesc, seed: Seed) -> Array:
    """Draw from all integers of the type."""
    limits = iinfo(desc.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    rng = np.random.default_rng(seed)
    drawn = rng.integers(limits.min, limits.max, desc.dims, np.int64, endpoint=True)
    return drawn.astype(desc.dtype)


BITS = (8, 11, 24)  # of the fractions of bf16, f16 and f32


def _tied_integers(desc: MemoryDesc, seed: Seed) -> Array:
    """Draw integers halfway between two numbers of a shorter type, or next to such an integer.

    For s8 and u8, draw small integers.
    """
    if desc.data_type != "s32":
        return fill_integers(desc, seed)
    rng = np.random.default_rng(seed)
    bits = rng.choice(BITS, desc.dims)
    exponents = rng.integers(bits, 31)
    even = 2 * rng.integers(2 ** (bits - 2), 2 ** (bits - 1)) + rng.integers(2, size=desc.dims)
    middle = (2 * even + 1) << (exponents - bits)
    signs = rng.choice([-1, 1], desc.dims)
    values: Array = signs * (middle + rng.integers(-1, 2, desc.dims))
    return values.astype(desc.dtype)


def _integers(_op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    return fill_integers(desc, seed)


WEIGHTS_DIMS = 5  # of the weights of recurrent cells: (L, D, rows, G, DHC)


def _random(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw from the normal distribution; for reorders so that some conversions saturate.

    The products with the weights of recurrent cells have the variance 1. Larger ones would saturate
    the gates, and errors would grow from step to step.
    """
    if isinstance(op, RNN) and desc.ndims == WEIGHTS_DIMS:
        return fill_normal(desc, seed, max(1, desc.dims[2]) ** -0.5)
    return fill_normal(desc, seed, 100.0 if isinstance(op, Reorder) else 1.0)


def _ties(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw multiples of 1/2 with many repetitions.

    Magnitudes are at most 4096, for operations with products at most 32. So results often lie
    halfway between two numbers of a half type or two integers. Factors of one product of all terms
    are at most 1. For reorders, half of the numbers are adjacent to such a number in their type.
    """
    high = 64 if driver_of(type(op)).has_products else 8192
    if isinstance(op, Reduction) and op.algorithm == "mul":
        high = 2
    rng = np.random.default_rng(seed)
    limits = rng.choice([2, high // 8, high], desc.dims)
    drawn: Array = np.rint(rng.uniform(-1, 1, desc.dims) * limits) / 2
    values = (drawn + 0.0).astype(desc.dtype)  # no -0.0: torch loses its sign in inverse functions
    if isinstance(op, Reorder) and desc.data_type in ("f32", "f64"):
        beside = np.nextafter(values, values.dtype.type(rng.choice([-np.inf, np.inf])))
        values = np.where(rng.random(desc.dims) < 1 / 2, beside, values)
    return values


MEANS = {"f16": 8.0}  # larger numbers have products beyond f16's range


def _cancelling(_op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw from the normal distribution around 1e4; differences lose most digits."""
    return fill_normal(desc, seed, mean=MEANS.get(desc.data_type, 1e4))


def _magnitudes(
    low: float, high: float, half: tuple[float, float], *, negative: bool = False
) -> Callable[[Operation, MemoryDesc, Seed], Array]:
    """Return a function that draws numbers whose binary exponents are uniform.

    half: the exponents for f16. For a reduction by products, exponents are reduced so that the
        product of all terms is in f32's range.
    negative: whether all inputs of reductions and pooling are negative, so that checks detect an
        implementation that returns 0 instead of the largest number. Numbers around 1e4 detect a 0
        instead of the smallest number.
    """

    def draw(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
        first, last = half if desc.data_type == "f16" else (low, high)
        share = 1.0
        if isinstance(op, Reduction) and op.algorithm == "mul":
            share = max(1, op.dst.nelems) / max(1, op.src.nelems)
        rng = np.random.default_rng(seed)
        signs = rng.choice([-1.0, 1.0], desc.dims)
        if negative and isinstance(op, (Reduction, PoolingForward)):
            signs = -np.ones(desc.dims)
        values: Array = signs * 2.0 ** rng.uniform(share * first, share * last, desc.dims)
        return values.astype(desc.dtype)

    return draw


_wide = _magnitudes(-20, 20, half=(-12, 6))
_tiny_numbers = _magnitudes(-60, -40, half=(-24, -14))


def _tiny(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw numbers near 0; some are subnormal or 0."""
    values = _tiny_numbers(op, desc, seed)
    rng = np.random.default_rng(seed)
    least = np.array([1e-40, -1e-40, 1.4e-45, 0.0], np.float32).astype(desc.dtype)
    return np.where(rng.random(desc.dims) < 1 / 8, rng.choice(least, desc.dims), values)


SHARE = 40  # one number in this many is special, but each kind occurs at least once


def _specials(dtype: np.dtype[Any]) -> Array:
    """Return NaN, the infinities, -0.0, and a NaN with all bits set.

    A conversion that rounds by an addition to the bits turns this last NaN into a number.
    """
    values = np.array([np.nan, np.inf, -np.inf, -0.0, np.nan]).astype(dtype)
    values[-1:].view(np.uint8)[:] = 0xFF
    return values


def _finite(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw from the normal distribution; for products of all terms so that no order overflows."""
    if isinstance(op, Reduction) and op.algorithm == "mul":
        return _wide(op, desc, seed)
    return fill_normal(desc, seed)


def _special(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw random numbers, and replace some of them by special numbers."""
    values = _finite(op, desc, seed).reshape(-1)
    rng = np.random.default_rng(seed)
    specials = _specials(desc.dtype)
    places = rng.permutation(values.size)[: max(specials.size, values.size // SHARE)]
    values[places] = np.resize(np.roll(specials, int(rng.integers(specials.size))), places.size)
    return values.reshape(desc.dims)


SLAB = 3  # a slab has one third of the indices along its dim


def _slabs(op: Operation, desc: MemoryDesc, seed: Seed) -> Array:
    """Draw random numbers, and replace slabs by one special number each.

    A slab contains all elements within a range of a dim.

    So whole rows, images and windows are -inf or NaN. For products, only the first dim has a slab,
    because slabs of other dims would make all sums infinite.
    """
    values = _finite(op, desc, seed)
    rng = np.random.default_rng(seed)
    numbers = rng.permutation([-np.inf, np.nan, -np.inf, np.inf])
    dims = 1 if driver_of(type(op)).special_inputs else values.ndim
    for dim in rng.permutation(dims):
        size = desc.dims[dim]
        start = int(rng.integers(max(1, size)))
        index = [slice(None)] * values.ndim
        index[dim] = slice(start, start + max(1, size // SLAB) if size > 1 else 0)
        values[tuple(index)] = numbers[dim % len(numbers)]
    return values


FILLS: Mapping[str, FillKind] = {
    "integers": FillKind(_integers, exact_terms=2**20, exact_result=2**24, parameters=EXACT),
    "random": FillKind(_random, _all_small_integers, random_order=True),
    "ties": FillKind(
        _ties,
        _tied_integers,
        exact_terms=2**12,
        exact_result=2**18,
        exact_chains=False,
        parameters=TIED,
    ),
    "cancellation": FillKind(_cancelling, random_order=True),
    "wide": FillKind(_wide, _any_integers, parameters=WIDE),
    "large": FillKind(
        _magnitudes(17, 30, half=(8, 15.99), negative=True), _any_integers, parameters=WIDE
    ),
    "tiny": FillKind(_tiny),
    "special": FillKind(_special, of="one factor"),
    "slabs": FillKind(_slabs, of="one factor"),
    "special_operands": FillKind(_special, of="operands"),
}
"""The kinds of values, by name.

integers: small integers; sums of products are exact.
random: normally distributed numbers.
ties: multiples of 1/2, with repetitions; results lie halfway between two half numbers.
cancellation: normally distributed numbers around 1e4.
wide: numbers of both signs with magnitudes from 1e-6 to 1e6.
large: magnitudes from 1e5 to 1e9; in f16 to 65504. For reductions and pooling they are negative.
tiny: magnitudes from 1e-18 to 1e-12, subnormal numbers and 0.
special: some elements are NaN, one of them with all bits set, infinite or -0.0.
slabs: in each dim, a range of indices contains only -inf, NaN or +inf.
special_operands: as special, for bias, operands of post-ops and old values of the result alone.
"""


NOT_NEGATIVE = ("variance",)
"""Inputs that are at least 0."""


def reads(op: Operation, attr: Attributes) -> dict[str, MemoryDesc]:
    """Return the tensors that an execution reads, as argument name -> descriptor.

    They include dst if a post-op reads its old values. A workspace is omitted, because a forward
    operation determines its values.
    """
    descs = {a.name: desc for a, desc in op.tensors() if a.direction == "in"}
    descs.update({a.name: desc for a, desc in attr.arguments(op) if a.direction == "in"})
    if attr.reads_dst:
        descs[op.result_name] = attr.stored(op)
    return descs


def operand_names(op: Operation, attr: Attributes) -> set[str]:
    """Return the names of bias, operands of post-ops, and the result if a post-op reads its old
    value. The weights of a depthwise convolution are factors, as other weights.
    """
    factors = {a.name for a, _ in op.tensors() if a.direction == "in" and a.name != "bias"}
    kinds = enumerate(step.kind for step in attr.post_ops)
    factors |= {f"post_op_{i}_weights" for i, kind in kinds if kind == "depthwise"}
    return {name for name in reads(op, attr) if name not in factors}


def fill_inputs(op: Operation, attr: Attributes, fill: Fill, seed: int = 0) -> dict[str, Array]:
    """Return an array for each tensor of `reads`. Each name has its own seed."""
    own = {row.name for row in op.ARGUMENTS} | {name for name, _ in attr.operands()}
    parameters = getattr(fill, "parameters", EXACT)
    values = {}
    for name, desc in reads(op, attr).items():
        seeds = (seed, zlib.crc32(name.encode()))
        if name in own:
            drawn = fill(desc, seeds)
            values[name] = np.abs(drawn) if name in NOT_NEGATIVE else drawn
        else:
            values[name] = parameters(op, name, desc, seeds)
    return values


# -- exactness ------------------------------------------------------------------------------------


def keeps_integers(op: Operation, attr: Attributes) -> bool:
    """Whether integer inputs give integer outputs, so that sums are exact in every order."""
    return driver_of(type(op)).keeps_integers(op) and all(
        POST_OPS[step.kind].keeps_integers(step) for step in attr.post_ops
    )
