"""The rules that batch, layer and group normalization share.

    dst = scale * (src - mean) / sqrt(variance + epsilon) + shift

Each pair of mean and variance belongs to a set of `count` elements of src. mean is the average of
the set. variance is the average of (src - mean)**2, without Bessel's correction. An operation
computes both from src, or reads them if `use_global_stats` is true. scale and shift have a number
per channel. An absent scale is 1, and an absent shift is 0. With

    x = (src - mean) / sqrt(variance + epsilon),    g = scale * diff_dst

the gradients are

    diff_scale = sum of diff_dst * x        over the elements of a channel
    diff_shift = sum of diff_dst            over the elements of a channel
    diff_src   = (g - average of g - x * average of g * x) / sqrt(variance + epsilon)

with averages over the set of each statistic. With `use_global_stats`, mean and variance do not
depend on src, and both averages are absent.

The mean and the variance of a set without elements are 0. If epsilon and a variance are 0, results
are 0 / 0, so NaN. Both are numbers of f32: a variance above 3.4e38, of elements above about 1e19,
overflows, and results are then 0 or NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dnncore.algorithms.rules import check_finite
from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.ops.types import HALF_TYPES, Rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Normalization", "NormalizationBackward", "NormalizationForward", "backward_table",
           "forward_table", "gradient_types", "typed_rows"]  # fmt: skip

STATISTICS = ("mean", "variance")
VECTORS = ("scale", "shift", "diff_scale", "diff_shift")


class _ByStatistics:
    """The argument table of an operation that reads the statistics or computes them.

    The class has the rows of an operation that computes them.
    """

    def __init__(self, computed: tuple[Argument, ...], given: tuple[Argument, ...]) -> None:
        self.computed = computed
        self.given = given

    def __get__(self, op: Any, _kind: Any = None) -> tuple[Argument, ...]:
        return self.given if op is not None and op.use_global_stats else self.computed


def forward_table(added: str = "", workspace: str = "") -> Any:
    """Return the argument table of a forward operation.

    added, workspace: the names of these tensors if the operation may have them.
    """
    sources = reads("src", *added.split())
    vectors, last = reads("scale", "shift"), writes(*workspace.split())
    return _ByStatistics(
        sources + vectors + writes("dst", *STATISTICS) + last,
        sources + reads(*STATISTICS) + vectors + writes("dst") + last,
    )


def backward_table(added: str = "", workspace: str = "") -> tuple[Argument, ...]:
    """Return the argument table of a gradient."""
    inputs = reads("src", "diff_dst", *STATISTICS, "scale", *workspace.split())
    return inputs + writes("diff_src", "diff_scale", "diff_shift", *added.split())


def typed_rows(rows: Rows, *vector_types: str) -> Rows:
    """Return rows with the types of statistics, f32, and of scale and shift and their gradients."""
    statistics = dict.fromkeys(STATISTICS, ("f32",))
    return tuple(
        {**row, **statistics, **dict.fromkeys(VECTORS, (own,))}
        for row in rows
        for own in vector_types
    )


def gradient_types(*vector_types: str) -> Rows:
    """Return rows in which diff_src has src's type, and diff_dst has any type."""
    floats = ("f32", *HALF_TYPES)
    rows = [{"src": (own,), "diff_dst": floats, "diff_src": (own,)} for own in floats]
    return typed_rows(rows, *vector_types)


