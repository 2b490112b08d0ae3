"""Malformed problem texts: the message names the place, the word and what was expected there."""

from __future__ import annotations

import re

import numpy as np
import pytest
from problems import KINDS, problems

import dnncore as dnn
from dnncore.problem import Problem, read, read_files

# text -> (number of the wrong word, the message)
MALFORMED = {
    # drivers and options
    "2x3": (1, "expected an operation first, one of --conv, --deconv, --ip"),
    "--alg=relu": (1, "expected an operation first"),
    "--frob ic3": (1, "expected an operation first"),
    "--eltwise --frob=1 2x3": (2, "no such option; expected one of --dir, --dt, --tag"),
    "--eltwise --wtag=any 2x3": (2, "no such option"),
    "--eltwise=1 2x3": (1, "expected an operation first"),
    "--eltwise --reset=1": (2, "no such option"),
    "--eltwise --batch=nowhere/no_such_file": (2, "expected a file of problem texts"),
    "--eltwise --batch=": (2, "expected a file of problem texts; got no name"),
    "--batch no_such_file": (1, "expected a file of problem texts"),
    "--from-verbose": (1, "expected a file of verbose lines; got no name"),
    "--eltwise --alg 2x3 4": (2, "expected one of abs, clip"),
    "--match=[ --eltwise 2x3": (1, "expected a regular expression"),
    "--match=a{99999999999999999999}": (1, "expected a regular expression"),
    # words
    "--eltwise --dir=BWD_W 2x3": (2, "expected one of FWD_D, FWD_I, BWD_D; got 'BWD_W'"),
    "--conv --dir=FWD ic3oc4iw5kw2": (2, "expected one of FWD_B, FWD_D"),
    "--eltwise --alg=relux 2x3": (2, "expected one of abs, clip"),
    "--pool --alg=avg ic3iw5kw2": (2, "expected one of max, avg_np, avg_p; got 'avg'"),
    "--softmax --alg=exp 2x3": (2, "expected one of SOFTMAX, LOGSOFTMAX"),
    "--conv --alg=gemm ic3oc4iw5kw2": (2, "expected one of direct, wino, auto; got 'gemm'"),
    "--eltwise --alpha=two 2x3": (2, "expected a number; got 'two'"),
    "--softmax --axis=1.5 2x3": (2, "expected a whole number; got '1.5'"),
    "--eltwise --mb=x 2x3": (2, "expected a whole number"),
    "--sum --scales=1:x 2x3": (2, "expected a number"),
    "--sum --sdt=f32:f32:f32 --scales=1:2 2x3": (3, "expected one value, or 3 with colons"),
    "--eltwise --alg=exp,abs,foo 2x3": (2, "expected one of abs, clip"),
    # types and formats
    "--eltwise --dt=f33 2x3": (2, "expected types among"),
    "--reorder --sdt=f32 --ddt=s9 2x3": (3, "expected types among"),
    "--eltwise --dt=f32:f32:f32 2x3": (2, "expected one value, or 2 with colons"),
    "--conv --dt=f32:f32 ic3oc4iw5kw2": (2, "expected one value, or 3 with colons"),
    "--reorder --sdt=f32:f32 2x3": (2, "expected one value; got"),
    "--eltwise --tag=abcd 2x3": (2, "2 dims need 2 letters"),
    "--eltwise --tag=ab: 2x3": (2, "expected one value; got 'ab:'"),
    "--eltwise --tag=aB 2x3": (2, "an upper-case dim needs a block"),
    "--eltwise --tag=ab@8 2x3": (2, "one stride per dim"),
    "--eltwise --tag=ab@1x1 2x3": (2, "elements must not overlap"),
    "--eltwise --tag=ab@3x1@x 2x3": (2, "expected a format, TAG"),
    "--eltwise --dtag=any@3x1 2x3": (2, "strides go only with a format tag"),
    "--matmul --strides=8x1:4x1 2x3:3x4": (2, "strides of src, weights, dst"),
    "--matmul --stag=ab@8x1 --strides=8x1:: 2x3:3x4": (3, "has strides"),
    "--matmul --strides=8x1:4x: 2x3:3x4": (2, "expected a format, TAG|got '8x1:4x:'"),
    "--matmul --bia-dt=f32 --bia_mask=-1 2x3:3x4": (3, "expected a mask, at least 0"),
    "--ip --bia-dt=bf17 mb2ic3oc4": (2, "expected types among"),
    # shapes in letters
    "--conv ic3oc4iw5": (2, "expected kw with iw"),
    "--conv ic3oc4kw5": (2, "expected iw with kw"),
    "--conv ic3oc4": (2, "expected the image's size, iw, ih or id"),
    "--conv iw5kw2oc4": (2, "expected ic and a number"),
    "--conv ic3oc4iw5kw2zz3": (2, "at 'zz3': expected a number after one of g, mb, ic"),
    "--conv ic3oc4iw5kw": (2, "at 'kw': expected a number"),
    "--conv ic3.5oc4iw5kw2": (2, "expected a whole number after ic; got 3.5"),
    "--conv g2ic3oc4iw5kw2": (2, "g must divide ic and oc; got g2, ic3 and oc4"),
    "--conv g0ic3oc4iw5kw2": (2, "g must divide ic and oc"),
    "--conv ic3oc4iw5kw2sw0": (2, "sw must be at least 1; got 0"),
    "--conv mb-1ic3oc4iw5kw2": (2, "a dim is at least 0"),
    "--conv ic3oc4iw5kw2dw-1": (2, "dilations"),
    "--conv ic99999999999999999999oc4iw5kw2": (2, "expected a number"),
    "--conv 2x3x4": (2, "at '2x3x4': expected a number after one of"),
    '--conv ic3oc4iw5kw2n"open': (2, "expected a number after one of"),
    "--pool g2ic3iw5kw2": (2, "at 'g2ic3iw5kw2': expected a number"),
    "--pool --alg=avg_np ic3iw5kw2pw2": (3, "avg_exclude_padding needs"),
    "--lrn mb2ic3ls0": (2, "local_size must be"),
    "--ip mb2ic3": (2, "expected oc and a number"),
    # shapes in dims
    "--lnorm 3": (2, "expected 2 to 5 dims, such as 4x64; got '3'"),
    "--eltwise 2x": (2, "expected dims such as 2x3; got '2x'"),
    "--eltwise 2x-3": (2, "expected dims such as 2x3"),
    "--eltwise ic3": (2, "expected dims such as 2x3"),
    "--eltwise 2x3:2x3": (2, "expected dims of 1 tensor"),
    "--eltwise 1x1x1x1x1x1x1x1x1x1x1x1x1": (2, "at most 12 dims"),
    "--binary 2x3": (2, "expected dims of 2 tensor"),
    "--binary 2x3:3x2": (2, "dims that are equal or 1"),
    "--binary 2x3:2x3:2x3": (2, "expected dims of 2 tensor"),
    "--binary --alg=select 2x3": (3, "expected dims of 2 or 3 tensor"),
    "--matmul 2x3": (2, "expected dims of 2 or 3 tensor"),
    "--matmul 2x3:4x5": (2, "src has K = 3 columns but weights have 4 rows"),
    "--matmul 2:2": (2, "expected MxK:KxN"),
    "--matmul 2x3:3x4:2x5": (2, "dst must be"),
    "--softmax --axis=2 2x3": (3, "axis must be an integer from 0 to 1; got 2"),
    "--bnorm --flags=M ic3": (2, "expected letters among GCHRA; got 'M'"),
    "--lnorm --flags=R 2x3": (2, "expected letters among GCHM; got 'R'"),
    "--gnorm --flags=A ic3": (2, "expected letters among GCH; got 'A'"),
    "--rnn --flags=CH dhc3": (2, "expected O, the gradients overwrite, or nothing; got 'CH'"),
    "--reduction 2x3:2x3": (2, "one at least be reduced"),
    "--reduction --alg=norm_lp_sum --p=0.5 2x3:2x1": (4, "p must be at least 1"),
    # attributes
    "--eltwise --attr-scratchpad=mine 2x3": (2, "expected one of library, user; got 'mine'"),
    "--eltwise --attr-deterministic=maybe 2x3": (2, "expected one of false, true"),
    "--eltwise --attr-scratchpad-limit=1k 2x3": (2, "expected a whole number"),
    "--eltwise --attr-fpmath=f8 2x3": (2, "expected one of strict, ieee"),
    "--eltwise --attr-scales=src:common 2x3": (3, "scales of src: eltwise has no scales"),
    "--eltwise --attr-post-ops=frob 2x3": (2, "expected one of sum[:SCALE[:ZERO_POINT[:TYPE]]],"),
    "--eltwise --attr-post-ops=relu+ 2x3": (2, "expected a number|at 'relu+'|got 'relu+'"),
    "--eltwise --attr-post-ops=sum:1:2 2x3": (3, "a sum with a zero point needs dst of type"),
    "--eltwise --attr-post-ops=sum:1:x 2x3": (2, "a whole number as the zero point"),
    "--eltwise --attr-post-ops=sum:1:3000000000 2x3": (2, "from -2^31 to 2^31 - 1"),
    "--eltwise --attr-post-ops=sum:x 2x3": (2, "at 'sum:x': expected a number"),
    "--eltwise --attr-post-ops=sum:nan 2x3": (2, "scale must be a finite number"),
    "--eltwise --attr-post-ops=clip:2:1 2x3": (2, "clip needs beta >= alpha"),
    "--eltwise --attr-post-ops=add:f32:rows 2x3": (2, "a number or one of per_tensor, common"),
    "--eltwise --attr-post-ops=add:f32:3:abc 2x3": (2, "2 dims need 2 letters"),
    "--eltwise --attr-post-ops=add:f64 2x3": (3, "post-op operand of data type f64"),
    "--eltwise --attr-post-ops=select:f32.1.ab.1x1.9 2x3": (2, "a type, a mask, a format"),
    "--eltwise --attr-post-ops=relu --tag=axx 2x3": (3, "format tag 'axx'"),
}  # fmt: skip


