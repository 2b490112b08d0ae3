"""The groups of problems of `benchmarks.low_precision`, for the CPU and for GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.corpus.sample import Choices, draw
from benchmarks.problems.problem_sets import changed, distinct, read_set
from dnncore.problem import Problem, read

__all__ = ["F32", "REASONS", "TypesLine", "cpu_lines", "gpu_lines", "in_f32", "variants"]

ONEDNN = ("onednn-3.2", "onednn-3.13")
CUDA = ("cudnn", "torch-cuda")
F32 = ("f32",)
INT8 = "u8:s8:u8"
SCALES = "--attr-scales=src:common+wei:per_oc+dst:common"
OF_TYPES = re.compile(r"--(dt|sdt|ddt|attr-scales|attr-zero-points)=")
GRADIENTS = ("FWD_I", "BWD_D", "BWD_W")
DENSE = r"^--conv (?!.*\bg\d)"  # texts of convolutions without groups


@dataclass(frozen=True)
class TypesLine:
    """A group of problems. The goals are the least geometric mean and the least ratio.

    peers: the peers, or `F32` to compare with dnncore in f32.
    formats: sets of options. If not empty, each problem is measured with each set, and the fastest
        time of each side counts.
    """

    title: str
    goal: float | None
    least: float | None
    problems: Sequence[Problem]
    peers: tuple[str, ...]
    formats: Sequence[dict[str, str]] = ()


def variants(line: TypesLine, problem: Problem) -> list[Problem]:
    """The problem with each set of the line's formats."""
    return [changed(problem, options) for options in line.formats] or [problem]


def network(data_type: str, batch: int, direction: str = "FWD_I") -> list[Problem]:
    """The convolutions of ResNet-50."""
    options = {"dir": direction, "mb": str(batch), "dt": data_type}
    found = [p for p in read_set("resnet_50", options) if str(p).startswith("--conv")]
    return scaled(distinct(found))


def sample(
    seed: int, types: Sequence[str], directions: Sequence[str], batches: Sequence[int] = (1, 4),
    match: str = "^--conv",
) -> list[Problem]:  # fmt: skip
    """Twenty random convolutions of the corpus whose texts match the expression."""
    choices = Choices(directions, batches, types, match=match)
    return scaled(draw(20, seed, choices).problems)


def scaled(problems: Sequence[Problem]) -> list[Problem]:
    """The problems, with scales of all tensors added to problems with integers."""
    return [
        own for p in problems for own in (read(_with_scales(str(p))) if INT8 in str(p) else [p])
    ]


def _with_scales(text: str) -> str:
    driver, rest = text.split(" ", 1)
    return f"{driver} {SCALES} {rest}"


def in_f32(problem: Problem) -> Problem:
    """Return the problem in f32 without scales."""
    (found,) = read(" ".join(word for word in str(problem).split() if not OF_TYPES.match(word)))
    return found


def texts(*lines: str) -> list[Problem]:
    """Read the problems of texts."""
    return [problem for line in lines for problem in read(line)]


def cpu_lines(seed: int) -> list[TypesLine]:
    """All groups of the CPU. seed: the seed of samples."""
    memory = [p for p in read_set("memory_bound", {"dt": "bf16"}) if "_51MB" in p.name]
    weights = "--attr-scales=wei:3:f32:128x1 1x4096:4096x4096"
    return [
        *(TypesLine(f"int8 convolution, ResNet-50, batch {n}", 1.0, 0.85, network(INT8, n), ONEDNN)
          for n in (1, 4)),
        TypesLine("int8 convolution, sample of 20", 1.0, 0.85,
                  sample(seed, (INT8,), ("FWD_I",)), ONEDNN),
        *(TypesLine(f"bf16 convolution, ResNet-50, batch {n}", 1.0, 0.85, network("bf16", n),
                    (*ONEDNN, "torch")) for n in (1, 4)),
        TypesLine("bf16 convolution, sample of 20, all directions", 1.0, 0.85,
                  sample(seed + 1, ("bf16",), GRADIENTS), (*ONEDNN, "torch")),
        TypesLine("int8 matmul, BERT and LSTM", 1.0, None,
                  scaled(read_set("matmul", {"dt": INT8})), ONEDNN),
        TypesLine("bf16 matmul, BERT and LSTM", 1.0, None, read_set("matmul", {"dt": "bf16"}),
                  (*ONEDNN, "torch")),
        TypesLine("int8 convolution over f32, ResNet-50, batch 4", 2.5, None, network(INT8, 4),
                  F32),
        TypesLine("bf16 over f32, limited by memory, 51 MB", 1.6, None, memory, F32),
        TypesLine("4-bit weights over f32, groups of 128, one row", 2.5, None,
                  texts(f"--matmul --dt=f32:s4:f32 {weights}",
                        f"--matmul --dt=bf16:u4:bf16 {weights}"), F32),
    ]  # fmt: skip


