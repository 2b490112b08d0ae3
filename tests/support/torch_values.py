"""torch's results for the kit's smoke list, stored in tests/data/torch_values.npz.

These commands write the file:

    make .venv/installed-all,dev,peers
    .venv/bin/python tests/support/torch_values.py

`make test` compares every implementation with the file and needs no torch. `make test-peers` checks
that the file has the whole list and that torch still computes the same results.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore.comparison.compare import consistent_inputs
from dnncore.comparison.fills import Seed
from dnncore.problem import Problem
from dnncore.testing.problems.cases import cases

Array = np.ndarray[Any, Any]

FILE = Path(__file__).parents[1] / "data" / "torch_values.npz"
SIZE = "smoke"  # the kit's list
MOST = 2000  # most elements of a problem's results; the kit compares larger ones with torch itself
REORDERED = 40.0  # factor for the inputs of reorders, so that conversions round and saturate


def fill_eighths(desc: dnn.MemoryDesc, seed: Seed, scale: float = 1.0) -> Array:
    """Multiples of 1/8 from -4 to 4, times `scale`. For integer types, integers up to 4.

    The values come from a hash, because numpy's generators may change between releases. All
    floating-point types represent them exactly. Returns an array with desc's dims and dtype.
    """
    digest = hashlib.shake_128(repr(seed).encode()).digest(desc.nelems)
    values = (np.frombuffer(digest, np.uint8) % 65 - 32.0) / 8
    if desc.data_type[0] in "su":
        values = np.clip(np.rint(values), 0 if desc.data_type[0] == "u" else -4, 4)
        scale = 1.0
    return (scale * values).astype(desc.dtype).reshape(desc.dims)


def inputs_of(problem: Problem) -> dict[str, Array]:
    """Arrays for all inputs of the problem. They do not depend on formats."""
    scale = REORDERED if isinstance(problem.op, dnn.Reorder) else 1.0
    return consistent_inputs(
        problem.op, problem.attr, lambda desc, seed: fill_eighths(desc, seed, scale)
    )


# -- reading ---------------------------------------------------------------------------------------


@cache
def _file() -> tuple[dict[str, dict[str, int]], Array]:
    """Problem text -> output -> index of its first value, and the values of all outputs."""
    with np.load(FILE) as file:
        return json.loads(str(file["index"])), file["values"]


def wanted() -> list[Problem]:
    """The list without quantization and large results, with floats of at most 32 bits. Results of
    integers are exact, and the kit compares them with torch itself.
    """
    return [
        problem
        for problem in cases(SIZE, more=False)
        if not problem.attr.words
        and sum(d.nelems for a, d in problem.op.tensors() if a.direction == "out") <= MOST
        and {desc.data_type for _, desc in problem.op.tensors()} <= {"f32", "f16", "bf16"}
    ]


def texts() -> list[str]:
    """The problems whose results are stored."""
    return list(_file()[0])


def stored_outputs(op: Any, attr: dnn.Attributes, _inputs: object = None) -> dict[str, Array]:
    """torch's stored results for `inputs_of(problem)`. Has the signature of `torch_outputs`.

    Raises `KeyError` if nothing is stored.
    """
    index, values = _file()
    descs = {argument.name: desc for argument, desc in op.tensors(op.workspace_desc())}
    return {
        name: values[start : start + descs[name].nelems]
        .astype(descs[name].dtype)
        .reshape(descs[name].dims)
        for name, start in index[str(Problem(op, attr))].items()
    }


# -- writing ---------------------------------------------------------------------------------------


def write() -> None:
    """Compute all results with torch and store them. Equal results are stored once."""
    import torch

    from dnncore.testing.checks.torch_oracle import torch_outputs

    index: dict[str, dict[str, int]] = {}
    arrays: dict[bytes, tuple[int, Array]] = {}
    total = 0
    for problem in wanted():
        outputs = torch_outputs(problem.op, problem.attr, inputs_of(problem))
        index[str(problem)] = places = {}
        for name, values in outputs.items():
            flat = values.astype(np.float32).ravel()  # exact for f16, bf16 and small integers
            places[name], _ = arrays.setdefault(flat.tobytes(), (total, flat))
            total = max(total, places[name] + flat.size)
    values = np.concatenate([flat for _, flat in arrays.values()])
    np.savez_compressed(FILE, index=json.dumps(index), values=values, torch=torch.__version__)
    print(f"{len(index)} problems, {values.size} values, {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    write()
