"""The implementation of all operations."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    Operation,
    Refused,
    RNNBackward,
)
from dnncore_onednn.description import Description
from dnncore_onednn.deviations import is_deterministic, refusal
from dnncore_onednn.estimates import efficiency
from dnncore_onednn.layouts import Layouts
from dnncore_onednn.library import OneDnnError, default
from dnncore_onednn.operations import PRODUCTS
from dnncore_onednn.primitive import OneDnnPrimitive, Streams
from dnncore_onednn.threads import Threads
from dnncore_onednn.workspaces import forward_of, workspace_of

__all__ = ["TABLE"]

LIBRARY = default()
LAYOUTS, THREADS, STREAMS = Layouts(LIBRARY), Threads(LIBRARY), Streams(LIBRARY)

ROUNDS = ("bf16", "f16", "tf32", "any")  # values of `fpmath`


class OneDnn(Implementation[Operation]):
    """oneDNN's first implementation whose results agree with dnncore's definition."""

    name = "onednn:any"
    data_types = (
        "f64", "f32", "f16", "bf16", "s32", "s8", "u8", "f8_e4m3", "f8_e5m2", "s4", "u4",
    )  # fmt: skip
    attributes = (
        "scales",
        "zero_points",
        "groups",
        "operand_types",
        "sum_zero_point",
        "rnn_qparams",
    )

    def accept(self, op: Operation, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Make oneDNN's description of the problem. This takes 0.1 to 0.4 ms, without compiling."""
        reason = THREADS.refusal(engine.num_threads)
        if reason is not None:
            return Refused("device", f"oneDNN {LIBRARY.version}: {reason}")
        refused = refusal(op, attr)
        if refused is not None:
            return refused
        if isinstance(op, RNNBackward) and hint is None:
            return Refused("format", "oneDNN's workspace is private; give the forward's as hint")
        count = THREADS.count(engine.num_threads)
        try:
            found = THREADS.call_with(count, _described, op, attr, hint)
        except OneDnnError as error:
            return Refused("algorithm", str(error))
        if isinstance(found, Refused):
            return found
        chosen = _with_formats(op, found)
        workspace = workspace_of(chosen, found, hint)
        if isinstance(workspace, Refused):
            return workspace
        build = functools.partial(
            OneDnnPrimitive, found, chosen, workspace, THREADS, STREAMS, count
        )
        return Accepted(
            chosen,
            build,
            efficiency=efficiency(chosen, found.impl_name),
            scratchpad_bytes=found.scratchpad_bytes,
            workspace=workspace,
            deterministic=is_deterministic(op) or attr.deterministic,
            notes=_notes(attr, found.impl_name),
            detail=found.impl_name.replace(",", " "),
        )


def _notes(attr: Attributes, impl_name: str) -> set[str]:
    """The notes of an implementation, derived from its name in oneDNN."""
    notes = {"library"}
    if "jit" in impl_name:
        notes.add("compiles")
    if "amx" in impl_name:
        notes.add("matrix_unit")
    if attr.fpmath in ROUNDS and any(word in impl_name for word in ("amx", "bf16", "fp16")):
        notes.add("reduced_precision")
    return notes


def _described(op: Operation, attr: Attributes, hint: Any) -> Description | Refused:
    """The description by oneDNN's first implementation without a deviation.

    If the user gave a hint, it provides the forward operation. For products, only oneDNN's first
    implementation is considered, because its plain loops take about a thousand times as long.
    """
    asks = attr.deterministic and not is_deterministic(op)
    own = replace(attr, scratchpad="user", deterministic=asks)
    forward = forward_of(hint, LAYOUTS) if hint and op.forward_op else None
    found = Description(LAYOUTS, op, own, forward)
    while (refused := refusal(op, attr, found.impl_name)) is not None:
        if isinstance(op, PRODUCTS) or not found.advance():
            return refused
    return found


def _with_formats(op: Operation, found: Description) -> Operation:
    """The operation with the formats and the algorithm that oneDNN chose."""
    opened = [row.name for row, desc in op.tensors() if desc.is_any]
    descs = found.descs
    changes: dict[str, Any] = {name: descs[name] for name in opened}
    if getattr(op, "algorithm", "") == "auto":
        changes["algorithm"] = found.algorithm
    return op.with_descs(**changes)


TABLE = (OneDnn(),)
