"""An engine with the reference's formulas of many operations, each with one fault.

`FAULTS` has the faults by name. `rounds_NAME` is an implementation of each operation that has the
tensor NAME. It rounds this tensor to fewer bits. The module is a plugin.
"""

from __future__ import annotations

from importlib import import_module

import attention_faults
import dnncore_reference
import moving_faults
import normalization_faults
import product_faults
import recurrent_faults
from precision_faults import rounded, store
from subtle_faults import backend_of
from wrong_formulas import KIND, AllTypes

from dnncore import backend

FAULTS = {
    **normalization_faults.FAULTS,
    **product_faults.FAULTS,
    **moving_faults.FAULTS,
    **recurrent_faults.FAULTS,
    **attention_faults.FAULTS,
}
"""name -> (operations, pattern of problems that may show the fault, maker)."""

BITS = {"f32": 11, "f16": 8, "bf16": 6}
"""Significant bits that are kept of each type. 11 are those of TF32."""


class PlantedEngine(backend.HostEngine):
    kind = KIND


class RoundsOne(AllTypes):
    """Rounds one tensor: an input before the computation, an output after it."""

    def __init__(self, name, definition, tensor):
        super().__init__(name, definition)
        self.tensor = tensor

    def run(self, op, attr, engine, right, *memories):
        pairs = zip(op.tensors(op.workspace_desc()), memories, strict=False)
        given = {argument.name: (argument.direction, memory) for (argument, _), memory in pairs}
        direction, memory = given[self.tensor]
        if direction == "out":
            right(*memories)
        kept = memory.buffer.copy()
        store(memory, rounded(memory.numpy(), BITS[memory.desc.data_type]))
        if direction == "in":
            right(*memories)
            memory.buffer[:] = kept


def definition_of(operation):
    """The reference's implementation of an operation."""
    module, _, name = dnncore_reference._TABLES[operation].partition(":")
    return getattr(import_module(f"dnncore_reference.{module}"), name)[0]


def tensors_of(operation):
    """The names of an operation's tensors; of two sources."""
    if operation is backend.Concat:
        return ["src0", "src1", "dst"]
    return [argument.name for argument in operation.ARGUMENTS]


OPERATIONS = sorted({op for ops, _, _ in FAULTS.values() for op in ops}, key=lambda op: op.__name__)
TABLES = {
    operation.__name__: [
        AllTypes("right", definition_of(operation)),
        *(
            RoundsOne(f"rounds_{name}", definition_of(operation), name)
            for name in tensors_of(operation)
        ),
        *(
            make(name, definition_of(operation))
            for name, (operations, _, make) in FAULTS.items()
            if operation in operations
        ),
    ]
    for operation in OPERATIONS
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "planted" and all implementations above."""
    return backend_of(__name__, PlantedEngine, OPERATIONS)
