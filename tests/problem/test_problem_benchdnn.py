"""benchdnn's input files: all their options, what they mean, and which problems --match keeps."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

import dnncore as dnn
from dnncore.problem import Invalid, Problem, Unsupported, read
from dnncore.testing.checks.case import Case

OPTIONS = Path(__file__).parents[1] / "data" / "benchdnn_options.txt"


def sections():
    """Heading -> lines of the file."""
    lines = [line for line in OPTIONS.read_text().splitlines() if line and line[0] != "#"]
    heading = ""
    found = {}
    for is_heading, group in groupby(lines, lambda line: line[0] == "["):
        if is_heading:
            (heading,) = (line.strip("[]") for line in group)
        else:
            found[heading] = list(group)
    return found


SECTIONS = sections()


# -- all options of its files ----------------------------------------------------------------------


def outcome(text):
    """The reports and the problems of a text."""
    try:
        return "read", read(text)
    except Unsupported as error:
        return ", ".join(error.features), []
    except Invalid:
        return "invalid", []


@pytest.mark.parametrize("heading", SECTIONS)
def test_an_option_is_read_or_its_feature_is_named(heading):
    wrong = {line: outcome(line)[0] for line in SECTIONS[heading] if outcome(line)[0] != heading}
    assert not wrong


@pytest.mark.parametrize("words", ["--cfg=u8u8u8u8", "--sdt=u8 --wdt=s8 --ddt=u8"])
def test_a_refused_cell_of_integers_names_the_types_of_one(words):
    problem = "--rnn --dir=FWD_I --alg=VANILLA_LSTM {} l1t2mb2_dhc8"
    with pytest.raises(Unsupported, match="an LSTM of integers has ") as error:
        read(problem.format(words))
    named = str(error.value).partition("an LSTM of integers has ")[2].removesuffix(")")
    assert len(read(problem.format(named))) == 1


def test_a_problem_that_is_read_is_written_and_reads_back():
    for line in SECTIONS["read"]:
        (problem,) = read(line)
        assert read(str(problem)) == [problem]


def test_all_drivers_are_among_them():
    drivers = {line.split()[0] for line in SECTIONS["read"]}
    assert drivers == {f"--{name}" for name in dnn.problem.DRIVERS}
    assert sum(map(len, SECTIONS.values())) > 1000


# -- what they mean --------------------------------------------------------------------------------

CONV = "g2mb2ic4oc6_ih5oh3kh3"
SAME = {
    # a type of bias adds a bias
    f"--conv --dir=FWD_D --bia-dt=f32 {CONV}": f"--conv --dir=FWD_B {CONV}",
    f"--conv --dir=FWD_I --bia-dt=f32 {CONV}": f"--conv --dir=FWD_IB {CONV}",
    f"--conv --dir=BWD_W --bia-dt=f32 {CONV}": f"--conv --dir=BWD_WB {CONV}",
    f"--conv --dir=BWD_D --bia-dt=f32 {CONV}": f"--conv --dir=BWD_D {CONV}",
    "--ip --dir=FWD_D --dt=bf16 --bia-dt=bf16 ic3oc4": "--ip --dt=bf16 --bia-dt=bf16 ic3oc4",
    # strides of convolutions, by role in all directions
    "--conv --dir=FWD_D --strides=100x20x5x1::99x11x3x1 mb2ic4oc6_ih4iw5oh2ow3kh3kw3": (
        "--conv --dir=FWD_D --stag=abx@100x20x5x1 --dtag=abx@99x11x3x1"
        " mb2ic4oc6_ih4iw5oh2ow3kh3kw3"
    ),
    "--conv --dir=BWD_D --strides=:99x9x3x1: mb2ic4oc6_ih5kh3": (
        "--conv --dir=BWD_D --wtag=abx@99x9x3x1 mb2ic4oc6_ih5kh3"
    ),
    # words in any case, empty values
    "--softmax --dir=bwd_d --alg=logsoftmax 2x3": "--softmax --dir=BWD_D --alg=LOGSOFTMAX 2x3",
    "--reduction --p= --eps= --attr-scratchpad= --attr-fpmath= 2x3:2x1": "--reduction 2x3:2x1",
    "--eltwise --alg=exp --alg= --tag= --mb= --impl= --skip-impl= 2x3": "--eltwise 2x3",
    "--matmul --runtime_dims_masks=1:2 --encoding=:: --grouped= 2x3:3x4": "--matmul 2x3:3x4",
    "--reorder --oflag= --cross-engine=none --runtime-dim-mask=3 2x3": "--reorder 2x3",
    "--ip --attr-acc-mode=strict --attr-rounding-mode= --attr-dropout= ic3oc4": "--ip ic3oc4",
    # benchdnn's own runs
    "--engine=gpu -v5 --mode=P --eltwise --check-ref-impl= --cpu-isa-hints=prefer_ymm 2x3": (
        "--eltwise 2x3"
    ),
    "--eltwise --allow-enum-tags-only=0 --perf-template=csv --canonical true 2x3": "--eltwise 2x3",
    # attributes
    "--ip --attr-fpmath=bf16:true ic3oc4": "--ip --attr-fpmath=bf16 ic3oc4",
    "--eltwise --attr-fpmath=,tf32 2x3": "--eltwise --attr-fpmath=strict,tf32 2x3",
    "--eltwise --attr-post-ops=relu:0.5:0:2.5 2x3": "--eltwise --attr-post-ops=relu:0.5 2x3",
    "--eltwise --attr-post-ops=sum:0.5:0:f32 2x3": "--eltwise --attr-post-ops=sum:0.5 2x3",
    "--eltwise --attr-post-ops=SUM+Relu 2x3": "--eltwise --attr-post-ops=sum+relu 2x3",
    "--eltwise --attr-post-ops=add:f32+prelu 2x3": (
        "--eltwise --attr-post-ops=add:f32:common+prelu:common 2x3"
    ),
    "--eltwise --attr-post-ops=select:f32 2x3": (
        "--eltwise --attr-post-ops=select:f32.common:per_tensor 2x3"
    ),
    "--eltwise --attr-post-ops=mul:f32:per_tensor:any 2x3": (
        "--eltwise --attr-post-ops=mul:f32:3:abx 2x3"
    ),
    "--reduction --attr-post-ops=add:f32:per_oc 7:1": "--reduction --attr-post-ops=add:f32 7:1",
    "--matmul --bia-dt=f32 --bia_mask=12 2x3:3x4": "--matmul --bia-dt=f32 --bia_mask=0 2x3:3x4",
    # shapes
    "--conv ic3ic4oc2oc6iw5kw2": "--conv ic4oc6iw5kw2",
    "--conv ic4oc6iw5kw2n": "--conv ic4oc6iw5kw2",
    "--matmul 2x3:3x4nnet-7b-up/down": '--matmul 2x3:3x4n"net-7b-up/down"',
    "--pool ic3_ih5oh5kh3ph2dh1_dw1": "--pool ic3_ih5oh5kh3ph2dh1",
    "--binary --alg=select 2x3:2x1": "--binary --alg=select 2x3:2x1:2x3",
    # formats
    "--eltwise --tag=axb 5": "--eltwise 5",
    "--reorder --stag=aBx16b --dtag=ABx4a4b 5": "--reorder --dtag=A4a 5",
    "--binary --stag=axb:any 2x3x4:2x3x1": "--binary --stag=axb:axb 2x3x4:2x3x1",
    "--binary --alg=select --stag=axb:abx 2x3x4:2x3x4": (
        "--binary --alg=select --stag=axb:abx:axb 2x3x4:2x3x4:2x3x4"
    ),
    "--softmax --dir=BWD_D --stag=axb 2x3x4": (
        "--softmax --dir=BWD_D --stag=any --dtag=axb:any 2x3x4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_equivalent_texts_give_equal_problems(text):
    assert read(text) == read(SAME[text])


def test_a_dst_of_pooling_may_end_before_the_last_window():
    (problem,) = read("--pool mb1ic1_iw2ow1kw1sw1pw0")
    assert problem.op.dst.dims == (1, 1, 1)
    assert problem.op.padding_r == (-1,)
    with pytest.raises(Invalid, match="dst must be 2 along w"):
        read("--conv mb1ic1oc1_iw2ow1kw1sw1pw0")


# -- in place --------------------------------------------------------------------------------------

IN_PLACE = {
    "--eltwise --inplace=true 2x3": ("src", "dst"),
    "--eltwise --dir=BWD_D --inplace=true 2x3": ("diff_dst", "diff_src"),
    "--softmax --inplace=1 --attr-post-ops=sum 2x3": ("src", "dst"),
    "--binary --inplace=true 2x3:1x3": ("src0", "dst"),
    "--bnorm --inplace=true ic3ih4": ("src", "dst"),
    "--lnorm --inplace=true --dir=BWD_DW --flags=CH 2x3": ("diff_dst", "diff_src"),
    "--gnorm --inplace=true g1ic3ih4": ("src", "dst"),
    "--prelu --inplace=true 2x3:1x3": ("src", "dst"),
    "--prelu --dir=BWD_DW --inplace=true 2x3:1x3": ("diff_dst", "diff_src"),
    "--sum --inplace=true --dtag=any 2x3": ("src0", "dst"),
}


@pytest.mark.parametrize("text", IN_PLACE)
def test_in_place_the_output_is_an_input(text):
    (problem,) = read(text)
    assert problem.alike == IN_PLACE[text]
    assert "--inplace=true" in str(problem)
    assert read(str(problem)) == [problem]
    trial = Case(problem, dnn.engine("cpu"), impl="reference:*").trials[0]
    assert trial.in_place == IN_PLACE[text]
    assert trial.wrong(trial.case.round("random"), trial.outputs("random")) == ""


def test_in_place_needs_equal_descriptors():
    with pytest.raises(Unsupported, match="in place where tensors differ"):
        read("--binary --inplace=true 1x3:2x3")
    with pytest.raises(dnn.DescriptorError, match="in place needs an input"):
        Problem(read("--matmul 2x3:3x4")[0].op, inplace=True)


# -- match -----------------------------------------------------------------------------------------

PRINTED = {
    "--conv mb2ic4_ih5iw5_oc6_oh5ow5_kh3kw3_ph1pw1": "--conv ic4ih5oc6oh5kh3ph1",
    "--conv --mb=4 g1ic4oc6_ih5kh3sh2": "--conv g1mb4ic4ih5oc6oh2kh3sh2ph0",
    "--conv ic4oc6_ih5kh3_iw7kw3": "--conv ic4ih5iw7oc6oh3ow5kh3kw3ph0pw0",
    'ic4oc6_id5kd3dd1n"cube"': '--conv ic4id5oc6od1kd3pd0dd1n"cube"',
    "ic4oc6_id5kd3_ih6kh3_iw5kw3": "--conv ic4id5ih6iw5oc6od3oh4ow3kd3kh3kw3pd0ph0pw0",
    "--ip --dir=FWD_D ic3_ih2iw2_oc4": "--ip --dir=FWD_D ic3ih2oc4",
    "--pool --alg=avg_p ic3_iw5kw2": "--pool --alg=avg_p ic3iw5ow4kw2pw0",
    "--lrn mb2ic16_ih5_ls3": "--lrn ic16ih5ls3",
    "--bnorm --flags=CH mb2ic16_ih5iw5_eps0.0625": "--bnorm --flags=CH ic16ih5",
    "--lrn ic16_ls5_alpha0.5_beta0.75": "--lrn ic16alpha0.5",
    "--eltwise --tag=abx --mb=7 2x3n\"a\"": '--eltwise --alg=relu --alpha=0 --beta=0 7x3_n"a"',
    "--reorder 2x3": "--reorder --sdt=f32 --ddt=f32 --stag=abx --dtag=abx 2x3",
}  # fmt: skip


@pytest.mark.parametrize("text", PRINTED)
def test_match_searches_what_benchdnn_prints(text):
    words = text if text.startswith("--") else f"--conv {text}"
    assert read([f"--match=^{re.escape(PRINTED[text])}$", *words.split()])
    assert not read(f"--match=nothing {words}")


def test_match_distinguishes_a_plane_from_a_volume():
    shapes = "ic3oc4_ih9kh3 ic3oc4_id9kd3_ih9kh3_iw8kw3 ic3oc4_ih9kh31ph15"
    (problem,) = read(f"--conv --match=.*[^k][^d][0-9]kh3[^0-9].* {shapes}")
    assert problem.op.src.dims == (2, 3, 9, 9)


def test_match_drops_a_problem_before_it_is_made():
    assert read("--eltwise --match=kept --dt=s8 --tag=abcdef --alpha=x 2x3ndropped") == []


def test_reset_ends_match():
    text = "--eltwise --match=none 2x3 --reset 4x5 --match=6 --eltwise 6x7 8x9"
    assert [str(problem) for problem in read(text)] == ["--eltwise 4x5", "--eltwise 6x7"]
