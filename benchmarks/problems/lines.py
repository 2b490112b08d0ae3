"""The lines of docs/benchmarks.md: groups of problems, each with a goal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.contestants.contestant import CPU_PEERS
from benchmarks.corpus.sample import Choices, Sample, draw
from benchmarks.problems.problem_sets import distinct, read_set
from dnncore.problem import Problem

__all__ = [
    "LINES", "SAMPLE", "SELECTION", "Line", "line_of", "problems_of", "record_of", "sample_of",
]  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A group of problems with common goals. A goal that is None does not apply.

    goal: the least geometric mean of the ratios.
    least: the least ratio of each problem.
    share: the least share of a copy's bandwidth.
    rate: the least GF/s.
    accurate: whether errors must not exceed the peer's.
    sets, directions, options, match: the selection of problems.
    impl: name patterns of dnncore's implementations.
    batches, quick: the batch sizes of the full run and of the quick run.
    reorders: whether sides may select formats and add reorders.
    draw: the number of problems if the line is a random sample of the corpus, else 0. A sample has
        no sets. Directions, batch sizes and types are drawn, too.
    seed: the seed of a sample.
    spared: the number of problems of a sample that may have ratios below `least`.
    sample: the problems of a recorded line. The sets or the corpus may have changed since.
    """

    title: str
    goal: float | None
    least: float | None
    sets: Sequence[str]
    match: str = ""
    directions: Sequence[str] = ("FWD_I",)
    options: Mapping[str, str] = field(default_factory=dict)
    batches: Sequence[str] = ("1", "4", "32")
    quick: Sequence[str] = ("4",)
    peers: tuple[str, ...] = CPU_PEERS
    reorders: bool = False
    impl: str = ""
    share: float | None = None
    rate: float | None = None
    accurate: bool = False
    draw: int = 0
    seed: int = 0
    spared: int = 0
    sample: Sample | None = None


TRAINING = {"match": "^--conv", "sets": ("resnet_50", "alexnet"), "batches": ("4",)}
WINOGRAD = {"sets": ("resnet_50", "vgg_16"), "match": "kh3sh1", "options": {"alg": "auto"}}
LAYERS = ("alexnet", "vgg_16", "resnet_50", "mobilenet")
AS_THEY_ARE = {"directions": ("",), "batches": ("",), "quick": ("",)}

LINES = (
    Line("Convolution forward, direct: ResNet-50, AlexNet", 1.03, 0.90, ("resnet_50", "alexnet"),
         match="^--conv"),
    Line("Convolution forward, direct: VGG-16, GoogLeNet", 1.0, 0.85, ("vgg_16", "googlenet"),
         match="^--conv"),
    Line("Convolution forward, depthwise: MobileNet", 1.3, None, ("mobilenet",), match="_dw"),
    Line("Convolution forward, the others: MobileNet", None, None, ("mobilenet",),
         match=r"^--conv .*(_pw|conv1\*)"),
    Line("Convolution forward, channels no multiple of 16", 0.95, None, ("odd",)),
    Line("Convolution forward, auto, 3x3 with stride 1, batch 32: ResNet-50, VGG-16", 1.4, None,
         **WINOGRAD, batches=("32",), quick=("32",)),
    Line("Convolution forward, auto, 3x3 with stride 1, batch 1: ResNet-50, VGG-16", None, 1.0,
         **WINOGRAD, batches=("1",), quick=("1",)),
    Line("Convolution forward, channels-last, no reorder: ResNet-50", 1.0, None, ("resnet_50",),
         match="^--conv", options={"tag": "axb"}),
    Line("Convolution forward, plain nchw, reorders counted: ResNet-50", 1.0, None, ("resnet_50",),
         match="^--conv", options={"tag": "abx"}, reorders=True),
    Line("Convolution backward data: ResNet-50, AlexNet", 1.03, 0.85, directions=("BWD_D",),
         **TRAINING),
    Line("Convolution backward weights: ResNet-50, AlexNet", 1.1, 0.85, directions=("BWD_W",),
         **TRAINING),
    Line("Inner product forward, up to 32 rows", 1.25, None, LAYERS, match="^--ip",
         batches=("1", "4", "8", "16", "32"), quick=("4", "32")),
    Line("Inner product forward, from 64 rows", 1.0, None, LAYERS, match="^--ip",
         batches=("64", "128", "256"), quick=("64",)),
    Line("Inner product backward", 1.0, None, LAYERS, match="^--ip",
         directions=("BWD_D", "BWD_W"), batches=("4", "32", "128"), quick=("32",)),
    Line("Matrix multiplication: BERT, LSTM", 1.0, None, ("matmul",), **AS_THEY_ARE),
    Line("Limited by memory, 51 MB", 1.3, 0.95, ("memory_bound",), match="_51MB", **AS_THEY_ARE),
    *(Line(f"Limited by memory, {size} MB", None, None, ("memory_bound",), match=f"_{size}MB",
           **AS_THEY_ARE) for size in (32, 16, 8, 4)),
    Line("Limited by memory, 1 MB", 0.85, None, ("memory_bound",), match="_1MB", **AS_THEY_ARE),
    Line("Reorders, plain to and from blocked", 1.0, None, ("reorders",), **AS_THEY_ARE),
)  # fmt: skip

# The goals of the page apply to samples with new seeds; see `samples.py`.
SAMPLE = Line("Sample of 40 layers", 1.0, 0.85, (), draw=40, spared=2,
              directions=("FWD_I", "BWD_D", "BWD_W"))  # fmt: skip

# Compares the implementation selected without tuning with dnncore's other implementations.
SELECTION = Line(
    "The selected implementation and the fastest other one", None, None,
    ("resnet_50", "alexnet", "mobilenet", "odd"), match="^--(conv|ip)",
    directions=("FWD_I", "BWD_D", "BWD_W"), batches=("4",), peers=("others",),
)  # fmt: skip


def sample_of(line: Line, *, full: bool) -> Sample:
    """The sample of a line, with the skipped layers of missing operations."""
    if line.sample:
        return line.sample
    choices = Choices(
        line.directions,
        tuple(map(int, line.batches if full else line.quick)),
        line.options.get("dt", "f32").split(","),
        line.options.get("alg", "direct"),
        line.match,
    )
    return draw(line.draw, line.seed, choices)


def problems_of(line: Line, *, full: bool) -> list[Problem]:
    """The distinct problems of a line, in the order of its sets or of its sample."""
    if line.draw or line.sample:
        return [replace(problem, impl=line.impl) for problem in sample_of(line, full=full).problems]
    found = []
    for name in line.sets:
        for batch in line.batches if full else line.quick:
            for direction in line.directions:
                given = {"dir": direction, "mb": batch}
                options = {**line.options, **{n: text for n, text in given.items() if text}}
                found += [p for p in read_set(name, options) if re.search(line.match, str(p))]
    return distinct(replace(problem, impl=line.impl) for problem in found)


def record_of(line: Line, *, full: bool) -> dict[str, Any]:
    """A line with its goals and the texts of its problems, as data for JSON.

    The line of samples has no problems before they are drawn.
    """
    problems = [] if line.draw else [str(problem) for problem in problems_of(line, full=full)]
    return {**asdict(replace(line, sample=None)), "sample": problems}


def line_of(record: Mapping[str, Any]) -> Line:
    """The line in a record. It does not depend on later changes of the source or the sets."""
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
    known = {"problems": record["sample"], "skipped": {}, "networks": 0}
    return Line(**values | {"sample": None if record["draw"] else Sample.of(known)})
