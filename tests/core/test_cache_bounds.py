"""A cache without a bound keeps a value for each argument that a program ever has."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNBOUNDED = {"cache", "functools.cache", "lru_cache(maxsize=None)", "functools.lru_cache(None)"}
FEW_ARGUMENTS = {
    "_absolute": "paths of stores",
    "_is_private": "users and groups of the machine",
    "_read": "packages and devices",
    "_trees": "files of the package",
    "cpu_peaks": "numbers of threads",
    "fold_of": "rules of reductions and data types",
    "machine": "instruction sets",
    "names_assigned_twice": "functions of the package",
    "role_of": "names of arguments",
    "row_record": "numbers of taps, which have a limit",
    "template": "files of the package",
}


def unbounded():
    """The functions with parameters whose results are kept without a bound."""
    sources = [*(ROOT / "dnncore").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    for path in sources:
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if decorators & UNBOUNDED and node.args.args:
                yield node.name


def test_caches_without_a_bound_have_few_arguments():
    assert set(unbounded()) == set(FEW_ARGUMENTS)
