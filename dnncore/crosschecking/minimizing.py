"""Reduces a saved call that is wrong to a smaller problem, with parts of its inputs.

Each step leaves out a post-op, sets an option to its default, or makes a size smaller. If a size
becomes smaller, inputs keep their first or their last elements along the dim. A step is kept if the
result is still wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.attributes import Attributes
from dnncore.comparison.compare import correct_values
from dnncore.comparison.fills import fill_normal, reads
from dnncore.crosschecking.repeat import differences
from dnncore.crosschecking.saved import SavedCall
from dnncore.errors import DnnError
from dnncore.interrupts import pass_on
from dnncore.ops import Operation
from dnncore.problem import Problem
from dnncore.problem.simpler import simpler_problems, simplest
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["TRIES", "is_wrong", "minimized"]

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]

TRIES = 400
"""The largest number of calls that are tried."""


def minimized(
    saved: SavedCall, tries: int = TRIES, *, progress: Callable[[SavedCall], None] | None = None
) -> SavedCall:
    """Return the simplest wrong call; the saved call itself if no simpler call is wrong.

    progress: is called with each simpler wrong call, because a later call may end the process.
    """

    def fails(simpler: SavedCall) -> bool:
        wrong = is_wrong(simpler)
        if wrong and progress:
            progress(simpler)
        return wrong

    return simplest(saved, _simpler_calls, fails, tries)


def is_wrong(saved: SavedCall) -> bool:
    """Whether the implementation accepts the call, runs, and returns a wrong result."""
    try:
        return any(differences(saved, pd) for pd in saved.descriptors()[:1])
    except DnnError:
        return False
    except Exception as error:  # an implementation may raise anything
        pass_on(error)
        return False


def _simpler_calls(current: Callable[[], SavedCall]) -> Iterator[SavedCall]:
    """Yield calls that are simpler than the present one, until one round brings no improvement."""
    before: SavedCall | None = None
    while before is not current():
        before = current()
        for simpler in _of_one(current()):
            yield simpler
            if current() is not before:
                break


def _of_one(saved: SavedCall) -> Iterator[SavedCall]:
    problem = saved.parsed
    yield from _with_fewer_post_ops(saved, problem)
    for other in simpler_problems(problem):
        for takes_first in (True, False):
            inputs = _cut(saved.inputs, other, takes_first=takes_first)
            if inputs is not None:
                yield replace(saved, problem=str(other), inputs=inputs)


def _with_fewer_post_ops(saved: SavedCall, problem: Problem) -> Iterator[SavedCall]:
    """Yield calls without one of the post-ops and its operands."""
    steps = problem.attr.post_ops
    for place in range(len(steps)):
        rest = (*steps[:place], *steps[place + 1 :])
        attr = replace(problem.attr, post_ops=rest)
        inputs = dict(_renumbered(saved.inputs, place))
        if not attr.reads_dst:
            inputs.pop(problem.op.result_name, None)
        yield replace(saved, problem=str(replace(problem, attr=attr)), inputs=inputs)


def _renumbered(inputs: Inputs, left_out: int) -> Iterator[tuple[str, Array]]:
    """Return the inputs without the operands of a post-op. Operands of later post-ops are
    renumbered.
    """
    for name, values in inputs.items():
        _, mark, rest = name.partition("post_op_")
        number, _, own = rest.partition("_")
        if not mark or int(number) < left_out:
            yield name, values
        elif int(number) > left_out:
            yield f"post_op_{int(number) - 1}_{own}", values


def _cut(inputs: Inputs, problem: Problem, *, takes_first: bool) -> dict[str, Array] | None:
    """Return the first or last elements of each input; None if one cannot have the new dims."""
    wanted = _wanted(problem)
    parts: dict[str, Array] = {}
    for name, desc in wanted.items():
        whole = inputs.get(name)
        part = None if whole is None else _part(whole, desc, takes_first=takes_first)
        if part is None and name not in problem.op.saved:
            return None
        if part is not None:
            parts[name] = part
    return parts | _computed(problem.op, parts)


def _wanted(problem: Problem) -> dict[str, MemoryDesc]:
    op, attr = problem.op, problem.attr
    pairs = op.tensors(op.workspace_desc())
    pairs += attr.arguments(op)
    wanted = {a.name: desc for a, desc in pairs if a.direction == "in"}
    return wanted | ({op.result_name: op.result} if attr.reads_dst else {})


def _part(whole: Array, desc: MemoryDesc, *, takes_first: bool) -> Array | None:
    """Return the part of an array with the descriptor's dims, or None."""
    fits = whole.ndim == desc.ndims and all(
        size <= own for size, own in zip(desc.dims, whole.shape, strict=False)
    )
    if whole.dtype != desc.dtype or not fits:
        return None
    starts = [
        0 if takes_first else own - size for size, own in zip(desc.dims, whole.shape, strict=True)
    ]
    place = tuple(slice(at, at + size) for at, size in zip(starts, desc.dims, strict=True))
    return np.ascontiguousarray(whole[place])


def _computed(op: Operation, inputs: Inputs) -> dict[str, Array]:
    """Compute the outputs of the forward operation that a gradient reads, such as a workspace.

    Indices in a part of the old workspace could refer to cells outside of the smaller tensors.
    """
    forward = op.forward_op
    if forward is None or not op.saved:
        return {}
    read = reads(forward, Attributes())
    own = {name: inputs[name] if name in inputs else fill_normal(read[name], 0) for name in read}
    outputs = correct_values(forward, Attributes(), own)
    return {name: outputs[name] for name in op.saved}