@dataclass(frozen=True, eq=False, kw_only=True)
class Normalization(Operation):
    """The part common to both directions."""

    RANKS: ClassVar[tuple[int, int]] = (2, 5)

    mean: MemoryDesc | None = None
    variance: MemoryDesc | None = None
    scale: MemoryDesc | None = None
    epsilon: float = 1e-5
    use_global_stats: bool = False

    @property
    def source(self) -> MemoryDesc:
        """The tensor src, which both directions read."""
        desc: MemoryDesc = vars(self)["src"]
        return desc

    @property
    def statistics_dims(self) -> tuple[int, ...]:
        """The dims of mean and variance."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """The number of elements of scale and of shift."""
        return self.source.dims[1]

    @property
    def count(self) -> int:
        """The number of elements of src that share a mean and a variance."""
        raise NotImplementedError

    @property
    def has_mean(self) -> bool:
        """Whether the mean is subtracted."""
        return True

    def _check(self, *same: str, has_statistics: bool) -> None:
        """Check the fields. same: the tensors with src's dims."""
        check_finite(self.KIND, epsilon=self.epsilon)
        if self.epsilon < 0:
            self._fail(f"epsilon must be at least 0; got {self.epsilon!r}")
        self._set(epsilon=float(self.epsilon))
        self._check_flag("use_global_stats")
        self._check_descs()
        least, most = self.RANKS
        if not least <= self.source.ndims <= most:
            self._fail(f"src must have {least} to {most} dims; got {self.source.dims}")
        self._check_shape()
        self._check_statistics(present=has_statistics)
        for name in same:
            if vars(self).get(name) is not None:
                self._check_dims(name, self.source.dims, "src's dims")
        for name in VECTORS:
            if vars(self).get(name) is not None:
                self._check_dims(name, (self.channels,), "one number per channel of src")
        layouts = ("src", "src1", *STATISTICS, "scale", "shift")
        self._check_descs(concrete=[name for name in layouts if name in vars(self)])
        self._check_types()

    def _check_shape(self) -> None:
        """Check rules on the dims of src, before statistics_dims is used."""

    def _check_flag(self, name: str) -> None:
        value = vars(self)[name]
        if not isinstance(value, bool):
            self._fail(f"{name} must be True or False; got {value!r}")

    def _check_statistics(self, *, present: bool) -> None:
        """Check the descriptors of statistics. Replace None by a row-major descriptor."""
        for name in STATISTICS:
            desc = vars(self)[name]
            if not present or (name == "mean" and not self.has_mean):
                if desc is not None:
                    self._fail(f"{name} must be None, because {self._absence(name)}; got {desc!r}")
                continue
            if desc is None:
                self._set(**{name: MemoryDesc(self.statistics_dims, "f32")})
            self._check_dims(name, self.statistics_dims, "one number per set of elements")

    def _absence(self, name: str) -> str:
        if name == "mean" and not self.has_mean:
            return "RMS normalization subtracts no mean"
        return "inference keeps no statistics; it reads them with use_global_stats"


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalizationForward(Normalization):
    """The part common to forward operations."""

    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("src", "dst"),)

    shift: MemoryDesc | None = None

    def _check_forward(self, prop_kind: object) -> None:
        self._check_prop_kind(prop_kind)
        is_training = prop_kind == "forward_training"
        flag = vars(self)["use_global_stats"] is True
        self._check("src1", "dst", has_statistics=is_training or flag)

    @property
    def flops(self) -> float:
        """Two per element; six if statistics are computed."""
        return (2.0 if self.use_global_stats else 6.0) * math.prod(self.source.dims)


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalizationBackward(Normalization):
    """The part common to gradients."""

    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = (("diff_dst", "diff_src"),)

    diff_scale: MemoryDesc | None = None
    diff_shift: MemoryDesc | None = None

    def _check_backward(self) -> None:
        if self.diff_scale is not None and self.scale is None:
            self._fail("diff_scale must be None without scale, which it is the gradient of")
        if self.scale is not None and self.diff_shift is not None and self.diff_scale is None:
            self._fail(
                "diff_scale must be a MemoryDesc if diff_shift is; either all gradients are"
                " computed or only that of src"
            )
        self._check("diff_dst", "diff_src", "diff_src1", has_statistics=True)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint writes the statistics, unless they are given to both."""
        super().check_hint(hint)
        if not self.use_global_stats and hint.op.prop_kind != "forward_training":
            self._fail(
                "hint must be a primitive descriptor of prop_kind forward_training, which writes"
                f" the statistics that the gradient reads; got {hint!r}"
            )

    def _forward(self, kind: Any, **more: MemoryDesc | None) -> Operation:
        """Return the forward operation whose statistics this gradient reads."""
        shift = self.diff_shift
        if shift is not None and shift.is_any:
            shift = shift.with_format(None)
        tensors = vars(self)
        return self._as_forward(
            kind, src=tensors["src"], dst=tensors["diff_dst"], shift=shift, **more
        )

    @property
    def saved(self) -> tuple[str, ...]:
        """The computed statistics and the workspace."""
        kept = ("workspace",) if self.use_global_stats else (*STATISTICS, "workspace")
        present = {a.name for a, _ in self.tensors(self.workspace_desc())}
        return tuple(name for name in kept if name in present)

    @property
    def has_sums(self) -> bool:
        """Whether sums over diff_dst are needed."""
        return not self.use_global_stats or self.diff_scale is not None or (
            self.diff_shift is not None
        )  # fmt: skip

    @property
    def flops(self) -> float:
        """Three per element, and four for the sums."""
        return (7.0 if self.has_sums else 3.0) * math.prod(self.source.dims)
