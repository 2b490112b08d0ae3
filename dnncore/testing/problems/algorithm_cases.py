"""Problem texts of every algorithm and post-op, from the records of `dnncore.algorithms`.

A new algorithm in the records is tested without a new line in the lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.reduction import REDUCTION
from dnncore.problem.settings import number_text

__all__ = ["texts"]

CUBE = "2x17x3"
PAIRS = (
    "17:17 3x5:3x5 2x17x3:2x17x3 2x3x4x5:1x3x1x1 2x3x4x5:1x1x1x1 2x3x4x5:2x3x1x1"
    " 2x3x4x5:1x1x4x5 2x3x4x5:2x1x4x1 1x3x1x1:2x3x4x5 2x1x4x1:1x3x1x5"
)
TRIPLES = (
    "17:17:17 3x5:3x5:3x5 2x17x3:2x17x3:2x17x3 2x3x4x5:1x3x1x1:2x3x4x5"
    " 2x3x4x5:2x3x4x5:1x3x1x1 1x1x1x1:2x3x4x5:2x1x4x1 2x3x4x5:1x1x1x1:1x1x1x1"
)
REDUCED = (
    "7:1 3x7:1x7 3x7:3x1 3x7:1x1 2x17x3:1x17x3 2x17x3:2x1x3 2x17x3:2x17x1 2x17x3:1x1x3"
    " 2x17x3:1x17x1 2x17x3:2x1x1 2x17x3:1x1x1 2x3x4x5:2x3x1x1 2x3x4x5:1x3x1x1 2x3x4x5:2x1x4x1"
    " 1x300:1x1 40x3:1x3 6x150:6x1"
)
NORMS = "--p=1,1.5,2,3 --eps=0,0.5,100"
# A convolution with each algorithm as its post-op.
CONVOLUTION = "--conv --dir=FWD_B --stag=abx,axb --dtag=any"
LAYER = "ic3oc9_ih5kh3ph1"
POSITIVE = "abs+linear:1:0.5"  # post-ops before those that need positive numbers


def texts(size: str) -> list[str]:
    """Return the texts of a size: `smoke` has each algorithm once, `full` each of its parameters.

    Other sizes have none.
    """
    if size == "smoke":
        return [
            *_eltwise(1, CUBE),
            *_binary("2x17x3:1x17x1", "2x17x3:1x17x1:2x1x3"),
            *_reduction("2x17x3:2x1x3", "--p=2 --eps=0.5"),
        ]
    if size == "full":
        return [
            *_eltwise(1, "1 300"),
            *_eltwise(None, CUBE),
            *_half_types(),
            *_binary(PAIRS, TRIPLES),
            *_reduction(REDUCED, "--p=2"),
            *_reduction("2x17x3:2x1x3", NORMS, norms=True),
            *_post_ops(),
        ]
    return []


def _eltwise(probe_count: int | None, shapes: str) -> Iterator[str]:
    for name, record in ELTWISE.items():
        directions = "FWD_D,BWD_D" if record.slope else "FWD_D"
        for alpha, beta in record.probes[:probe_count]:
            parameters = f"--alpha={number_text(alpha)} --beta={number_text(beta)} {shapes}"
            yield f"--eltwise --dir={directions} --alg={name} {parameters}"
            valid = record.variant_rule is None or record.variant_rule[1](alpha, beta)
            if record.slope_of_dst and valid:
                yield f"--eltwise --dir={directions} --alg={name}_dst {parameters}"


def _half_types() -> Iterator[str]:
    for text in _eltwise(1, CUBE):
        yield text.replace("--eltwise", "--eltwise --dt=f16,bf16")


def _binary(pairs: str, triples: str) -> Iterator[str]:
    for name, record in BINARY.items():
        yield f"--binary --alg={name} {triples if record.has_condition else pairs}"


def _reduction(shapes: str, parameters: str, *, norms: bool = False) -> Iterator[str]:
    for name, record in REDUCTION.items():
        if record.is_norm or not norms:
            yield f"--reduction --alg={name} {parameters} {shapes}"


def _post_ops() -> Iterator[str]:
    for name, eltwise in ELTWISE.items():
        alpha, beta = map(number_text, eltwise.probes[0])
        front = f"{POSITIVE}+" if eltwise.is_positive else ""
        yield f"{CONVOLUTION} --attr-post-ops={front}{name}:{alpha}:{beta} {LAYER}"
    for name, binary in BINARY.items():
        for mask in ("per_oc", "per_tensor"):
            operands = f"f32.{mask}:per_tensor" if binary.has_condition else f"f32:{mask}"
            yield f"{CONVOLUTION} --attr-post-ops={name}:{operands} {LAYER}"
