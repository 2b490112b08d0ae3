"""Scales and zero points of tensors, dropout: attributes whose values are passed at execution.

A quantized tensor represents the numbers scale * (value - zero point). docs/types.md defines the
steps of the computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from dnncore.errors import DataTypeError, DescriptorError
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.ops.operation import Operation

__all__ = ["Dropout", "Quantization", "Scales", "ZeroPoints"]


@dataclass(frozen=True)
class Quantization:
    """The base of `Scales` and `ZeroPoints`, whose docstrings describe the fields.

    NAME is the attribute's name. TYPES lists the possible types of the values, the default first.
    """

    NAME: ClassVar[str]
    TYPES: ClassVar[tuple[str, ...]]

    mask: int = 0
    groups: tuple[int, ...] = ()
    data_type: str = ""

    def __post_init__(self) -> None:
        if not _is_whole(self.mask) or not 0 <= self.mask < 1 << 12:
            self._fail(f"mask must be a whole number, a sum of 2**dim; got {self.mask!r}")
        try:
            groups: tuple[Any, ...] = tuple(self.groups)
        except TypeError:
            groups = (None,)
        if len(groups) not in (0, 2) or not all(_is_whole(size) and size > 0 for size in groups):
            self._fail(
                "groups must be () or two numbers above 0, of the last two dims; got"
                f" {self.groups!r}"
            )
        given: object = self.data_type
        own = self.TYPES[0] if isinstance(given, str) and not given else given
        if not isinstance(own, str) or own not in self.TYPES:
            raise DataTypeError(
                f"{self.NAME}: data_type must be one of {', '.join(self.TYPES)}; got {own!r}",
                f"{self.NAME} of data type {own}",
            )
        values = {"mask": int(self.mask), "groups": tuple(map(int, groups)), "data_type": own}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _fail(self, text: str) -> None:
        raise DescriptorError(f"{self.NAME}: {text}")

    def desc(self, tensor: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of the argument for a tensor."""
        sizes = [1] * (tensor.ndims - len(self.groups)) + list(self.groups)
        dims = (
            size // group if self.mask >> d & 1 else 1
            for d, (size, group) in enumerate(zip(tensor.dims, sizes, strict=True))
        )
        return MemoryDesc(tuple(dims), self.data_type)

    def check(self, op: Operation, name: str) -> None:
        """Raise `DescriptorError` if `op` does not permit these values for the tensor `name`."""
        what = f"{op.KIND}: {self.NAME} of {name}"
        allowed = self._rules(op)
        if name not in allowed:
            able = ", ".join(allowed)
            raise DescriptorError(f"{what}: only {able} can have them" if able
                                  else f"{what}: {op.KIND} has no {self.NAME}")  # fmt: skip
        tensor: MemoryDesc = getattr(op, name)
        if self.mask not in allowed[name]:
            masks = allowed[name]
            known = f"0 to {masks[-1]}" if len(masks) > 8 else ", ".join(map(str, sorted(masks)))
            raise DescriptorError(
                f"{what}: mask must be one of {known} for dims {tensor.dims}; got {self.mask};"
                " bit d is set for one value per index of dim d"
            )
        if self.groups:
            self._check_groups(op, name, what, tensor.dims)

    def _check_groups(self, op: Operation, name: str, what: str, dims: tuple[int, ...]) -> None:
        if name not in op.GROUPED:
            able = f"only {' or '.join(op.GROUPED)}" if op.GROUPED else "no tensor"
            raise DescriptorError(
                f"{what}: {able} can have groups; got groups {self.groups}; leave them out"
            )
        if len(dims) < 2:
            raise DescriptorError(f"{what}: groups need two dims at least; got {dims}")
        for d, group in zip((-2, -1), self.groups, strict=True):
            if group > 1 and not self.mask >> (len(dims) + d) & 1:
                raise DescriptorError(
                    f"{what}: the mask must contain the dims that are divided in groups; got mask"
                    f" {self.mask} and groups {self.groups} for dims {dims}"
                )
            if dims[d] % group:
                raise DescriptorError(
                    f"{what}: groups must divide the last two dims; got {self.groups} for {dims}"
                )

    @classmethod
    def _rules(cls, op: Operation) -> Mapping[str, Any]:
        """Return the masks that each tensor of `op` may have."""
        raise NotImplementedError

    @classmethod
    def checked(cls, given: Any) -> dict[str, Self]:
        """Return the attribute as a dict of tensor name to values, without entries of None."""
        if not isinstance(given, Mapping):
            raise DescriptorError(
                f"attributes: {cls.NAME} must be a mapping, such as"
                f" {{'src': {cls.__name__}()}}; got {given!r}"
            )
        for name, values in given.items():
            if not isinstance(name, str) or not isinstance(values, cls):
                raise DescriptorError(
                    f"attributes: {cls.NAME} must map names of tensors to {cls.__name__};"
                    f" got {name!r}: {values!r}; pass a mapping such as"
                    f" {{'src': {cls.__name__}(mask=0)}}"
                )
        return {name: given[name] for name in sorted(given)}


