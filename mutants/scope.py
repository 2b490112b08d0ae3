"""Which files are mutated, what is left out of them, and the tests that run for each.

In scope is all code that determines values: the formulas of the reference, the mathematics of the
core, code that is compiled to kernels, the generators of such code, and the addresses that kernels
get.

Out of scope by rule is code that does not change results:

- the choice between correct ways: acceptance, formats, tiles, vectors, shares of threads
- estimates of time, thresholds, tuning, prefetches, non-temporal stores
- texts for people, annotations, assertions, and the costs that benchmarks print
- NVIDIA's instructions (`*_nvidia.cl`, `mma_ptx.cl`), which need a device of NVIDIA
- `wait_for_groups.cl` and `fence.cl`: only NVIDIA's devices run several work-groups that wait
- `pooling_planes.cl` and `transpose_tiled.cl`, whose barriers PoCL loses; Intel's runtime tests
  them
- runtimes: threads, streams and events, whose tests check faults, not formulas
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from mutants.sites import Site, c_sites, python_sites

__all__ = ["ELSEWHERE", "ON_INTEL", "RELATED", "STRATA", "Stratum", "files_for", "sites"]


@dataclass(frozen=True)
class Stratum:
    """A group of source files. The same number of mutants is drawn from each group.

    sources, left_out: patterns of paths.
    target: the name of the target (engine) in tests/conftest.py with which the tests run.
    backends: the backends that the tests load. Others are not loaded, to save time.
    tests: patterns of test files, in the order in which they run.
    """

    name: str
    sources: tuple[str, ...]
    left_out: tuple[str, ...]
    target: str
    backends: str
    tests: tuple[str, ...]


OPERATIONS = "tests/operations/test_*.py"
TORCH = "tests/comparison/test_torch_values.py"
CPU = "backends/cpu_numba/dnncore_cpu_numba"
OPENCL = "backends/opencl/dnncore_opencl"
OPENCL_TESTS = (TORCH, OPERATIONS, "tests/opencl/test_*.py")

STRATA = (
    Stratum(
        "reference",
        ("backends/reference/dnncore_reference/*.py",),
        ("*/__init__.py",),
        "reference",
        "reference",
        (TORCH, "tests/comparison/test_*.py", OPERATIONS),
    ),
    Stratum(
        "core",
        (
            "dnncore/planning/*.py", "dnncore/tensors/*.py", "dnncore/ops/*.py",
            "dnncore/comparison/compare.py",
        ),
        (),
        "reference",
        "reference",
        (TORCH, "tests/core/test_*.py", "tests/comparison/test_*.py", OPERATIONS,
         "tests/problem/test_*.py"),
    ),
    Stratum(
        "cpu_numba",
        (
            f"{CPU}/attention/*kernel.py", f"{CPU}/attention/*task*.py",
            f"{CPU}/codegen/[enptv]*.py", f"{CPU}/convolution/col2im.py",
            f"{CPU}/convolution/**/*kernel.py", f"{CPU}/convolution/**/*task.py",
            f"{CPU}/convolution/winograd/transforms.py", f"{CPU}/copies/*kernel.py",
            f"{CPU}/copies/*task.py", f"{CPU}/copies/intrinsics.py",
            f"{CPU}/elementwise/algorithms.py", f"{CPU}/elementwise/chains.py",
            f"{CPU}/elementwise/epilogue.py", f"{CPU}/elementwise/formulas.py",
            f"{CPU}/elementwise/post_ops.py", f"{CPU}/elementwise/tiles.py",
            f"{CPU}/gemm/microkernel.py", f"{CPU}/gemm/tile_loop.py", f"{CPU}/lrn/[akt]*.py",
            f"{CPU}/pooling/[fkt]*.py",
            f"{CPU}/pooling/*_kernel.py", f"{CPU}/reduction/tasks.py",
            f"{CPU}/resampling/*kernel.py", f"{CPU}/resampling/*task.py", f"{CPU}/rnn/tasks.py",
            f"{CPU}/rows/*kernel.py", f"{CPU}/rows/*tasks.py", f"{CPU}/softmax/*tasks.py",
        ),
        (f"{CPU}/codegen/native.py", f"{CPU}/codegen/nontemporal.py", f"{CPU}/codegen/task.py"),
        "cpu",
        "reference,cpu_numba",
        (TORCH, OPERATIONS, "tests/cpu_numba/test_*.py"),
    ),
    Stratum(
        "opencl",
        (
            f"{OPENCL}/codegen/*.py", f"{OPENCL}/convolution/implementations.py",
            f"{OPENCL}/convolution/winograd/tile.py", f"{OPENCL}/elementwise/*.py",
            f"{OPENCL}/gemm/product.py", f"{OPENCL}/gemm/strided.py",
            f"{OPENCL}/inner_product/implementations.py", f"{OPENCL}/reduction/algorithms.py",
            f"{OPENCL}/*.py",
        ),
        ("*/__init__.py",),
        "pocl",
        "reference,opencl",
        OPENCL_TESTS,
    ),
    Stratum(
        "templates",
        (f"{OPENCL}/**/*.cl",),
        ("*_nvidia.cl", "*/mma_ptx.cl", "*/wait_for_groups.cl", "*/fence.cl",
         "*/pooling_planes.cl", "*/transpose_tiled.cl"),
        "pocl",
        "reference,opencl",
        OPENCL_TESTS,
    ),
)  # fmt: skip

# Not used: tests that fail after any change of a text, and tests that take minutes.
NO_TESTS = ("tests/opencl/test_opencl_templates.py",)

# Word in a path -> words in the names of related test files, in addition to the word itself.
RELATED = {
    "codegen": ("eltwise", "softmax", "reorder", "windows", "integers"),
    "math": ("vecmath",),
    "grid": ("plans",),
    "copies": (
        "reorder", "inputs", "transpose", "products", "inner", "convolution", "integers",
    ),
    "elementwise": ("eltwise", "binary", "sum", "post", "stages", "algorithms"),
    "gemm": ("matmul", "inner", "convolution", "products", "integers"),
    "strided": ("plans",),
    "matmul": ("broadcast",),
    "transpose": ("reorder", "copies"),
    "depthwise": ("convolution", "integers"),
    "pooling": ("windows", "plans"),
    "lrn": ("windows", "plans"),
    "softmax": ("plans",),
    "reduction": ("plans",),
    "rows": ("normalization", "prelu", "reduction", "softmax", "plans"),
    "groups": ("plans", "convolution"),
    "digits": ("convolution", "plans"),
    "window": ("pooling", "convolution"),
    "tensors": ("memory", "format", "reorder"),
    "ops": ("bad", "reference", "problem"),
    "compare": ("checks", "half", "statistics", "sums"),
    "reference": ("reference", "algorithms", "half"),
    "random": ("attributes",),
    "quantization": ("matmul", "convolution", "inner", "reorder", "post"),
    "definition": ("reorder", "half"),
    "algorithms": ("eltwise", "binary", "post"),
}  # fmt: skip

# File of tests that execute sources in another process, so that no map contains them -> sources.
ELSEWHERE = {
    "tests/opencl/test_opencl_mma.py": f"{OPENCL}/gemm/mma/*.cl",
    "tests/opencl/test_opencl_attention_mma.py": f"{OPENCL}/attention/attention_mma*.cl",
    "tests/opencl/test_opencl_groups_mma.py": f"{OPENCL}/convolution/groups/groups_mma.cl",
    "tests/opencl/test_opencl_fences.py": f"{OPENCL}/*",
}

# Tests of kernels with so many barriers that PoCL compiles each for minutes. They run on Intel's
# runtime, which does not.
ON_INTEL = "tests/opencl/test_opencl*mma*.py"

# Names of functions, methods and constants that affect only speed, choices or texts for people.
COSTS = re.compile(
    r"(seconds|efficien|estimate|utili[sz]ation|flops|bytes|cost|thread|nontemporal|stream|peak"
    r"|accept|refus|formats|_fits|_suits|may_be|choose|shares|lanes|quick|grain|prefetch|ahead"
    r"|is_fresh|stale|heavy|registers|innermost|capability|room|aligned|even_length"
    r"|__repr__|__str__|explain|describe)",
    re.IGNORECASE,
)
THRESHOLDS = re.compile(r"\b_?(LARGE|FEW|SHORT|LONG|LEAST|MOST|MAX|PATIENCE|USUAL)(_[A-Z]+)?\b")
TEXTS = {"Refused", "DescriptorError", "TypeVar", "field", "prefetch"}
SETTINGS = {"strict", "frozen", "casting", "keepdims", "align"}


def sites(root: Path, stratum: Stratum) -> list[Site]:
    """All sites of a stratum in the source below `root`."""
    paths = sorted({path for pattern in stratum.sources for path in root.glob(pattern)})
    found: list[Site] = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        if not any(fnmatch(name, pattern) for pattern in stratum.left_out):
            found += _of(name, path.read_text(encoding="utf-8"))
    return found


def files_for(root: Path, stratum: Stratum) -> list[str]:
    """The paths of the stratum's test files, in the order of the patterns."""
    paths = [path for pattern in stratum.tests for path in sorted(root.glob(pattern))]
    names = dict.fromkeys(path.relative_to(root).as_posix() for path in paths)
    return [name for name in names if name not in NO_TESTS]


def _of(name: str, text: str) -> list[Site]:
    return list(c_sites(name, text)) if name.endswith(".cl") else python_sites(name, text, _is_out)


def _is_out(where: str, node: ast.AST) -> bool:
    if COSTS.search(where):
        return True
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return name in TEXTS
    if isinstance(node, ast.Compare):
        return bool(THRESHOLDS.search(ast.unparse(node)))
    if isinstance(node, ast.UnaryOp):
        return ast.unparse(node.operand).endswith("is_cpu")
    if isinstance(node, ast.keyword):
        return node.arg in SETTINGS or bool(node.arg and COSTS.search(node.arg))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = " ".join(map(ast.unparse, targets))
        return bool(COSTS.search(names) or THRESHOLDS.search(names))
    return False
