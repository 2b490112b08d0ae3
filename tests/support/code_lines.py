"""Lines of code per operation and backend: `python tests/support/code_lines.py`.

A line counts if it is neither blank nor only a comment. A file or folder belongs to the operation
in its name, such as `prelu.py`, `rnn/` or `prelu_errors.py`; all other ones are mechanisms that
operations share. The kernels of OpenCL are counted, tuning tables are not.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATIONS = (
    "convolution", "deconvolution", "inner product", "matmul", "normalization", "lrn", "pooling",
    "softmax", "eltwise", "prelu", "binary", "sum", "reduction", "reorder", "concat", "shuffle",
    "resampling", "rnn", "attention",
)  # fmt: skip
PARTS = {
    "ops": "dnncore/ops",
    "driver": "dnncore/problem/drivers",
    "functional": "dnncore/functional",
    "composition": "dnncore/composition",
    "reference": "backends/reference/dnncore_reference",
    "cpu_numba": "backends/cpu_numba/dnncore_cpu_numba",
    "opencl": "backends/opencl/dnncore_opencl",
}
OTHER_NAMES = {"linear": "inner product", "weighted sum": "sum", "depthwise": "convolution"}
COMMENT = re.compile(r"\s*(#(?!(if|el|end|def|und|pra|inc|err))|//)")
"""A line that is only a comment of Python or OpenCL C; # also begins directives."""


def lines_of(path: Path) -> int:
    """Return the number of lines of code of a file."""
    lines = path.read_text().splitlines()
    return sum(bool(line.strip()) and not COMMENT.match(line) for line in lines)


def owner_of(path: Path, folder: Path) -> str:
    """Return the operation that a file belongs to, or the name of the shared mechanism."""
    name = path.relative_to(folder).parts[0].removesuffix(".py").replace("_", " ").strip()
    name = OTHER_NAMES.get(name, name)
    words = [own for own in OPERATIONS if re.search(rf"\b{own}\b", name)]
    return words[0] if words else name


def table() -> dict[str, Counter[str]]:
    """Return part -> lines by operation or mechanism."""
    found: dict[str, Counter[str]] = {}
    for part, place in PARTS.items():
        folder, counted = ROOT / place, found.setdefault(part, Counter())
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.cl")]):
            counted[owner_of(path, folder)] += lines_of(path)
    return found


def main() -> None:
    """Print the tables of operations and of mechanisms as Markdown."""
    found = table()
    print("| Operation |", " | ".join([*found, "all"]), "|")
    print("|---|" + "---:|" * (len(found) + 1))
    for name in OPERATIONS:
        counts = [own[name] for own in found.values()]
        print(f"| {name} |", " | ".join(str(n or "") for n in [*counts, sum(counts)]), "|")
    print("\n| Mechanism | Lines |\n|---|---:|")
    for part, own in found.items():
        for name, count in own.most_common():
            if name not in OPERATIONS:
                print(f"| {part}: {name} | {count} |")


if __name__ == "__main__":
    main()
