"""Scaled dot-product attention and its gradients.

    score[q, k] = scale * sum over d of queries[q, d] * keys[k, d] + mask[q, k]
    lse[q]      = log(sum over k of exp(score[q, k]))
    weight[q, k] = exp(score[q, k] - lse[q])
    dst[q, v]   = sum over k of weight[q, k] * values[k, v]

The gradients, with mean[q] = sum over v of diff_dst[q, v] * dst[q, v]:

    diff_score[q, k]  = weight[q, k] * (sum over v of diff_dst[q, v] * values[k, v] - mean[q])
    diff_queries[q]   = scale * sum over k of diff_score[q, k] * keys[k]
    diff_keys[k]      = scale * sum over q of diff_score[q, k] * queries[q]
    diff_values[k]    = sum over q of weight[q, k] * diff_dst[q]

Shapes: queries (N, H, Q, D), keys (N, G, K, D), values (N, G, K, V), dst (N, H, Q, V). H is a
multiple of G. Head h of the queries reads head h // (H / G) of keys and values, and the gradients
of these are sums over the heads that read them. All sums over k are over the keys that a query may
see:

    "none":         all keys
    "top_left":     k <= q
    "bottom_right": k - K <= q - Q, so that the last query sees all keys

The workspace, written by forward_training and read by backward, holds lse: f32, row-major, of the
dims (N, H, Q, 1). For a query that sees no key, or whose scores are all -inf, lse is -inf, and the
results and gradients are 0, as in torch and oneDNN.

(T. Dao et al. 2022, "FlashAttention"; the gradients are computed from lse there, too.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from dnncore.algorithms.rules import check_finite, check_word
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, Rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Attention", "AttentionBackward", "AttentionForward", "Causal"]

Causal = Literal["none", "top_left", "bottom_right"]
CAUSAL = get_args(Causal)
WORKSPACE_TYPE = "f32"  # for tensors of any type

_OWN = ("queries", "keys", "values", "dst", "diff_dst", "diff_queries", "diff_keys", "diff_values")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Attention(Operation):
    """The part common to both directions."""

    TYPES: ClassVar[Rows] = tuple(
        dict.fromkeys(_OWN, (own,)) | {"mask": tuple(dict.fromkeys((own, "f32")))}
        for own in ("f32", *HALF_TYPES)
    )

    causal: Causal = "none"
    scale: float | None = None

    def _check(self) -> None:
        self._check_descs()
        self._check_types()
        q, k, v, mask = (vars(self)[name] for name in ("queries", "keys", "values", "mask"))
        if not q.ndims == k.ndims == v.ndims == 4:
            self._fail(
                "queries (N, H, Q, D), keys (N, G, K, D) and values (N, G, K, V) must have 4 dims;"
                f" got {q.dims}, {k.dims} and {v.dims}"
            )
        if k.dims[0] != q.dims[0] or k.dims[3] != q.dims[3]:
            self._fail(
                f"keys must be (N, G, K, D) with N = {q.dims[0]} and D = {q.dims[3]} of queries;"
                f" got {k.dims}"
            )
        if v.dims[:3] != k.dims[:3]:
            self._fail(f"values must be (N, G, K, V) with {k.dims[:3]} of keys; got {v.dims}")
        heads, shared = q.dims[1], k.dims[1]
        if heads % shared if shared else heads:
            self._fail(
                "the heads of queries must be a multiple of the heads of keys;"
                f" got {heads} and {shared}"
            )
        rows = (*q.dims[:3], v.dims[3])
        for name, dims, why in (
            ("dst", rows, "queries' dims and values' last dim"),
            ("diff_dst", rows, "queries' dims and values' last dim"),
            ("diff_queries", q.dims, "queries' dims"),
            ("diff_keys", k.dims, "keys' dims"),
            ("diff_values", v.dims, "values' dims"),
        ):
            if name in vars(self):
                self._check_dims(name, dims, why)
        scores = (*q.dims[:3], k.dims[2])
        if mask is not None and not mask.broadcasts_to(scores):
            self._fail(
                f"mask must have 4 dims, each 1 or that of the scores {scores}; got {mask.dims}"
            )
        check_word(self.KIND, CAUSAL, causal=self.causal)
        scale = 1.0 / math.sqrt(max(1, q.dims[3])) if self.scale is None else self.scale
        check_finite(self.KIND, scale=scale)
        self._set(scale=float(scale))

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """Return N, H, G, Q, K, D, V."""
        (n, h, q, d), (_, g, k, v) = (vars(self)[name].dims for name in ("queries", "values"))
        return n, h, g, q, k, d, v

    @property
    def diagonal(self) -> int | None:
        """Return the largest k - q of a query and a key that it sees; None if it sees all keys."""
        _, _, _, q, k, _, _ = self.sizes
        return {"none": None, "top_left": 0, "bottom_right": k - q}[self.causal]

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a query and a key that it sees, in all heads."""
        n, h, _, q, k, _, _ = self.sizes
        if self.diagonal is None:
            return n * h * q * k
        first, last = self.diagonal + 1, self.diagonal + q  # keys of the first and last query
        return n * h * (_sum_to(last, k) - _sum_to(first - 1, k))

    @property
    def lse_desc(self) -> MemoryDesc:
        """The descriptor of lse, the workspace."""
        n, h, _, q, _, _, _ = self.sizes
        return MemoryDesc((n, h, q, 1), WORKSPACE_TYPE)


