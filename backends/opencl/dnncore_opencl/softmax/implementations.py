"""Softmax and log-softmax along any axis, and their gradients, in two families.

In `opencl:simd` a work-item computes one row, or several adjacent rows. In `opencl:tiled` a
work-group computes one or more rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Shares
from dnncore_opencl.codegen.layout import Parameters, digits
from dnncore_opencl.codegen.vectors import (
    HALVES,
    WITH_F64,
    is_wide,
    quick_functions,
    quick_options,
)
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import RANDOM
from dnncore_opencl.rows.rows import Rows, Tensors, row_launch, scale_arguments
from dnncore_opencl.runtime.program import LaunchProgram


class Softmax(Implementation[core.Softmax]):
    """The base of both families.

    element_work: work of one element in multiply-adds, for the `work` of the launch.
    """

    element_work: float = math.inf
    data_types = WITH_F64
    attributes = (*POST_OP_WORDS, "scales", *RANDOM)
    takes_repeats = True

    def accept(
        self, op: core.Softmax, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        first = next(desc for _, desc in op.tensors())
        formats = {a.name: first for a, _ in op.tensors() if a.name != "lse"}
        if isinstance(op, core.SoftmaxForward) and op.lse is not None:
            formats["lse"] = MemoryDesc(op.lse.dims)
        op = op.resolve_any(**formats)
        refused = refuse_common(op, attr, engine)
        if refused:
            return refused
        claim = self.efficiency(op, engine, digits(op.result, op.axis)[-1].stride == 1)
        build = partial(self._build, op, attr, engine)
        return Accepted(op, build, efficiency=claim, notes=("compiles",))

    @abstractmethod
    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """Return the share of the bandwidth. along: whether a row's elements are contiguous."""

    @abstractmethod
    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Return the division of rows among work-items, and the vectors that each worker holds."""

    def _build(self, op: core.Softmax, attr: Attributes, engine: Any) -> Executable:
        if not op.result.nelems:
            return LaunchProgram(engine, [])
        named = {argument.name: desc for argument, desc in op.tensors()}
        lse = {name: named.pop(name) for name in ("lse",) if name in named}
        operands = {f"post{i}": desc for i, (_, desc) in enumerate(attr.operands())}
        tensors = Tensors(named | operands, len(named) - 1, attr, lse)
        rows = Rows.of(engine, tensors, (op.axis,))
        parameters = Parameters.of(named | lse | operands, {op.result_name, "lse"})
        parameters.is_wide = is_wide(op)
        shares, held = self.shares(op, engine, rows)
        quick = {} if lse else quick_functions(engine, op.result.data_type, attr)
        defines = {
            **({"LOG": ""} if op.algorithm == "log" else {}),
            **({"HAS_LSE": ""} if lse else {}),
            **{
                f"EXACT_{name.upper()}": ""
                for name in ("src", "dst")
                if name in named
                and named[name].data_type in ("f32", "f64")
                and (name != "src" or name not in attr.scales)
            },
            **({} if quick else {"HOLDS_EXP": ""}),  # fast exponentials cost less than registers
            **quick,
            "PADDED_LENGTH": parameters.size(op.result.padded_dims[op.axis]),
        }
        launch = row_launch(
            engine,
            "softmax_forward" if op.result_name == "dst" else "softmax_backward",
            tensors, rows, parameters, shares, held, defines,
            factor=scale_arguments(op, attr, parameters, len(op.tensors())),
            options=() if lse else quick_options(engine, tensors.named.values(), attr),
            work=op.result.nelems * self.element_work,
            # A contracted step could make a scaled x larger than the maximum, and exp infinite.
            is_exact=bool(attr.scales),
        )  # fmt: skip
        return LaunchProgram(engine, [launch])


class RowPerItem(Softmax):
    """One work-item computes a row or several: no local memory, no barrier."""

    name = "opencl:simd"

    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """Low on a GPU, where a work-item rereads its row from memory."""
        if engine.is_cpu:
            return 0.35 if along else 0.08
        return 0.1

    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Return one worker per row, which rereads its row from the cache."""
        return Shares(), 0


class RowPerGroup(Softmax):
    """Rows in registers. One or several work-items, which combine their results, share a row."""

    name = "opencl:tiled"
    element_work = 32

    def efficiency(self, op: core.Softmax, engine: Any, along: bool) -> float:
        """On GPUs nearly as fast as a copy."""
        return 0.05 if engine.is_cpu else 0.9

    def shares(self, op: core.Softmax, engine: Any, rows: Rows) -> tuple[Shares, int]:
        """Hold rows in registers if they fit."""
        count = len(op.tensors()) - 1 if op.result_name != "dst" else 1
        return rows.held_by_groups(engine, count, in_halves=op.result.data_type in HALVES)


FORWARD = (RowPerItem(), RowPerGroup())
BACKWARD = (RowPerItem(), RowPerGroup())
