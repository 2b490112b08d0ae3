"""Ways to make a faulty implementation of a formula of the reference.

Each function returns make(name, definition), which returns the implementation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from dnncore_reference import definition
from dnncore_reference.definition import Definition
from precision_faults import store
from subtle_faults import Right
from wrong_scales import replaced

KIND = "planted"


class AllTypes(Right):
    """Computes as the reference does, with all types and attributes."""

    kind = KIND
    data_types = definition.TYPES
    attributes = definition.ATTRIBUTES


class Faulty(AllTypes):
    """Computes with the function fault(right, op, attr, memories)."""

    def __init__(self, name, formula, fault):
        super().__init__(name, formula)
        self.fault = fault

    def run(self, op, attr, engine, right, *memories):
        self.fault(right, op, attr, memories)


def formula(wrong):
    """Replace the formula by wrong(formula, op, **inputs)."""

    def make(name, right):
        function = partial(wrong, right.formula)
        return AllTypes(name, Definition(name, function, right.like, right.has_formula))

    return make


def patched(owner, function, wrong):
    """Replace a function of the reference by wrong(function, *arguments)."""
    return partial(Faulty, fault=replaced(owner, function, wrong))


def of_op(**changes):
    """Compute another operation. A change is a value, or a function of the operation."""

    def wrong(right, op, **t):
        fields = {name: new(op) if callable(new) else new for name, new in changes.items()}
        return right(replace(op, **fields), **t)

    return formula(wrong)


def of_inputs(names, change):
    """Compute with changed inputs."""

    def wrong(right, op, **t):
        return right(op, **{n: change(x) if n in names.split() else x for n, x in t.items()})

    return formula(wrong)


def of_output(name, change):
    """Return change(output, op, inputs) instead of an output."""

    def wrong(right, op, **t):
        found = dict(right(op, **t))
        if name in found:
            found[name] = change(found[name], op, t)
        return found

    return formula(wrong)


def of_memory(name, change):
    """Replace the values of an output by change(new, old)."""

    def fault(right, op, _attr, memories):
        arguments = [argument.name for argument, _ in op.tensors(op.workspace_desc())]
        given = dict(zip(arguments, memories, strict=False))
        old = given[name].numpy().copy() if name in given else None
        right(*memories)
        if old is not None:
            store(given[name], change(given[name].numpy().copy(), old))

    return partial(Faulty, fault=fault)


def unwritten(name, index=...):
    """Do not write an output, or a part of it."""

    def change(new, old):
        new[index] = old[index]
        return new

    return of_memory(name, change)


def added(name):
    """Add to the old values of an output instead of overwriting them."""
    return of_memory(name, np.add)


def zeros(values):
    return np.zeros_like(values)


def ones(values):
    return np.ones_like(values)


def rolled(axis):
    """Each element is that of its neighbour."""
    return lambda values: np.roll(values, 1, axis)


def exchanged(axis, *order):
    """The first indices along an axis are in another order."""

    def change(values):
        rest = range(len(order), values.shape[axis])
        return np.take(values, [*order, *rest], axis)

    return change
