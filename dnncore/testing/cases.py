"""The problems on which the kit tries implementations: lists of problem texts, by size.

    tiny      a few of every operation, with tensors of at most 512 elements, for slow simulators
    smoke     every operation, direction, algorithm and family of formats once, in under a minute
    full      the products of operations, shapes, formats, directions and attributes
    networks  the layers of AlexNet, VGG-16, GoogLeNet, ResNet-50 and MobileNet v1

They are in `inputs/`: a file of a size's name, or a folder of files. A case more is a line more.
Problems that are not in lists but drawn at random are in `dnncore.testing.random_problems`.
"""

from __future__ import annotations

from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.problem import Problem, read_files

__all__ = ["SIZES", "cases", "case_files"]

SIZES = ("tiny", "smoke", "full", "networks")
INPUTS = Path(__file__).parent / "inputs"


def case_files(size: str) -> list[Path]:
    """The files of a size's problem texts. Raises `DescriptorError` where there is no such size."""
    if size not in SIZES:
        raise DescriptorError(f"cases: size must be one of {', '.join(SIZES)}; got {size!r}")
    return [*INPUTS.glob(f"{size}.txt"), *sorted((INPUTS / size).glob("*.txt"))]


def cases(size: str) -> list[Problem]:
    """The problems of a size, each of them once.

    Lists of values make some twice, as where two formats are one because a dim is 1.
    """
    return list(dict.fromkeys(read_files(*case_files(size))))