@pytest.mark.parametrize("words", ["--axis=0", "--sdt=f16", "--axis=frob --impl=nope"])
def test_options_behind_the_last_shape_are_an_error(words):
    with pytest.raises(dnn.DescriptorError, match="apply to the shapes and files after them"):
        read(f"--softmax 8x100 {words}")
    with pytest.raises(dnn.DescriptorError, match="apply to the shapes and files after them"):
        read(["--softmax", "8x100", *words.split()])


def test_a_value_may_be_the_next_word():
    assert read("--eltwise --alg exp,abs --tag ba 2x3") == read(
        "--eltwise --alg=exp,abs --tag=ba 2x3"
    )


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_text_names_the_place_and_what_was_expected(text):
    number, reason = MALFORMED[text]
    with pytest.raises(dnn.DescriptorError) as error:
        read(text)
    message, word = str(error.value), text.split()[number - 1]
    assert message.startswith(f"problem text, line 1, word {number}: {word}")
    assert any(part in message for part in reason.split("|")), message


def test_many_malformed_texts_are_listed():
    assert len(MALFORMED) >= 40


def test_an_error_in_an_option_has_the_place_of_the_option():
    text = "--eltwise\n--tag=abcd 2x3x4x5\n\n2x3"
    with pytest.raises(dnn.DescriptorError) as error:
        read(text)
    assert str(error.value).startswith(
        "problem text, line 2, word 1: --tag=abcd (read for problem text, line 4, word 1: 2x3): "
    )