class Scales(Quantization):
    """The scales of a tensor.

    Scales of inputs multiply the values. Scales of dst divide the results.

    mask: if bit d is set, there is one value for each index of dim d, else one value for the whole
        dim. The mask 0 means one value for the tensor.
    groups: numbers of neighbouring elements that share a value, along the last two dims. `(32, 1)`
        means one value for 32 rows: of each column with a mask of both dims, of all columns with a
        mask of the rows only. The mask must contain each dim whose number is not 1. () means no
        groups.
    data_type: the type of the values, f32, f16 or bf16.

    At execution, the values of src are the argument `src_scales`, and so on. The argument is a
    row-major tensor with the rank of src. Its size along a dim in the mask is the size of src,
    divided by the size of the group. Along other dims its size is 1.
    """

    NAME = "scales"
    TYPES = ("f32", "f16", "bf16")

    @classmethod
    def _rules(cls, op: Operation) -> Mapping[str, Any]:
        return op.scale_masks


class ZeroPoints(Quantization):
    """The zero points of a tensor of integers.

    Zero points of inputs are subtracted from the values. Zero points of dst are added to the
    results.

    mask: if bit d is set, there is one value for each index of dim d, else one value for the whole
        dim. The mask 0 means one value for the tensor.
    groups: numbers of neighbouring elements that share a value, along the last two dims. `(32, 1)`
        means one value for 32 rows: of each column with a mask of both dims, of all columns with a
        mask of the rows only. The mask must contain each dim whose number is not 1. () means no
        groups.
    data_type: the type of the values, s32, s8, u8, s4 or u4.

    At execution, the values of src are the argument `src_zero_points`, and so on. The argument is a
    row-major tensor with the rank of src. Its size along a dim in the mask is the size of src,
    divided by the size of the group. Along other dims its size is 1.
    """

    NAME = "zero_points"
    TYPES = ("s32", "s8", "u8", "s4", "u4")

    def check(self, op: Operation, name: str) -> None:
        """Do the same checks as for scales. Also check that the tensor has an integer type."""
        super().check(op, name)
        own = getattr(op, name).data_type
        if data_type(own).is_float:
            raise DescriptorError(
                f"{op.KIND}: zero_points of {name}: only tensors of integers have them; got {own}"
            )

    @classmethod
    def _rules(cls, op: Operation) -> Mapping[str, Any]:
        return op.zero_point_masks


@dataclass(frozen=True)
class Dropout:
    """Some results are replaced by 0 before post-ops; the others are multiplied by 1 / (1 - p).

    Arguments at execution: `dropout_probability` is one f32, p from 0 to 1. `dropout_seed` is one
    number of `seed_type`. With `has_offset`, `dropout_offset` is one s64. With `has_mask`, the
    output `dropout_mask` has type u8 and dst's dims and format. It contains 1 for each result that
    is kept.

    seed_type: "s64" or "s32".
    """

    seed_type: Literal["s64", "s32"] = "s64"
    has_offset: bool = False
    has_mask: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.seed_type, str) or self.seed_type not in ("s64", "s32"):  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"dropout: seed_type must be 's64' or 's32'; got {self.seed_type!r}"
            )
        for name in ("has_offset", "has_mask"):
            if not isinstance(getattr(self, name), bool):
                raise DescriptorError(
                    f"dropout: {name} must be True or False; got {getattr(self, name)!r}"
                )

    def arguments(self, dst: MemoryDesc) -> list[tuple[str, str, MemoryDesc]]:
        """Return the arguments as (name, "in" or "out", descriptor)."""
        rows = [
            ("dropout_probability", "in", MemoryDesc((1,), "f32")),
            ("dropout_seed", "in", MemoryDesc((1,), self.seed_type)),
        ]
        if self.has_offset:
            rows.append(("dropout_offset", "in", MemoryDesc((1,), "s64")))
        if self.has_mask:
            rows.append(("dropout_mask", "out", dst.with_data_type("u8")))
        return rows


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
