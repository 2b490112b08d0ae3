"""LRN: `--lrn --dir=FWD_D --dt=f32 --tag=axb --alg=WITHIN mb2ic16_ih5iw5_ls5alpha0.1beta0.75k1`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import LRNBackward, LRNForward, Operation
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.settings import (
    Driver,
    Settings,
    Unsupported,
    algorithm_text,
    number_text,
    read_algorithm,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import ONE_TAG, write_tensors
from dnncore.problem.windows import SIZE_LETTERS, read_sizes, sizes_text

__all__ = ["LRN"]

ALGORITHMS = {"ACROSS": "across_channels", "WITHIN": "within_channel"}
DIRECTIONS = pair(LRNForward, LRNBackward)
DEFAULTS = {"dir": "FWD_D", "dt": "f32", **ONE_TAG, "alg": "ACROSS", "mb": "0"}

# benchdnn's numbers where the shape is silent
NUMBERS = {"alpha": 1 / 8192, "beta": 0.75, "k": 1.0}


def read(settings: Settings) -> Operation:
    """Without ih and the like, tensors have two dims."""
    letters = read_letters(settings, f"mb ic {SIZE_LETTERS} ls", " ".join(NUMBERS), needed="ic")
    dims = (read_batch(settings, letters), letters["ic"], *read_sizes(letters))
    algorithm = read_algorithm(settings, ALGORITHMS, "lrn_")
    if algorithm == "within_channel" and len(dims) == 2:
        raise Unsupported(["lrn within channels of one pixel"])
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": dims, "dst": dims},
        algorithm=algorithm,
        local_size=letters.get("ls", 5),
        **{name: letters.get(name, default) for name, default in NUMBERS.items()},
    )


def write(op: Any) -> Settings:
    """The shape with all numbers."""
    mb, ic, *sizes = op.src.dims
    numbers = "".join(name + number_text(getattr(op, name)) for name in NUMBERS)
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": f"mb{mb}_ic{ic}{sizes_text(sizes)}_ls{int(op.local_size)}{numbers}",
    }


LRN = Driver("lrn", (LRNForward, LRNBackward), DEFAULTS, read, write)
