"""docs/coverage.md: the results of runs of the kit, for each combination of data types.

python -m dnncore.testing.coverage_page cpu.json opencl.json > docs/coverage.md

The rows come from the tables of types of the operations. `REFUSED` lists combinations that oneDNN
supports and dnncore does not support.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.problem import read
from dnncore.testing.problems.type_cases import Group, groups
from dnncore.testing.report import STATUSES, cell

__all__ = ["REFUSED", "markdown", "reason"]

INTRODUCTION = """# Coverage

This page lists the numbers of cases of the conformance kit, by operation, data types, direction,
backend and engine. The rows are the combinations of types that the operations permit
(`dnncore/ops/types.py`); they include all that oneDNN has, except those at the end of the page.
\"Types\" are those of the inputs without the bias, or the type of all of them. Each type of the
result in a row has a case of its own. A number without a word counts passed cases. If all
implementations of the backend refuse a case, it counts as unsupported. `make coverage` runs the
checks of values on these cases, which are those of the size `types`, and writes this page. `make
conformance-full` runs all checks on them and on more than 10,000 others.
"""

REFUSALS = """
## Types that are refused

oneDNN has these types, too. dnncore refuses them: no arithmetic is defined for them. f8 x f8 and
f4 x f4 need products of GPUs that none of the built-in backends has; e8m0 is a type of scales of
such products alone. f8 tensors can be reordered, and be weights of matmul and inner product.

| operation | types | message |
| --- | --- | --- |
"""

REFUSED: Mapping[str, str] = {
    "f8_e4m3 x f8_e4m3": "--conv --dt=f8_e4m3:f8_e4m3:f32 ic8oc8_ih4kh3",
    "f8_e5m2 x f8_e5m2": "--conv --dt=f8_e5m2:f8_e5m2:f16 ic8oc8_ih4kh3",
    "f4_e2m1 x f4_e2m1": "--conv --dt=f4_e2m1:f4_e2m1:f32 ic8oc8_ih4kh3",
    "f8_e5m2 x f8_e4m3": "--matmul --dt=f8_e5m2:f8_e4m3:f16 4x32:32x4",
    "f4_e2m1 x f4_e2m1, matmul": "--matmul --dt=f4_e2m1:f4_e2m1:f32 4x32:32x4",
    "bf16 x f4_e2m1": "--matmul --dt=bf16:f4_e2m1:bf16 4x32:32x4",
    "scales of e8m0": "--matmul --dt=f32:u4:f32 --attr-scales=wei:3:e8m0:32x1 4x32:32x4",
    "scales that are computed": "--matmul --attr-scales=dst:mx:e8m0:1x32 4x32:32x32",
    "f32 to f4_e2m1": "--reorder --sdt=f32 --ddt=f4_e2m1 4x32",
    "e8m0 to f32": "--reorder --sdt=e8m0 --ddt=f32 4x32",
}
"""Combinations that only oneDNN supports -> a problem text."""


def reason(text: str) -> str:
    """Return the message with which dnncore refuses a problem; "" if it accepts the problem."""
    try:
        read(text)
    except DescriptorError as error:
        return str(error).partition("does not have: ")[2]
    return ""


def markdown(*paths: str | Path) -> str:
    """Return the page for one or more saved runs."""
    runs = [json.loads(Path(path).read_text()) for path in paths]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in _grid(runs))
    lines = dict.fromkeys(line for run in runs for line in run["run"] if "engine " in line)
    devices = "\n".join(f"- {line}" for line in lines)
    refused = "\n".join(
        f"| {text.split()[0].removeprefix('--')} | {what.partition(',')[0]} | {reason(text)} |"
        for what, text in REFUSED.items()
    )
    return (
        f"{INTRODUCTION}\n{rows}\n{REFUSALS}{refused}\n\n"
        f"The cases ran on these engines:\n\n{devices}\n"
    )


def _grid(runs: list[Any]) -> Iterator[list[str]]:
    """The headings, then a row per group with a column per target."""
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for row in (row for run in runs for row in run["coverage"]):
        place = (row["operation"], row["type"], row["direction"], row["target"])
        counts.setdefault(place, Counter()).update({status: row[status] for status in STATUSES})
    targets = sorted({place[3] for place in counts})
    heading = ["operation", "types", "results", "direction", *targets]
    yield heading
    yield ["---"] * len(heading)
    for group in sorted(groups(), key=_place):
        cells = (counts.get((*_place(group), target)) for target in targets)
        words = [group.operation, group.inputs, ", ".join(group.results), group.direction]
        yield [*words, *(cell(found) if found else "-" for found in cells)]


def _place(group: Group) -> tuple[str, str, str]:
    return group.operation, group.inputs, group.direction


if __name__ == "__main__":
    sys.stdout.write(markdown(*sys.argv[1:]))
