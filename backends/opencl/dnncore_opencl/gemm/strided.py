"""Products by kernels that compute offsets from strides, and the arguments of these kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dnncore_opencl.codegen.digits import INT4, extended, int4
from dnncore_opencl.gemm.arguments import (
    WINDOW,
    batch_argument,
    decoding_parameters,
    gemm_epilogue,
    window_arguments,
    zero_point_buffers,
)
from dnncore_opencl.gemm.elements import typed
from dnncore_opencl.gemm.family import Family, Plan
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.gemm.split_k import part_lengths, part_size, plan
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema, Scratch

TASKS_PER_CORE = 4  # work-groups per core, so that cores of different speed end together

# Strides are in elements, per digit. A batch has three digits; n and k have four.
SCHEMA = Schema(
    a=Buffer("const float"),
    b=Buffer("const float"),
    c=Buffer("float"),
    rows=INT,  # of c per work-group, if the kernel uses it
    a_end=INT,  # elements from the start of the buffer to the end of a
    b_end=INT,
    batch=INT4,  # sizes
    m=INT,
    n=INT4,
    k=INT4,
    a_batch=INT4,  # strides of the batch, then the offset of the first element
    a_m=INT,
    a_k=INT4,
    b_batch=INT4,
    b_k=INT4,
    b_n=INT4,
    c_batch=INT4,
    c_m=INT,
    c_n=INT4,
    c_part=INT,  # elements between the sums of consecutive parts of k
    part=INT,  # values of k in a part
)


@dataclass(frozen=True)
class Cover:
    """How work-groups cover a batch of products.

    groups: work-groups along n (of all products of the batch), and along m. items: work-items per
    group. rows: rows of c per group, if the kernel needs it. least_part: the fewest values of k
    that are worth a group; parts are multiples of it. snippets: code that the kernel needs.
    conversions: the functions that convert half types.
    """

    kernel: str
    defines: Mapping[str, str | int]
    groups: tuple[int, int]
    items: int
    least_part: int
    rows: int = 0
    snippets: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()


class Strided(Family, Protocol):
    """A family whose kernels compute offsets from strides per digit, on `units` cores."""

    units: int

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the kernel for a product that has at least one element."""

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Return one launch, or two if k is split."""
        cover = self.cover(gemm)
        groups, least = math.prod(cover.groups), cover.least_part
        *_, part = part_lengths(gemm.depth, groups, self.units, least, step=least, rounds=1)
        parts = math.ceil(max(gemm.depth, 1) / part)
        return plan(
            gemm, parts, start, 0, lambda made: _product(made, self.cover(made), part, parts)
        )


def _product(gemm: Gemm, cover: Cover, part: int, parts: int) -> Launch:
    """Return the launch of a product. The sums of the parts of k are consecutive."""
    steps, (a, b, c) = gemm_epilogue(gemm), (gemm.a, gemm.b, gemm.c)
    zero_points, zeros = zero_point_buffers(gemm.zero_points)
    codes, code_arguments = decoding_parameters(gemm.decoding)
    schema = typed(SCHEMA, a=a.data_type, b=b.data_type, c=c.data_type) | zero_points | codes
    defines, window = cover.defines, {}
    if gemm.window:
        schema, defines = schema | WINDOW, {**defines, "WINDOW": 1}
        window = window_arguments(gemm.window)
    snippets = (*cover.conversions, steps.code, template("digits"), template("gemm"))
    snippets = (*snippets, *cover.snippets)
    source = Source(
        cover.kernel, schema | steps.schema, defines, snippets, is_exact=gemm.is_integer
    )
    size = (cover.groups[0] * parts * cover.items, cover.groups[1])
    arguments = {
        "a": Arg(a.index),
        "b": Arg(b.index),
        "c": Arg(c.index) if c.index >= 0 else Scratch(),
        "rows": cover.rows,
        "a_end": a.end,
        "b_end": b.end,
        "batch": int4((*extended(gemm.batch, 3, 1), 0)),
        "m": gemm.m,
        "n": int4(gemm.n, 1),
        "k": int4(gemm.k, 1),
        "a_batch": batch_argument(a.strides.batch, a.offset),
        "a_m": a.strides.m,
        "a_k": int4(a.strides.k),
        "b_batch": batch_argument(b.strides.batch, b.offset),
        "b_k": int4(b.strides.k),
        "b_n": int4(b.strides.n),
        "c_batch": batch_argument(c.strides.batch, c.offset),
        "c_m": c.strides.m,
        "c_n": int4(c.strides.n),
        "c_part": part_size(gemm),
        "part": part,
        **zeros,
        **code_arguments,
        **window,
        **steps.arguments,
    }
    return Launch(source, arguments, size, (cover.items, 1))
