"""Recurrent cells and their gradient, by products of all steps and by steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dnncore.backend import (
    RNN,
    Accepted,
    Attributes,
    Implementation,
    KnobValue,
    MemoryDesc,
    Refused,
    RNNForward,
)
from dnncore_opencl.codegen.vectors import HALVES
from dnncore_opencl.gemm.implementation import scratchpad_refusal, size_refusal
from dnncore_opencl.rnn.backward import plan_backward
from dnncore_opencl.rnn.forward import plan_forward
from dnncore_opencl.rnn.integers import Numbers
from dnncore_opencl.rnn.layers import Layers, tag_of
from dnncore_opencl.rnn.tiles import KNOBS, Tile
from dnncore_opencl.runtime.program import LaunchProgram

TRANSPOSED = ("weights_iter", "weights_projection")  # as the gradient reads them


class Recurrent(Implementation[RNN]):
    """The inputs of all steps of a layer are one product. Then the steps follow.

    Half types and integers are converted to f32 and back.
    """

    name = "opencl:steps"
    data_types = ("f32", *HALVES, "u8", "s8")
    attributes = ("rnn_qparams",)

    def accept(self, op: RNN, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept all cells in layouts with strides and blocks."""
        if attr.post_ops:
            return Refused("attribute", f"takes no post-ops; got {len(attr.post_ops)}")
        if 0 in (op.sizes.dhc, op.sizes.slc, op.sizes.dic):
            return Refused("shape", "has no cells without channels")
        transposed = () if isinstance(op, RNNForward) else TRANSPOSED
        for argument, desc in op.tensors():
            if desc.is_any:
                tag = tag_of(desc, is_transposed=argument.name in transposed)
                op = op.with_descs(**{argument.name: desc.with_format(tag)})
            elif desc.format_kind != "blocked":
                return Refused("format", f"{argument.name} must have strides; got {desc.tag!r}")
        if op.workspace_desc(hint) != op.workspace_desc():
            return Refused("format", "reads only row-major workspaces")
        numbers = Numbers(engine, op, attr) if op.is_integer else None
        refused = size_refusal(op, attr) or (numbers and numbers.refused())
        return refused or _planned(op, engine, transposed, numbers, {})


def _planned(
    op: RNN, engine: Any, transposed: tuple[str, ...], numbers: Numbers | None,
    knobs: Mapping[str, KnobValue],
) -> Accepted | Refused:  # fmt: skip
    if not engine.is_cpu:
        gates = op.sizes.gates if isinstance(op, RNNForward) else 1
        tile = Tile.of(engine, gates, op.sizes.batch, knobs)
        if refused := tile.refusal(engine, gates):
            return refused
    layers = Layers(engine, op, transposed, numbers, knobs)
    if knobs.get("persistent") == "yes" and isinstance(layers.persistent, str):
        return Refused("attribute", layers.persistent)
    if isinstance(op, RNNForward):
        plan_forward(layers, op)
    else:
        plan_backward(layers, op)
    make, scratchpad = layers.finished()
    workspace: MemoryDesc | None = op.workspace_desc()
    tune = partial(_planned, op, engine, transposed, numbers)
    return scratchpad_refusal(scratchpad) or Accepted(
        op,
        lambda: LaunchProgram(engine, make()),
        efficiency=0.1 if engine.is_cpu else 0.2,
        scratchpad_bytes=scratchpad,
        workspace=workspace,
        exact=False,
        notes=("compiles", "copies") if layers.copies else ("compiles",),
        knobs=() if engine.is_cpu else KNOBS,
        tune=None if engine.is_cpu else tune,
    )


TABLE = (Recurrent(),)
