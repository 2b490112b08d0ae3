"""The table of lines of code has every operation and backend."""

from __future__ import annotations

import re

import code_lines

import dnncore.ops
from dnncore.ops import Operation


def test_every_operation_has_lines_in_every_backend():
    found = code_lines.table()
    for name in dnncore.ops.__all__:
        value = getattr(dnncore.ops, name)
        if not (isinstance(value, type) and issubclass(value, Operation)):
            continue
        if not hasattr(value, "KIND"):
            continue
        (own,) = (name for name in code_lines.OPERATIONS if re.search(rf"\b{name}\b", value.KIND))
        assert all(
            found[part][own] for part in ("ops", "driver", "reference", "cpu_numba", "opencl")
        )


def test_comments_and_blank_lines_do_not_count(tmp_path):
    (tmp_path / "kernel.cl").write_text("// a comment\n#define A 1\n\n  # not a directive\n")
    (tmp_path / "text.py").write_text("# a comment\nx = 1  # one\n\nif x:\n    pass\n")
    assert [code_lines.lines_of(tmp_path / name) for name in ("kernel.cl", "text.py")] == [1, 3]
