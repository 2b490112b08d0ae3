"""Random problems of every operation, drawn as by the kit, and inputs for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from checks import reference_outputs

import dnncore as dnn
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.comparison.fills import NOT_NEGATIVE, fill_integers, fill_normal, reads
from dnncore.problem import DRIVERS, driver_of
from dnncore.testing.problems.random_problems import draw

Array = np.ndarray[Any, Any]

KINDS = [kind for driver in DRIVERS.values() for kind in driver.operations]
COUNT = 40  # least number of problems per operation

PARAMETERS = {name: algorithm.probes[0] for name, algorithm in ELTWISE.items()}


def problems(kind: type[dnn.Operation], count: int = COUNT) -> list[Any]:
    """`count` different operations of this type that every backend computes.

    Only reorders have f16 and bf16, and no convolution requests Winograd's algorithm.
    """
    found: dict[dnn.Operation, None] = {}
    for seed in itertools.count():
        drawn = _drawn(kind, count, seed)
        found |= dict.fromkeys(op for op in drawn if type(op) is kind and _is_plain(op))
        if len(found) >= count:
            return list(found)[:count]
    raise AssertionError


MOST_BYTES = 2000  # of a problem, because some oracles compute with fractions


@cache
def _drawn(kind: type[dnn.Operation], count: int, seed: int) -> list[dnn.Operation]:
    driver = driver_of(kind)
    name = kind.__name__
    start = "FWD" if "Backward" not in name else "BWD_W" if "Weights" in name else "BWD_D"
    directions = [text for text in driver.options.get("dir", ()) if text.startswith(start)]
    types = ("f32", "f16", "bf16", "s32", "s8", "u8") if kind is dnn.Reorder else ("f32",)
    drawn = draw(
        count, driver.name, seed=seed, only={"dir": directions}, types=types, most_bytes=MOST_BYTES
    )
    return [problem.op for problem in drawn]


def _is_plain(op: Any) -> bool:
    types = {desc.data_type for _, desc in op.tensors()}
    has_halves = bool(types & {"f16", "bf16"}) and not isinstance(op, dnn.Reorder)
    return not has_halves and getattr(op, "algorithm", "") != "winograd"


def retyped(op: Any, half: str, chosen: Callable[[], bool] = lambda: True) -> Any:
    """The operation with the chosen f32 tensors in type `half`, if its rules permit this."""

    def other(desc: dnn.MemoryDesc) -> dnn.MemoryDesc:
        return desc.with_data_type(half) if desc.data_type == "f32" and chosen() else desc

    try:
        return op.with_each(other)
    except dnn.DescriptorError:
        return op


# -- inputs ----------------------------------------------------------------------------------------


def inputs_of(op: Any) -> dict[str, Array]:
    """An array per input. For inputs that forward computes, also the inputs that it used."""
    whole = isinstance(op, dnn.Binary) and op.algorithm in ("ge", "gt", "le", "lt", "eq", "ne")
    inputs = {
        name: fill_integers(desc, seed)
        if whole or desc.data_type in ("s32", "s8", "u8")
        else fill_normal(desc, seed, 100.0 if isinstance(op, dnn.Reorder) else 1.0)
        for seed, (name, desc) in enumerate(reads(op, dnn.Attributes()).items())
    }
    inputs |= {name: np.abs(inputs[name]) for name in NOT_NEGATIVE if name in inputs}
    if op.saved:
        for seed, (name, desc) in enumerate(reads(op.forward_op, dnn.Attributes()).items(), 9):
            inputs.setdefault(name, fill_normal(desc, seed))
        outputs = reference_outputs(op.forward_op, inputs)
        inputs |= {name: outputs[name] for name in op.saved}
    return inputs