def _sum_to(last: int, most: int) -> int:
    """Return the sum of min(i, most) for i = 1 ... last."""
    last = max(0, last)
    below = min(last, most)
    return below * (below + 1) // 2 + (last - below) * most


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionForward(_Attention):
    """Attention forward. `help(dnncore.ops.attention)` shows the formulas.

    prop_kind: "forward_training" or "forward_inference"; only training writes a workspace.
    queries: (N, H, Q, D): N sequences, H heads, Q queries of D numbers.
    keys: (N, G, K, D). H is a multiple of G; H / G heads of the queries share a head of the keys.
    values: (N, G, K, V).
    mask: added to the scores: (N, H, Q, K), with dims that may be 1; or None. It may be f32 where
        the other tensors have a half type. -inf excludes a key.
    dst: (N, H, Q, V).
    causal: which keys a query sees: "none" for all, "top_left" or "bottom_right".
    scale: of the scores; by default 1 / sqrt(D). Afterwards the field is a number.
    workspace: lse of the formulas, f32, (N, H, Q, 1).

    Every format may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "attention"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("queries", "keys", "values", "mask") + writes(
        "dst", "workspace"
    )

    prop_kind: PropKind = field(kw_only=False)
    queries: MemoryDesc
    keys: MemoryDesc
    values: MemoryDesc
    mask: MemoryDesc | None = None
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check()

    @property
    def flops(self) -> float:
        """Two per multiply-add of the two products."""
        *_, d, v = self.sizes
        return 2.0 * self.pairs * (d + v)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The descriptor of lse; None except in training."""
        return None if self.prop_kind == "forward_inference" else self.lse_desc


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionBackward(_Attention):
    """The gradients of queries, keys and values. `help(dnncore.ops.attention)` shows the formulas.

    queries, keys, values, mask, causal, scale: as in `AttentionForward`.
    dst: (N, H, Q, V), the result of the forward.
    diff_dst: of dst's dims.
    diff_queries, diff_keys, diff_values: of the dims of queries, keys and values.
    workspace: the workspace of the forward.

    The mask has no gradient. Every format may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "attention backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads(
        "queries", "keys", "values", "mask", "dst", "diff_dst", "workspace"
    ) + writes("diff_queries", "diff_keys", "diff_values")

    queries: MemoryDesc
    keys: MemoryDesc
    values: MemoryDesc
    mask: MemoryDesc | None = None
    dst: MemoryDesc
    diff_dst: MemoryDesc
    diff_queries: MemoryDesc
    diff_keys: MemoryDesc
    diff_values: MemoryDesc

    def __post_init__(self) -> None:
        self._check()

    @property
    def flops(self) -> float:
        """Two per multiply-add of the five products."""
        *_, d, v = self.sizes
        return 2.0 * self.pairs * (3 * d + 2 * v)

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps the workspace."""
        return self._as_forward(AttentionForward)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint is an attention that keeps a workspace."""
        super().check_hint(hint)
        self._check_keeps_workspace(hint)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The hint's workspace, else the descriptor of lse."""
        if hint is not None:
            desc: MemoryDesc | None = hint.workspace_desc
            return desc
        return self.lse_desc


Attention: TypeAlias = AttentionForward | AttentionBackward
