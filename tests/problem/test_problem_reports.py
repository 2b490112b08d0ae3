"""Texts with errors: the errors are reported, and the rest is read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_problem_words import MALFORMED, mutated

from dnncore.problem import Invalid, Unreadable, Unsupported, read, read_files
from dnncore.problem.from_verbose import executions, from_verbose

# -- reading to the end ----------------------------------------------------------------------------

FILE = """\
--eltwise --alg=exp     # exponentials \\
2x3 2y3
--frob=1
--tag=abcd 4x5
--tag=ab --dt=s8,f32 3x4
--batch=nowhere
--reset --attr-post-ops=sum:1:0:s32 5x6
--reset --alg=clip --alpha=2 7x8
--alg= 9x10
"""


def test_errors_are_reported_in_order_and_the_rest_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(FILE.replace("\n", "\r\n").encode())
    reports = []
    found = read_files(path, report=reports.append)
    assert list(map(str, found)) == [
        "--eltwise --alg=exp 2x3", "--eltwise --alg=exp 3x4", "--eltwise --alpha=2 9x10",
    ]  # fmt: skip
    told = [(type(error), str(error).removeprefix(str(path)), error.file) for error in reports]
    expected = [
        (Unreadable, ", line 2, word 2: 2y3: expected dims"),
        (Unreadable, ", line 3, word 1: --frob=1: --eltwise has no such option"),
        (Unreadable, ", line 4, word 1: --tag=abcd (read for "),
        (Unsupported, ", line 5, word 3: 3x4: dnncore does not have: data type s8"),
        (Unreadable, ", line 6, word 1: --batch=nowhere: expected a file"),
        (Unsupported, ", line 7, word 3: 5x6: dnncore does not have: sum of data type s32"),
        (Invalid, ", line 8, word 4: 7x8: eltwise: clip needs beta >= alpha"),
    ]
    assert len(told) == len(expected)
    for (kind, message, file), (wanted, start) in zip(told, expected, strict=True):
        assert (kind, file) == (wanted, path)
        assert message.startswith(start)
    assert reports[2].line == f"{path}, line 4"
    assert reports[3].text == "--eltwise --dt=s8 --tag=ab --alg=exp --alpha=0 --beta=0 3x4"
    assert reports[5].features == ("sum of data type s32",)


def told_and_found(text):
    reports = []
    found = [str(problem) for problem in read(text, report=reports.append)]
    return [(type(error), str(error).partition(", line ")[2]) for error in reports], found


def test_problems_of_a_driver_that_only_benchdnn_has_are_left_out():
    text = "--softmax 8x8\n--zeropad --flags=G,CH\n--reset --dir=FWD_D 4x4\n--eltwise 2x3"
    told, found = told_and_found(text)
    assert found == ["--softmax 8x8", "--eltwise 2x3"]
    missing = "3, word 3: 4x4: dnncore does not have: primitive zero_pad"
    assert told == [(Unsupported, missing)]
    with pytest.raises(Unsupported) as error:
        read("--zeropad ic3")
    assert (error.value.text, error.value.features) == (
        "--zeropad ic3", ("primitive zero_pad",)
    )  # fmt: skip
    assert told_and_found("--match=soft --zeropad ic3 --softmax 4x4") == ([], ["--softmax 4x4"])


def test_shapes_after_an_unknown_driver_are_no_problems_of_the_former_one():
    told, found = told_and_found("--softmax 8x8\n--sofmax --axis=0\n4x4\n--eltwise 2x3")
    assert found == ["--softmax 8x8", "--eltwise 2x3"]
    ((kind, message),) = told
    assert kind is Unreadable
    assert message.startswith("2, word 1: --sofmax: --softmax has no such option")


def test_shapes_after_an_unknown_option_are_left_out_up_to_the_end_of_its_line():
    told, found = told_and_found("--softmax --frob=1 8x8 --axis=0 2x2\n4x4")
    assert found == ["--softmax --axis=0 4x4"]
    assert len(told) == 1
    assert told_and_found("--softmax --frob=1 8x8 --eltwise 2x3")[1] == ["--eltwise 2x3"]


def test_without_a_report_the_first_error_is_raised():
    with pytest.raises(Unsupported) as error:
        read("--matmul --dt=u8:f32:f32 --encoding=csr+0.99:: --attr-post-ops=add:u8 2x3:3x4 zz")
    assert error.value.features == ("sparse encoding", "data type f32 with u8")


def test_a_value_continues_after_a_separator():
    text = "--eltwise --attr-post-ops= \\\n relu+ \\\n sum: \\\n 0.5, \\\n \\\n abs 2x3 \\\n 4x5"
    assert read(text) == read("--eltwise --attr-post-ops=relu+sum:0.5,abs 2x3 4x5")


NONSENSE = {
    "--matmul --attr-scales=src 2x3:3x4": "expected ARG:MASK[:TYPE[:GROUPS]] at 'src'",
    "--matmul --attr-acc-mode=fast 2x3:3x4": "expected one of strict, relaxed, any, s32, f32",
    "--matmul --grouped=8 2x3:3x4": "grouped encoding; got '8'",
    "--reorder --cross-engine=cpu 2x3": "reorder across engines; got 'cpu'",
    "--reorder --oflag=comp:1 2x3": "compensation of weights; got 'comp:1'",
    "--conv --attr-post-ops=dw:k3 ic3oc4iw5kw2": "dw:kKsSpP[:TYPE[:TAG[:BIAS_TYPE]]] at 'dw:k3'",
    "--eltwise --attr-fpmath=bf16:yes 2x3": "true or false after the mode",
    "--eltwise --inplace=maybe 2x3": "expected one of false, true",
    "--conv --inplace=true ic3oc4iw5kw2": "no such option",
    "--eltwise --attr-scale=src:common 2x3": "no such option",
}


@pytest.mark.parametrize("text", NONSENSE)
def test_a_typing_error_is_no_missing_feature(text):
    with pytest.raises(Unreadable) as error:
        read(text)
    assert not isinstance(error.value, Invalid)
    assert NONSENSE[text] in str(error.value)


def test_malformed_texts_are_read_to_the_end():
    rng = np.random.default_rng(5)
    texts = [mutated(rng, text) for _ in range(10) for text in MALFORMED]
    reports = []
    for text in texts:
        read(text, report=reports.append)
    assert len(reports) > len(texts) // 2
    for error in reports:
        assert isinstance(error, Unreadable | Unsupported)
        assert re.match(r"problem text, line \d+, word \d+: ", str(error)), error


# -- verbose lines ---------------------------------------------------------------------------------


def verbose_line(kind, desc="f32", attributes="", algorithm="relu"):
    tensors = f"data:{desc}::blocked:ab::f0 diff:undef::undef:::"
    fields = [tensors, attributes, f"alg:eltwise_{algorithm} alpha:0 beta:0", "2x3", "0.1"]
    return ",".join(
        ["onednn_verbose,v1,primitive,exec,cpu", kind, "jit,forward_inference", *fields]
    )


def test_a_type_that_only_onednn_has_is_a_missing_feature():
    reports = []
    (problem,) = read("--reorder --ddt=f4_e3m0,f16 2x3", report=reports.append)
    assert str(problem) == "--reorder --ddt=f16 2x3"
    assert [error.features for error in reports] == [("data type f4_e3m0",)]


VERBOSE = [
    verbose_line("eltwise", "s8", algorithm="exp"),
    verbose_line("brgemm"),
    verbose_line("brgemm"),
    verbose_line("eltwise", attributes="attr-precomputed-reductions:src0:1:s32"),
    verbose_line("eltwise", algorithm="frob"),
    verbose_line("eltwise", attributes="attr-post-ops:binary_add:f64:3"),
    verbose_line("eltwise", attributes="attr-fpmath:bf16:true"),
]


def test_verbose_lines_name_the_same_features():
    reports = []
    (problem,) = executions(VERBOSE, reports.append)
    assert str(problem) == "--eltwise --dir=FWD_I --attr-fpmath=bf16 2x3"
    told = [getattr(error, "features", "unreadable") for error in reports]
    assert told == [
        ("data type s8",), ("primitive brgemm",), ("precomputed reductions",), "unreadable",
        ("post-op operand of data type f64",),
    ]  # fmt: skip


def test_verbose_lines_may_be_one_text():
    lines = [verbose_line("eltwise"), verbose_line("eltwise", "f16")]
    assert len(from_verbose(lines)) == 2
    assert from_verbose("\n".join(lines)) == from_verbose(lines)


def test_verbose_lines_in_a_text_are_reported_with_their_file(tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(VERBOSE))
    reports = []
    assert len(read(f"--from-verbose={path}", report=reports.append)) == 1
    assert [error.file for error in reports] == [path] * 5
    assert reports[3].line == "verbose line 5"
