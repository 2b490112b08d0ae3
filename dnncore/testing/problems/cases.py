"""The problems with which the kit tests implementations: lists of problem texts, by size.

    tiny      a few of every operation, with tensors of at most 512 elements, for slow simulators
    smoke     every operation, direction, algorithm and family of formats once, and sizes beyond the
              blocks of loops (the list "sizes"), each parameter where it alone matters (the list
              "variations"), in a few minutes
    full      the products of operations, shapes, formats, directions and attributes, large dims and
              tensors, all of "smoke" and "types", and random problems
    types     small problems of all combinations of data types, with and without scales and the like
    networks  the layers of AlexNet, VGG-16, GoogLeNet, ResNet-50 and MobileNet v1
    random    drawn from a seed by `random_problems.py`

The lists of all sizes except the last are in the folder of this file: a file with the size's name,
or a folder of files. To add a case, add a line. `algorithm_cases.py` adds every algorithm of
eltwise, binary and reduction, `type_cases.py` the types of all operations.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.problem import DRIVERS, Problem, read, read_files
from dnncore.testing.problems import algorithm_cases, type_cases
from dnncore.testing.problems.random_problems import draw

__all__ = ["SIZES", "case_files", "cases"]

SIZES = ("tiny", "smoke", "full", "types", "networks", "random")
MORE = {  # additional lists of a size
    "smoke": ("sizes", "variations"),
    "full": ("smoke", "sizes", "variations", "types"),
}
DRAWN = {"random": 30, "full": 100}  # number of random problems of each driver
FOLDER = Path(__file__).parent


def case_files(size: str) -> list[Path]:
    """Return the files of a size's problem texts; random problems have none.

    Raises `DescriptorError` if there is no such size.
    """
    if size not in SIZES:
        raise DescriptorError(f"cases: size must be one of {', '.join(SIZES)}; got {size!r}")
    return [file for name in _lists(size) for file in _files(name)]


def _lists(size: str, *, more: bool = True) -> list[str]:
    return [size, *(MORE.get(size, ()) if more else ())]


def _files(size: str) -> list[Path]:
    return [*FOLDER.glob(f"{size}.txt"), *sorted((FOLDER / size).glob("*.txt"))]


def cases(size: str, *, seed: int = 0, more: bool = True, drawn: bool = True) -> list[Problem]:
    """Return the problems of a size, without duplicates.

    seed: the seed of the size "random". The random problems of "full" are always the same.
    more: whether "smoke" and "full" include the lists of `MORE`.
    drawn: whether "full" includes random problems.

    Lists of values cause duplicates, for instance if two formats are equal because a dim is 1.
    """
    return list(_cases(size, seed, more, drawn))


@cache
def _cases(size: str, seed: int, more: bool, drawn: bool) -> tuple[Problem, ...]:
    case_files(size)  # raises an error for other names
    names = _lists(size, more=more)
    listed = read_files(*(file for name in names for file in _files(name)))
    texts = (text for name in names for text in algorithm_cases.texts(name))
    found = [*listed, *(problem for text in texts for problem in read(text))]
    found += [problem for name in names for problem in type_cases.problems(name)]
    if size in DRAWN and (drawn or size == "random"):
        seed = seed if size == "random" else 0
        found += [p for driver in DRIVERS for p in draw(DRAWN[size], driver, seed=seed)]
    return tuple(dict.fromkeys(found))
