"""The list "smoke" shows each fault of a formula, and each tensor that is rounded to fewer bits."""

from __future__ import annotations

import re
from functools import cache

import operation_faults
import pytest
from operation_faults import BITS, FAULTS, KIND

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case
from dnncore.testing.problems.cases import cases

CHECKS = ("integers", "random", "golden", "cancellation", "large", "special")
MOST_ELEMENTS = 3000
MOST_PROBLEMS = 12


@pytest.fixture(scope="module", autouse=True)
def plugin():
    dnn.register(operation_faults)
    yield
    dnn.unregister(operation_faults)


@cache
def problems():
    """The small problems of the list, with their texts, from the smallest."""
    found = [p for p in cases("smoke") if isinstance(p.op, tuple(operation_faults.OPERATIONS))]
    sizes = {p: sum(desc.nelems for _, desc in p.op.tensors()) for p in found}
    small = sorted((p for p in found if sizes[p] <= MOST_ELEMENTS), key=sizes.__getitem__)
    return [(p, str(p)) for p in small]


def failures(problem, name, checks):
    result = run_case(problem, dnn.engine(KIND), impl=f"{KIND}:{name}", checks=checks)
    assert result.impl_names == (f"{KIND}:{name}",), str(result)
    return [f.message for f in result.failures if "raised" not in f.message]


@pytest.mark.parametrize("name", FAULTS)
def test_the_list_shows_a_fault_of_each_operation(name):
    operations, pattern, _ = FAULTS[name]
    for operation in operations:
        able = [p for p, text in problems()
                if isinstance(p.op, operation) and re.search(pattern, text)]  # fmt: skip
        shown = able[:: -(-len(able) // MOST_PROBLEMS) or 1]
        found = (failures(problem, name, [check]) for check in CHECKS for problem in shown)
        assert any(found), f"{operation.__name__}: none of {len(able)} problems"


def test_what_has_no_fault_passes():
    for problem, text in problems()[::40]:
        assert not failures(problem, "right", CHECKS), text


CELLS = "VANILLA_RNN,VANILLA_LSTM,VANILLA_GRU,LBR_GRU,VANILLA_AUGRU"
PROJECTED = "--alg=VANILLA_LSTM --with-peephole=true --with-projection=true"
ROUNDED = [
    "--bnorm --flags=CH mb3ic4_ih5iw4", "--bnorm --dir=BWD_DW --flags=CHR mb3ic4_ih5iw4",
    "--bnorm --flags=CHG mb3ic4", "--lnorm --flags=CH 5x700",
    "--lnorm --dir=BWD_DW --flags=CM 5x700",
    "--gnorm --flags=H g2mb2ic6_iw50", "--gnorm --dir=BWD_DW --flags=CHG g2mb2ic6_iw50",
    "--deconv --dir=FWD_B,BWD_D,BWD_WB mb2ic5oc4_ih4kh3sh2ph1",
    "--prelu --dir=FWD_D,BWD_DW 3x9:1x9",
    "--concat --axis=1 3x9:3x4", "--shuffle --dir=FWD_D,BWD_D --group=4 2x8x3",
    "--resampling --dir=FWD_D,BWD_D --alg=nearest,linear ic5ih3oh5",
    f"--rnn --alg={CELLS} t12mb4_dhc17", f"--rnn --dir=BWD_DW --alg={CELLS} t5mb4_dhc17",
    f"--rnn --dir=FWD_D,BWD_DW {PROJECTED} --direction=bidirectional_sum l2t5mb2_dhc6dic4",
    "--sdpa --dir=FWD_D,BWD_D --mask_type=none,buffer+causal_top_left 1x2x40x33:1x1x33x90:1x1x90x8",
]  # fmt: skip
HALVES = [
    "--bnorm --flags=CH --dir=FWD_D,BWD_DW --dt=f16 mb3ic8_ih5iw4",
    "--lnorm --flags=CH --dir=FWD_D,BWD_DW --dt=bf16 --ss_dt=bf16 8x70",
    "--deconv --dir=FWD_B,BWD_D,BWD_WB --dt=f16 mb2ic5oc4_ih4kh3sh2ph1",
    "--prelu --sdt=bf16 --dir=FWD_D,BWD_DW 3x17x9:1x17x9",
    "--resampling --sdt=f16 --ddt=f16 --alg=linear --dir=FWD_D,BWD_D ic5ih3oh5",
    "--rnn --alg=VANILLA_LSTM --dt=bf16 --dir=FWD_D,BWD_DW t5mb4_dhc17",
    "--sdpa --dt=f16,bf16 1x2x40x33:1x1x33x90:1x1x90x8",
    "--sdpa --dir=BWD_D --dt=f16 1x2x40x33:1x1x33x90:1x1x90x8",
]  # fmt: skip


def rounded_tensors(problem):
    """The tensors whose rounding must be noticed.

    f32 beside half types changes the results by less than they are rounded.
    """
    op = problem.op
    types = {desc.data_type for _, desc in op.tensors()}
    for argument, desc in op.tensors(op.workspace_desc()):
        is_wide = desc.data_type == "f32" and types != {"f32"} and argument.direction == "in"
        if desc.data_type in BITS and not is_wide:
            yield argument.name


@pytest.mark.parametrize("text", [*ROUNDED, *HALVES])
def test_rounding_of_each_tensor_is_noticed(text):
    for problem in read(text):
        assert not failures(problem, "right", ["random"]), str(problem)
        for name in rounded_tensors(problem):
            assert failures(problem, f"rounds_{name}", ["random"]), f"{problem}: {name}"
