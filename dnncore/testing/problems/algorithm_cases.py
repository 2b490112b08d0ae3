"""Problem texts of every algorithm and post-op, from the records of `dnncore.algorithms`.

A new algorithm in the records needs no new line in the lists. The list `variations` contains
parameters with all digits of f32, and every operation with operands of every mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, EltwiseAlgorithm
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
NORM_DIGITS = "--p=3.2345675 --eps=1.2345675"
# A convolution with each algorithm as its post-op.
CONVOLUTION = "--conv --dir=FWD_B --stag=abx,axb --dtag=any"
LAYER = "ic3oc9_ih5kh3ph1"
POSITIVE = "abs+linear:1:0.5"  # post-ops before algorithms that need positive numbers

# Rounded to six digits, each of these numbers causes errors above the error bounds. The first is a
# number of f32: elu's dst may be -alpha, and their sum must be 0 in every precision.
DIGITS = ((0.23456749320030212, 1.2345675),)
# Every mask of four dims, in chains whose steps do not hide each other. Masks of operands with one
# image and one channel are also tested in chains of one step.
CHAINS = ",".join((
    "add:f32:12", "prelu:4",
    "add:f32:1+sub:f32:4+mul:f32:8+add:f32:12+add:f32:3+mul:f32:5+sub:f32:9+prelu:6:axb+sub:f32:2",
    "sum:0.2345675+prelu:10+add:f32:7:axb+sub:f32:14:aBx8b",
    "linear:0.2345675:-1.2345675+select:f32.13.axb:5+mul:f32:11+swish:1.2345675+sum:-1.2345675",
))  # fmt: skip
SLOPE_CHAIN = "sum:0.2345675+add:f32:12+prelu:5"
IN_FOUR_DIMS = {
    "--conv": "mb2ic3oc4_ih4kh2_iw5kw1",
    "--deconv": "mb2ic3oc4_ih3kh2_iw4kw1",
    "--matmul": "2x3x4x6:2x3x6x5",
    "--pool": "mb2ic3_ih5kh2_iw7kw3",
    "--lrn": "mb2ic3_ih4iw5alpha0.5",
    "--bnorm --flags=CH": "mb2ic3_ih4iw5",
    "--lnorm --flags=CH": "2x3x4x5",
    "--gnorm --flags=CH": "g3mb2ic3_ih4iw5",
    "--softmax --dtag=abx": "2x3x4x5",
    "--sdpa": "2x3x4x6:2x1x6x5:2x1x5x5",
    "--eltwise --alg=tanh": "2x3x4x5",
    "--prelu": "2x3x4x5:1x3x4x5",
    "--binary --alg=sub": "2x3x4x5:2x3x4x5",
    "--sum --sdt=f32:f32 --scales=2:-3": "2x3x4x5",
    "--reduction --alg=sum": "2x3x4x5x6:2x3x4x5x1",
    "--reorder --stag=abx --dtag=axb": "2x3x4x5",
    "--concat": "2x1x4x5:2x2x4x5",
    "--shuffle --axis=2 --group=2": "2x3x4x5",
    "--resampling --alg=linear": "mb2ic3_ih3oh4_iw7ow5",
}
WITH_SLOPES = (
    "--conv",
    "--deconv",
    "--pool",
    "--lrn",
    "--bnorm --flags=CH",
    "--lnorm --flags=CH",
    "--gnorm --flags=CH",
    "--softmax --dtag=abx",
    "--sdpa",
    "--eltwise --alg=tanh",
    "--shuffle --axis=2 --group=2",
    "--resampling --alg=linear",
)


def texts(size: str) -> list[str]:
    """Return the texts of a list. `smoke` has each algorithm once, `sizes` also with padding, and
    `full` with each of its parameters, `variations` with numbers of all digits. Other lists have
    none.
    """
    eltwise = [*_eltwise(1, CUBE)]
    binary = [*_binary("2x17x3:1x17x1", "2x17x3:1x17x1:2x1x3")]
    reduction = [*_reduction("2x17x3:2x1x3", "--p=2 --eps=0.5")]
    if size == "smoke":
        return [*eltwise, *binary, *reduction]
    if size == "sizes":
        return [*_padded("tag", eltwise), *_padded("stag", binary + reduction)]
    if size == "variations":
        norms = _reduction("2x3x4:2x1x4", NORM_DIGITS, norms=True)
        return [
            *_digits(),
            *norms,
            *_operands(),
            *_eltwise_steps("--matmul", "3x5:5x7"),
            *_binary_steps("--ip", "mb3ic5oc7"),
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


def _eltwise(
    probe_count: int | None, shapes: str, records: Mapping[str, EltwiseAlgorithm] = ELTWISE
) -> Iterator[str]:
    for name, record in records.items():
        directions = "FWD_D,BWD_D" if record.slope else "FWD_D"
        for alpha, beta in record.probes[:probe_count]:
            parameters = f"--alpha={number_text(alpha)} --beta={number_text(beta)} {shapes}"
            yield f"--eltwise --dir={directions} --alg={name} {parameters}"
            valid = record.variant_rule is None or record.variant_rule[1](alpha, beta)
            if record.slope_of_dst and valid:
                yield f"--eltwise --dir={directions} --alg={name}_dst {parameters}"


def _digits() -> Iterator[str]:
    """Yield algorithms whose probes have parameters, as operations and as post-ops."""
    for name, record in ELTWISE.items():
        if any(map(any, record.probes)):
            yield from _eltwise(1, CUBE, {name: replace(record, probes=DIGITS)})
            yield f"--eltwise --alg={name} --alpha=-2.345675 --beta=-0.2345675 {CUBE}"


def _operands() -> Iterator[str]:
    for front, shape in IN_FOUR_DIMS.items():
        yield f"{front} --attr-post-ops={CHAINS} {shape}"
    for front in WITH_SLOPES:
        yield f"{front} --dir=BWD_D --attr-post-ops={SLOPE_CHAIN} {IN_FOUR_DIMS[front]}"
    for front in ("--conv", "--deconv"):
        yield f"{front} --dir=BWD_W --attr-post-ops={SLOPE_CHAIN} {IN_FOUR_DIMS[front]}"
    yield f"--prelu --dir=BWD_DW --attr-post-ops={SLOPE_CHAIN} {IN_FOUR_DIMS['--prelu']}"
    yield "--ip --attr-post-ops=add:f32:1+sub:f32:2+mul:f32:3:ba+prelu:1+sum:0.2345675 mb3ic7oc5"
    yield "--ip --attr-post-ops=add:f32:1,prelu:1,select:f32.1:2 mb3ic7oc5"
    yield "--ip --dir=BWD_D,BWD_W --attr-post-ops=sum:0.2345675+add:f32:1+prelu:2 mb3ic7oc5"


def _padded(option: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts with padded formats. Padding stays zero even if the algorithm changes zeros."""
    for text in texts:
        driver, _, rest = text.partition(" ")
        yield f"{driver} --{option}=aBx8b {rest}"


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


def _eltwise_steps(front: str, shape: str) -> Iterator[str]:
    """Yield each eltwise algorithm with all its parameters, as a post-op."""
    for name, record in ELTWISE.items():
        before = f"{POSITIVE}+" if record.is_positive else ""
        for alpha, beta in record.probes:
            step = f"{before}{name}:{number_text(alpha)}:{number_text(beta)}"
            yield f"{front} --attr-post-ops={step} {shape}"


def _post_ops() -> Iterator[str]:
    yield from _eltwise_steps(CONVOLUTION, LAYER)
    yield from _eltwise_steps("--eltwise --alg=abs", CUBE)
    yield from _binary_steps(CONVOLUTION, LAYER)


def _binary_steps(front: str, shape: str) -> Iterator[str]:
    """Yield each binary algorithm as a post-op."""
    for name, record in BINARY.items():
        for mask in ("per_oc", "per_tensor"):
            operands = f"f32.{mask}:per_tensor" if record.has_condition else f"f32:{mask}"
            yield f"{front} --attr-post-ops={name}:{operands} {shape}"