# -- GPUs ------------------------------------------------------------------------------------------

HALVES = ("f16", "bf16")
ORDERS = ({"stag": "abcd", "dtag": "abcd"}, {"stag": "acdb", "dtag": "acdb"})
WEIGHTS = ({"wtag": "any"}, {"wtag": "ba"})  # cuBLAS is faster with columns of weights
PORTABLE = "opencl:tiled*"
# Why groups miss their goals, by expressions of titles.
REASONS = {
    "^b?f16 convolution BWD_W": "3x3 taps over small images are slowest: their products are divided"
    " into ranges of pixels, and a second kernel adds the ranges.",
    "^portable b?f16 matmul": "The kernels for any GPU read halves and compute in f32, and"
    " arithmetic, not memory, limits a product.",
    "^b?f16 grouped convolution BWD_W": "Groups of up to 8 channels are computed without tensor"
    " cores, and those of 16 as a product of their own each, which fills a small part of a tile.",
    "^b?f16 grouped": "Groups of 4 and 8 channels are computed without tensor cores, and groups of"
    " 32 channels with 7 x 7 pixels take twice cuDNN's time.",
    "^b?f16 depthwise": "At 7 x 7 pixels, enqueueing a call, about 8 us, takes longer than its"
    " kernel, and cuDNN's calls are in a graph.",
}
INTEGERS = "--matmul --dt=s8:s8:s32 --stag=ab --dtag=ab"


def gpu_lines(seed: int) -> list[TypesLine]:
    """All groups of a GPU. seed: the seed of samples."""
    shapes = ("4096x4096:4096x4096", "4096x768:768x3072", "3072x3072:3072x768",
              "1000x2000:2000x3000")  # fmt: skip
    return [
        *(TypesLine(f"{t} matmul, 4096 and BERT", 0.6, None, read_set("products", {"dt": t}), CUDA)
          for t in HALVES),
        TypesLine("s8 matmul", 0.4, None, texts(*(f"{INTEGERS} {shape}" for shape in shapes)),
                  CUDA, WEIGHTS),
        *(TypesLine(f"{t} convolution, sample of 20, all directions", 0.6, None,
                    in_one_type(sample(seed, (t,), GRADIENTS, (4, 32), DENSE), t), CUDA)
          for t in HALVES),
        *(TypesLine(f"{t} convolution {way}, ResNet-50, batch 32", 0.6, None,
                    network(t, 32, way), CUDA) for t in HALVES for way in GRADIENTS),
        *(TypesLine(f"portable {t} matmul over f32", 1.5, None, portable(t), F32) for t in HALVES),
        *(TypesLine(f"{t} over f32, limited by memory, 205 MB", 1.5, None, streams(t), F32)
          for t in HALVES),
        *(TypesLine(f"{t} {kind} convolution {way}", 0.8, 0.5 if kind == "depthwise" else None,
                    groups(kind, t, way), CUDA, ORDERS)
          for t in (*HALVES, "f32") for kind in ("depthwise", "grouped", "hold_out")
          for way in GRADIENTS),
    ]  # fmt: skip


def in_one_type(problems: Sequence[Problem], data_type: str) -> list[Problem]:
    """The problems with biases in the type of the other tensors, as cuDNN requires."""
    biased = [any("bias" in row.name for row, _ in problem.op.tensors()) for problem in problems]
    return [
        changed(problem, {"bia-dt": data_type}) if has_bias else problem
        for problem, has_bias in zip(problems, biased, strict=True)
    ]


def portable(data_type: str) -> list[Problem]:
    """Products, restricted to the kernels that run on any GPU."""
    names = ("cube_4096", "bert:projection_32x128", "bert:feed_forward1_32x128")
    found = read_set("products", {"dt": data_type})
    return [replace(p, impl=PORTABLE) for p in found if p.name in names]


def streams(data_type: str) -> list[Problem]:
    """Operations whose time memory bandwidth limits."""
    names = ("eltwise", "add", "softmax_1024")
    found = read_set("memory_bound_gpu", {"dt": data_type})
    return [p for p in found if p.name in names]


def groups(kind: str, data_type: str, direction: str) -> list[Problem]:
    """Convolutions in groups."""
    found = read_set("groups", {"dir": direction, "dt": data_type})
    return [p for p in found if p.name.startswith(kind)]