def test_files_are_named(tmp_path):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("# shapes\n\n2x3 2y3\n")
    outer.write_text("--eltwise --alg=exp\n--batch=inner\n")
    with pytest.raises(dnn.DescriptorError) as error:
        read_files(outer)
    assert f"{outer}, line 2, word 1: --batch=inner" in str(error.value)
    assert f"{inner}, line 3, word 2: 2y3: expected dims such as 2x3" in str(error.value)


def test_a_file_that_includes_itself(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("--eltwise\n--batch=two")
    two.write_text("2x3 --batch=one")
    with pytest.raises(dnn.DescriptorError, match=r"word 2: --batch=one: .* includes itself"):
        read_files(one)


def test_a_file_may_be_included_twice(tmp_path):
    (tmp_path / "shapes").write_text("2x3")
    (tmp_path / "all").write_text("--eltwise --batch=shapes --alg=exp --batch=shapes")
    assert [str(p) for p in read_files(tmp_path / "all")] == [
        "--eltwise 2x3",
        "--eltwise --alg=exp 2x3",
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe--eltwise", None])
def test_a_file_without_text_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content) if content else path.mkdir()
    with pytest.raises(dnn.DescriptorError, match="expected a file of problem texts"):
        read_files(path)


@pytest.mark.parametrize("word", ["two words", 'quo"te', "line\nbreak"])
@pytest.mark.parametrize("field", ["name", "impl", "skip_impl"])
def test_names_and_patterns_are_words(field, word):
    op = read("--eltwise 2x3")[0].op
    with pytest.raises(dnn.DescriptorError, match="without blanks or quotes"):
        Problem(op, **{field: word})


def test_attributes_must_fit_the_operation():
    op = read("--eltwise 2x3")[0].op
    slopes = dnn.MemoryDesc((1, 4), "f32", "ab")
    with pytest.raises(dnn.DescriptorError, match="post_op_0_weights"):
        Problem(op, dnn.Attributes([dnn.PostOp.prelu(slopes)]))


# -- mutations -------------------------------------------------------------------------------------

SNIPPETS = ["--", "=", ",", ":", "x", "@", "+", ".", "_", "-1", "0", "9" * 30, "1e999", "nan", '"',
            "#", " ", "\n", "\0", "é", "²", "--batch=", "--match=(", "--mb=", "g0", "any", "undef",
            "a:b:c", "select", "--dir=", "--strides=::", "\\", "--dt=", "n", "abx", "AB",
            "12345678901234567", "1" * 5000]  # fmt: skip
CHAIN = "--attr-post-ops=relu:0.1+sum:0.5+add:f32:1:abx+select:f32.1:0+prelu --attr-fpmath=any"


def mutated(rng, text):
    """Edit once or twice: remove, double, replace or move a piece, or insert a snippet."""
    for _ in range(rng.integers(1, 3)):
        start, end = sorted(rng.integers(0, len(text) + 1, 2))
        end = min(end, start + rng.integers(1, 5))
        piece, snippet = text[start:end], SNIPPETS[rng.integers(len(SNIPPETS))]
        middle = ["", piece * 2, snippet, piece[::-1], snippet + piece][rng.integers(5)]
        text = text[:start] + middle + text[end:]
    return text


def test_a_mutated_text_gives_problems_or_an_error_with_its_place():
    rng = np.random.default_rng(3)
    texts = [str(Problem(op)) for kind in KINDS for op in problems(kind, 10)]
    texts += [re.sub(" ", f" {CHAIN} ", text, count=1) for text in texts[::5]]
    outcomes = {"problems": 0, "error": 0}
    for _ in range(20):
        for text in texts:
            found, error = problems_or_error(mutated(rng, text))
            if error:
                assert re.match(r"problem text, line \d+, word \d+: ", error)
                outcomes["error"] += 1
            else:
                assert read("\n".join(map(str, found))) == found
                outcomes["problems"] += 1
    assert min(outcomes.values()) > 200, outcomes


def problems_or_error(text):
    try:
        return read(text), ""
    except dnn.DescriptorError as error:
        return [], str(error)


@pytest.mark.parametrize(
    "word", ["--tag=aB{}b", "--tag=ab@{}x1", "--mb={}", "{}x3", "--tag=ab@3x1@{}"]
)
def test_absurdly_long_numbers(word):
    with pytest.raises(dnn.DescriptorError):
        read(f"--eltwise {word.format('9' * 5000)} 2x3")
