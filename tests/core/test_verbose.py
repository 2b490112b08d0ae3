"""Verbose lines: written as oneDNN writes them, read back without loss, gone without a trace."""

import io
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from problems import KINDS, problems, retyped
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore import observers
from dnncore.backend import Event, cache_count
from dnncore.problem import Problem, read, read_files
from dnncore.problem.from_verbose import executions, from_verbose
from dnncore.problem.verbose_fields import write
from dnncore.tensors.strides import outer_counts

CPU = dnn.engine("cpu")
ROOT = Path(__file__).parents[2]
TODAY = (ROOT / "tests" / "data" / "onednn_verbose_today.txt").read_text().splitlines()[1:]
GOLDEN = (ROOT / "tests" / "data" / "onednn_verbose.txt").read_text().splitlines()[1:]
UNTOLD = {"offsets", "scales", "alpha", "k", "prd", "prh", "prw"}  # by oneDNN, in a last field


def lines_of(capsys):
    """The lines since the last look, without the header."""
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("dnncore_verbose,v1,") for line in lines)
    return [line for line in lines if ",info," not in line]


def relu_call(dims=(4, 5), impl="reference:*"):
    """A relu, bound to a src of -1, 1, -1, ... and dst."""
    pd = dnn.PrimitiveDesc(relu_op(dims), CPU, impl=impl)
    src = np.resize(np.float32([-1, 1]), dims)
    memories = {"src": dnn.Memory.from_numpy(src, engine=CPU), "dst": dnn.Memory(pd.dst_desc, CPU)}
    return pd.primitive().bind(**memories)


# -- what is written -------------------------------------------------------------------------------


def test_a_launch_is_a_line_of_oned_nns_fields(capsys):
    call = relu_call()
    with dnn.set_verbose("profile_exec"):
        call(CPU.stream())
    (line,) = lines_of(capsys)
    *fields, milliseconds = line.split(",")
    assert ",".join(fields) == (
        "dnncore_verbose,v1,primitive,exec,cpu,eltwise,reference:eltwise,forward_inference,"
        "data:f32::blocked:ab::f0 diff:undef::undef:::,,alg:eltwise_relu alpha:0 beta:0,4x5"
    )
    assert float(milliseconds) > 0


def test_every_way_to_launch_is_seen(capsys):
    call = relu_call()
    primitive, stream = call.primitive, CPU.stream()
    memories = dict(zip(("src", "dst"), call.memories, strict=True))
    net = dnn.Sequence([call, call])
    with dnn.set_verbose("profile_exec"):
        call(stream)
        net(stream)
        primitive.execute(stream, **memories)
        relu_call()(stream)
    assert len(lines_of(capsys)) == 5


def test_chained_calls_are_seen_one_by_one(capsys):
    desc = dnn.MemoryDesc((33,))
    x, one = (dnn.Memory.from_numpy(np.ones(33, np.float32), engine=CPU) for _ in range(2))
    pd = dnn.PrimitiveDesc(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc), CPU)
    net = dnn.Sequence([pd.primitive().bind(src0=x, src1=one, dst=x)] * 3)
    net(CPU.stream())
    with dnn.set_verbose("profile_exec"):
        net(CPU.stream())
    assert len(lines_of(capsys)) == 3
    net(CPU.stream())
    assert not lines_of(capsys)
    assert (x.numpy() == 10).all()


def test_results_are_the_same_on_every_engine(target, capsys):
    rng = np.random.default_rng(0)
    op = relu_op((3, 700))
    (pd, *_) = target.primitive_descs(op)
    values = rng.normal(size=(3, 700)).astype(np.float32)
    memories = [dnn.Memory.from_numpy(values, engine=pd.engine), dnn.Memory(pd.dst_desc, pd.engine)]
    stream = pd.engine.stream()
    with dnn.set_verbose("all"):
        pd.primitive().execute(stream, src=memories[0], dst=memories[1])
    assert (memories[1].numpy() == np.maximum(values, 0)).all()
    commands = [line.split(",")[3] for line in lines_of(capsys)]
    assert commands[-1] == "exec"
    assert commands[-2].startswith("create:")


def test_creations_tell_built_and_taken_from_the_cache(capsys):
    with registered(Relu("toybackend:relu", 9.0)), dnn.set_verbose("profile_create"):
        for _ in range(2):
            dnn.PrimitiveDesc(relu_op((2, 11)), CPU, impl="toybackend:*").primitive()
    commands = [line.split(",")[3:7] for line in lines_of(capsys)]
    assert commands == [
        ["create:cache_miss", "cpu", "eltwise", "toybackend:relu"],
        ["create:cache_hit", "cpu", "eltwise", "toybackend:relu"],
    ]


def test_creations_tell_code_that_was_loaded_from_disk(capsys):
    class Stored(Relu):
        def build(self):
            cache_count("from_disk")
            return super().build()

    with registered(Stored("toybackend:stored", 9.0)), dnn.set_verbose("profile_create"):
        dnn.PrimitiveDesc(relu_op((2, 19)), CPU, impl="toybackend:*").primitive()
    (line,) = lines_of(capsys)
    assert line.split(",")[3] == "create:from_disk"


def test_dispatch_lines_have_every_refusal(capsys):
    refusing = Relu("toybackend:no", refuse=("resources", "needs 7 units,\nhas 3"))
    with registered(refusing), dnn.set_verbose("dispatch"):
        pd = dnn.PrimitiveDesc(relu_op((2, 13)), CPU, skip_impl="reference:*")
    lines = lines_of(capsys)
    assert len(lines) == len(pd.refusals) > 1
    (told,) = [line for line in lines if "toybackend:no" in line]
    assert told.startswith("dnncore_verbose,v1,primitive,create:dispatch,eltwise,cpu,eltwise,")
    assert told.endswith(",2x13,resources: needs 7 units, has 3")


def broken_operation():
    x = dnn.MemoryDesc((1, 3, 8, 8))
    dnn.ConvolutionForward("forward_training", src=x, weights=dnn.MemoryDesc((8, 4, 3, 3)), dst=x)


@pytest.mark.parametrize(
    ("word", "cause", "error", "line"),
    [
        ("check", broken_operation, dnn.DescriptorError,
         "primitive,check,convolution,src has 3 channels but weights expect 4"),
        ("check", lambda: dnn.MemoryDesc((2,), "f33"), dnn.DescriptorError,
         "common,check,data type: no such type; got 'f33'"),
        ("error", lambda: dnn.PrimitiveDesc(relu_op(), CPU, impl="nobody"), dnn.NoImplementation,
         "primitive,error,eltwise,impl=nobody matches no implementation on cpu"),
        ("warn", lambda: warnings.warn("cache: lost", dnn.CacheWarning, stacklevel=1),
         dnn.CacheWarning, "common,warn,cache: lost"),
    ],
)  # fmt: skip
def test_errors_and_warnings_are_lines_of_their_level(capsys, word, cause, error, line):
    others = ",".join({"check", "error", "warn"} - {word})
    with dnn.set_verbose(others), pytest.raises(error):
        cause()
    assert not lines_of(capsys)
    with dnn.set_verbose(word), pytest.raises(error):
        cause()
    (told,) = lines_of(capsys)
    assert told.startswith(f"dnncore_verbose,v1,{line}")


def test_to_ask_who_there_is_and_hear_nobody_is_no_error(capsys):
    with dnn.set_verbose("error,warn,dispatch"):
        assert not list(dnn.primitive_descs(relu_op(), CPU, impl="nobody"))
    commands = {line.split(",")[3] for line in lines_of(capsys)}
    assert commands == {"create:dispatch"}


def test_threads_write_whole_lines(capsys):
    call = relu_call((64, 64))

    def work():
        stream = CPU.stream()
        for _ in range(50):
            call(stream)

    with dnn.set_verbose("profile_exec"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = lines_of(capsys)
    assert len(lines) == 200
    assert executions(lines) == {Problem(call.primitive.pd.op): 200}


def test_a_program_goes_on_where_stdout_is_gone(monkeypatch):
    call, stream = relu_call(), CPU.stream()

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("nobody reads")

    monkeypatch.setattr(sys, "stdout", Gone())
    with dnn.set_verbose("profile_exec"):
        with pytest.warns(UserWarning, match="verbose: lines end here, .*nobody reads"):
            call(stream)
        call(stream)
    assert (call.memories[1].numpy() == np.resize([0, 1], (4, 5))).all()


def test_switching_while_threads_run_changes_no_result(capsys):
    desc = dnn.MemoryDesc((33,))
    pd = dnn.PrimitiveDesc(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc), CPU)
    one = dnn.Memory.from_numpy(np.ones(33, np.float32), engine=CPU)
    totals = [dnn.Memory.from_numpy(np.zeros(33, np.float32), engine=CPU) for _ in range(3)]

    def work(total):
        call = pd.primitive().bind(src0=total, src1=one, dst=total)
        net, stream = dnn.Sequence([call, call]), CPU.stream()
        for _ in range(200):
            net(stream)
            call(stream)

    threads = [threading.Thread(target=work, args=(total,)) for total in totals]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with dnn.set_verbose("profile_exec"):
            pass
    for total in totals:
        assert (total.numpy() == 600).all()
    assert set(executions(lines_of(capsys))) <= {Problem(pd.op)}


# -- switching -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("none", []),
        ("0", []),
        ("profile,none", []),
        ("profile_exec", ["exec"]),
        ("1", ["exec"]),
        ("2", ["create", "exec"]),
        ("none,profile", ["create", "exec"]),
        ("PROFILE,filter=conv|elt", ["create", "exec"]),
        ("profile,filter=conv", []),
        ("filter=elt", ["create", "exec"]),
        ("filter=conv", []),
        ("none,filter=elt", []),
        ("profile_create,dispatch", ["create"]),
    ],
)
def test_words_say_which_lines(capsys, words, commands):
    with registered(Relu("toybackend:relu", 9.0)), dnn.set_verbose(words):
        relu_call((2, 17), impl="toybackend:*")(CPU.stream())
    told = [re.split("[,:]", line)[3] for line in lines_of(capsys) if "dispatch" not in line]
    assert told == commands


@pytest.mark.parametrize("words", ["profil", "profile;check", "filter=("])
def test_unknown_words_are_refused(words):
    with pytest.raises(dnn.DescriptorError, match=r"verbose: .*(expected some of none|must be a)"):
        dnn.set_verbose(words)


@pytest.mark.parametrize("words", [None, 1, b"all"])
def test_what_is_no_text_is_refused(words):
    with pytest.raises(dnn.DescriptorError, match="verbose: expected words"):
        dnn.set_verbose(words)


def test_an_unknown_word_in_the_variable_is_warned_of_and_breaks_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import dnncore; print(dnncore.observers.active)"],
        env={**os.environ, "DNNCORE_VERBOSE": "profile_exec,bogus"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "()\n"
    assert "DNNCORE_VERBOSE is ignored: verbose: unknown word 'bogus'" in done.stderr


def test_threads_that_switch_at_once_leave_nothing_behind():
    before, interval = observers.active, sys.getswitchinterval()

    def switch():
        for _ in range(200):
            dnn.set_verbose("profile_create")

    threads = [threading.Thread(target=switch) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        with dnn.set_verbose("none"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(observers.active) == len(before) + 1
    finally:
        sys.setswitchinterval(interval)
    assert observers.active == before


def test_a_block_puts_back_what_was_before(capsys):
    call, stream = relu_call(), CPU.stream()
    with dnn.set_verbose("profile_exec"):
        with dnn.set_verbose("none"):
            call(stream)
        assert not lines_of(capsys)
        call(stream)
    call(stream)
    assert len(lines_of(capsys)) == 1


def test_off_leaves_no_python_call_behind():
    call, stream = relu_call(impl="*"), CPU.stream()
    net = dnn.Sequence([call, call])

    def python_calls():
        count = 0

        def profile(frame, event, argument):
            nonlocal count
            count += event == "call"

        for launch in (call, net):
            launch(stream)  # attaches
        sys.setprofile(profile)
        for launch in (call, net):
            launch(stream)
        sys.setprofile(None)
        return count

    before = python_calls()
    with dnn.set_verbose("profile_exec"):
        during = python_calls()
    assert python_calls() == before < during


def test_the_variable_switches_it_on_with_a_header():
    program = (
        "import dnncore as dnn; d = dnn.MemoryDesc((7,)); e = dnn.engine('cpu');"
        "pd = dnn.PrimitiveDesc(dnn.Reorder(src=d, dst=d), e, impl='reference:*');"
        "pd.primitive().execute(e.stream(), src=dnn.Memory(d, e), dst=dnn.Memory(d, e))"
    )
    setting = {"DNNCORE_VERBOSE": "profile_exec", "DNNCORE_VERBOSE_TIMESTAMP": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=True,
    )
    version, template, cpu, line = done.stdout.splitlines()
    assert version == f"dnncore_verbose,v1,info,dnncore v{dnn.__version__}"
    assert "template:timestamp,operation,engine,primitive,implementation,prop_kind" in template
    assert cpu.startswith("dnncore_verbose,v1,info,cpu,")
    assert re.match(r"dnncore_verbose,v1,[0-9.]+,primitive,exec,cpu,reorder,", line)
    assert [str(problem) for problem in from_verbose([line])] == ["--reorder 7"]


def test_observers_may_stand_around_launches_and_leave():
    seen = []

    class Doubler(observers.Observer):
        def watch(self, primitive, memories, run):
            def twice(stream, wait_for=()):
                seen.append((primitive.impl_name, [memory.desc.dims for memory in memories]))
                return run(stream, (run(stream, wait_for),))

            return twice

    call, doubler = relu_call(), Doubler()
    observers.add(doubler)
    try:
        call(CPU.stream())
    finally:
        observers.remove(doubler)
    call(CPU.stream())
    assert seen == [("reference:eltwise", [(4, 5), (4, 5)])]


class Failing(Event):
    """An event of another library, which fails after its wait has begun.

    has_error: whether it also has an `error`.
    """

    def __init__(self, *, has_error):
        self.has_error, self.ended = has_error, False

    def wait(self, timeout=None):
        self.ended = True
        raise dnn.ExecutionError("the planted failure")

    @property
    def done(self):
        return self.ended

    @property
    def error(self):
        return dnn.ExecutionError("the planted failure") if self.ended and self.has_error else None


@pytest.mark.parametrize("has_error", [True, False])
@pytest.mark.parametrize("name", [d.name for d in dnn.devices() if d.status == "ok"])
def test_failures_of_other_engines_arrive_while_lines_are_written(name, has_error):
    engine = dnn.engine(name)
    src, dst = (dnn.Memory.from_numpy(np.ones((4, 5), "f4"), engine=engine) for _ in range(2))
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=dst.desc)
    primitive = dnn.PrimitiveDesc(op, engine).primitive()
    event = Failing(has_error=has_error)
    with dnn.set_verbose("profile_exec"), pytest.raises(dnn.ExecutionError) as info:
        primitive.execute(engine.stream(), src=src, dst=dst, wait_for=[event]).wait()
    assert "the planted failure" in f"{info.value} {info.value.__cause__}"


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_lines_read_back_as_the_problem(capsys, kind):
    created = []
    with dnn.set_verbose("profile_create"):
        for i, op in enumerate(problems(kind)):
            typed = retyped(op, ("f16", "bf16")[i % 2]) if i % 3 else op
            pd = dnn.PrimitiveDesc(typed, CPU, impl="reference:*")
            pd.primitive()
            created.append(Problem(pd.op))
    assert list(executions(lines_of(capsys))) == list(dict.fromkeys(created))


IMAGE = dnn.MemoryDesc((2, 8, 5, 5))
CHANNELS = dnn.MemoryDesc((1, 8, 1, 1))


@pytest.mark.parametrize(
    "attr",
    [
        dnn.Attributes(),
        dnn.Attributes((dnn.PostOp.sum(1 / 3), dnn.PostOp.eltwise("linear", 0.1, 1e10))),
        dnn.Attributes((dnn.PostOp.eltwise("clip", -1e-7, 6), dnn.PostOp.sum())),
        dnn.Attributes((dnn.PostOp.binary("mul", IMAGE.with_format("acdb")),)),
        dnn.Attributes((dnn.PostOp.binary("add", CHANNELS), dnn.PostOp.prelu(CHANNELS))),
        dnn.Attributes((dnn.PostOp.prelu(IMAGE.with_format("aBcd8b")),)),
        dnn.Attributes((dnn.PostOp.binary("select", IMAGE, CHANNELS.with_data_type("s8")),)),
        dnn.Attributes(scratchpad="user", deterministic=True, fpmath="bf16"),
        dnn.Attributes(scratchpad_limit=0),
    ],
)
def test_attributes_read_back(attr):
    op = dnn.EltwiseForward("forward_training", "tanh", src=IMAGE, dst=IMAGE)
    kind, *others = write(op, attr).texts
    line = ",".join(["dnncore_verbose,v1,primitive,exec,cpu", kind, "some:impl", *others, "0.5"])
    assert from_verbose([line]) == [Problem(op, attr)]


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
def test_the_algorithms_of_a_convolution_read_back(direction):
    for word, name in {"direct": "direct", "wino": "winograd", "auto": "auto"}.items():
        (given,) = read(f"--conv --dir={direction} --stag=axb --wtag=abx --alg={word} ic3oc4ih5kh3")
        kind, *others = write(given.op, given.attr).texts
        assert f"alg:convolution_{name}" in others[-2].split()
        line = ",".join(["dnncore_verbose,v1,primitive,exec,cpu", kind, "some:impl", *others, "1"])
        assert from_verbose([line]) == [given]


def test_outputs_of_another_format_and_opaque_ones_read_back():
    nhwc = IMAGE.with_format("acdb")
    line = "dnncore_verbose,v1,primitive,exec,cpu,{},x,{},1"

    def told(op):
        kind, *others = write(op, dnn.Attributes()).texts
        return from_verbose([line.format(kind, ",".join(others))])[0].op

    relu = dnn.EltwiseForward("forward_training", "relu", src=IMAGE, dst=nhwc)
    assert told(relu) == relu
    lrn = dnn.LRNBackward(
        "within_channel", src=IMAGE, diff_dst=IMAGE, diff_src=nhwc, alpha=0.5, k=3
    )
    assert told(lrn) == lrn
    secret = IMAGE.with_format("owner:packed:8", nbytes=4096)
    opened = dnn.MatMul(src=IMAGE, weights=secret.with_format("any"), dst=IMAGE)
    assert told(opened.with_descs(weights=secret)) == opened


@pytest.mark.parametrize(("text", "line"), list(zip(GOLDEN[::2], GOLDEN[1::2], strict=True)))
def test_lines_of_onednn_are_read_and_written_alike(text, line):
    ((given,), (found,)) = read(text), from_verbose([line])
    assert check_fields(given, found, line)
    assert from_verbose([as_v1(line)]) == [found]


def as_v1(line):
    """The same line in the syntax of today's oneDNN."""
    line = re.sub(r"([ ,][a-z_]+)_(f32|f16|bf16|s32|s8|u8|undef):", r"\1:\2:", line)
    return line.replace("onednn_verbose,", "onednn_verbose,v1,primitive,")


def check_fields(given, found, line):
    """What is read is what was given, and dnncore writes of that what oneDNN wrote.

    Returns whether the formats have the same names. A dim with one block may stand anywhere.
    """
    op = with_formats_of(found.op, given.op)
    assert [desc for _, desc in op.tensors()] == [desc for _, desc in found.op.tensors()]
    assert found.attr == given.attr
    if type(op).__name__.startswith(WRITTEN_OTHERWISE):
        assert op == found.op
        return True
    ours = write(op, given.attr, op.workspace_desc(), given.op)
    prop_kind, descs, attributes, auxiliary, problem = as_v1(line).split(",")[7:12]
    assert ours.prop_kind == prop_kind
    assert ours.attributes == attributes.rstrip()
    assert ours.problem_desc == problem
    told, words = auxiliary.split(), ours.auxiliary.split()
    untold = words[len(told) :]
    assert words[: len(told)] == told
    assert {word.partition(":")[0] for word in untold} <= UNTOLD
    assert untold or found.op == op
    assert ours.memory_descriptors == descs or min(block_counts(op)) < 2
    return ours.memory_descriptors == descs


def with_formats_of(found, given):
    """The operation with the formats, and the algorithm, that it leaves open as in another."""
    opened = [row.name for row, desc in given.tensors() if desc.is_any]
    return given.with_descs(**{name: getattr(found, name) for name in opened}).resolve_any()


def block_counts(op):
    return [n for _, desc in op.tensors() for n in outer_counts(desc.dims, desc.inner_blocks)]


@pytest.mark.parametrize(("text", "line"), list(zip(TODAY[::2], TODAY[1::2], strict=True)))
def test_lines_of_today_are_read(text, line):
    assert from_verbose([line]) == read(text)


def test_a_line_with_an_unknown_tensor_is_an_error():
    fields = "data:f32::blocked:abc::f0 scale:f32::blocked:a::f0,,flags:C,mb2ic3iw4,0.1"
    line = f"onednn_verbose,v1,exec,cpu,batch_normalization,ref,forward_training,{fields}"
    with pytest.raises(dnn.DescriptorError, match=r"scale:.*: expected one of data, diff of batch"):
        from_verbose([line])


PEER = """
import sys
from benchmarks.contestants.onednn import Peer, Unsupported
from dnncore.problem import read
peer = Peer()
for text in sys.stdin:
    (problem,) = read(text)
    print("problem", text, end="", flush=True)
    try:
        peer.primitive(problem.op, attr=problem.attr)
    except Unsupported:
        print("unsupported")
"""


# oneDNN's lines of these have other tensors, such as data and stats. They are read, not written.
WRITTEN_OTHERWISE = ("BatchNorm", "GroupNorm", "LayerNorm", "PReLU", "RNN", "Shuffle")


@pytest.mark.peer
def test_onednn_writes_the_same_fields():
    kinds = [
        kind for kind in KINDS if not kind.__name__.startswith((*WRITTEN_OTHERWISE, "Attention"))
    ]
    given = [Problem(op) for kind in kinds for op in problems(kind, 250) if is_printed_alike(op)]
    done = subprocess.run(
        [sys.executable, "-c", PEER],
        input="".join(f"{problem}\n" for problem in given),
        env={**os.environ, "ONEDNN_VERBOSE": "profile_create"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    alike = {kind: [] for kind in kinds}
    for group in done.stdout.split("problem ")[1:]:
        text, *lines = group.splitlines()
        made = [line for line in lines if ",create:" in line]
        if made and "unsupported" not in lines:  # the last line; those before are its hint's
            ((problem,), (found,)) = read(text), from_verbose(made[-1:])
            alike[type(problem.op)].append(check_fields(problem, found, made[-1]))
    for kind, answers in alike.items():
        assert len(answers) >= 5, kind  # oneDNN has few gradients of LRN
        assert sum(answers) >= 0.5 * len(answers), kind


def is_accepted(op):
    """Whether oneDNN 3.2 has such descriptors: other offsets, and no product without terms."""
    return all(desc.nelems and not desc.offset0 for _, desc in op.tensors())


def is_printed_alike(op):
    """Whether oneDNN 3.2 prints the same: six digits, and no mark for an `any` of softmax."""
    opened = any(desc.is_any for _, desc in op.tensors())
    numbers = [getattr(op, name, 0.0) for name in ("alpha", "beta", "k", "p", "eps")]
    has_few_digits = all(float(f"{number:g}") == number for number in numbers)
    return is_accepted(op) and has_few_digits and not (opened and op.KIND.startswith("softmax"))


# -- what is not read ------------------------------------------------------------------------------

LINE = (
    "onednn_verbose,v1,primitive,exec,cpu,eltwise,jit:avx2,forward_training,"
    "data:f32::blocked:ab::f0 diff:undef::undef:::,,alg:eltwise_relu alpha:0 beta:0,2x3,0.01"
)


def test_other_lines_are_passed_over_and_executions_counted():
    log = [
        "epoch 1: loss 0.5",
        "onednn_verbose,v1,info,oneDNN v3.8.0 (commit abc)",
        "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation",
        "onednn_verbose,v1,primitive,create:dispatch,eltwise,unsupported isa,src/cpu/x.cpp:1",
        LINE.replace("exec", "create:cache_miss"),
        LINE,
        LINE.replace("2x3", "4x3"),
        "onednn_verbose,1693533460193.4,primitive,exec" + LINE.partition("exec")[2] + "\n",
        LINE.replace("exec", "create:cache_hit").replace("2x3", "8x3"),
    ]
    shapes = {problem.op.src.dims: count for problem, count in executions(log).items()}
    assert shapes == {(2, 3): 2, (4, 3): 1, (8, 3): 0}


def test_problem_texts_may_name_files_of_verbose_lines(tmp_path):
    (tmp_path / "log.txt").write_text("\n".join(["begin", LINE, LINE.replace("2x3", "4x3")]))
    (tmp_path / "batch.txt").write_text("--match=4x --from-verbose=log.txt --match= --sum 8x3")
    assert [str(p) for p in read_files(tmp_path / "batch.txt")] == [
        "--eltwise 4x3",
        "--sum 8x3",
    ]
    (tmp_path / "log.txt").write_text(LINE.replace("2x3", "2by3"))
    with pytest.raises(dnn.DescriptorError, match=r"--from-verbose.*verbose line 1: problem"):
        read_files(tmp_path / "batch.txt")


@pytest.mark.parametrize("first", ["", "--matmul ", "--eltwise --alg=abs 3 "])
def test_options_of_implementations_apply_to_problems_of_verbose_lines(tmp_path, first):
    (tmp_path / "log.txt").write_text("\n".join([LINE, LINE.replace("2x3", "4x3")]))
    (tmp_path / "batch.txt").write_text(
        f"{first}--impl=a:* --skip-impl=b,c --knobs=x:1,y:2 --from-verbose=log.txt"
    )
    found = [p for p in read_files(tmp_path / "batch.txt") if p.op.src.dims != (3,)]
    assert [(p.op.src.dims, p.impl, p.skip_impl, p.knobs) for p in found] == [
        (dims, "a:*", "b,c", knobs) for dims in ((2, 3), (4, 3)) for knobs in ("x:1", "y:2")
    ]


def test_options_before_the_first_operation_apply_to_all(tmp_path):
    (tmp_path / "log.txt").write_text(LINE)
    text = "--impl=a --eltwise 4 --reset --knobs=x:1 5 --softmax --impl= 1x6 --impl=b 1x7 --sum 8"
    (tmp_path / "batch.txt").write_text(f"{text} --from-verbose=log.txt")
    found = read_files(tmp_path / "batch.txt")
    assert [(p.op.result.dims, p.impl, p.knobs) for p in found] == [
        ((4,), "a", ""), ((5,), "a", "x:1"), ((1, 6), "", ""), ((1, 7), "b", ""), ((8,), "a", ""),
        ((2, 3), "a", ""),
    ]  # fmt: skip


def test_options_of_an_operation_do_not_apply_to_verbose_lines(tmp_path):
    (tmp_path / "log.txt").write_text(LINE)
    (tmp_path / "batch.txt").write_text("--eltwise --dt=f16 --tag=ab --from-verbose=log.txt 2x3")
    with pytest.raises(dnn.DescriptorError, match="--dt, --tag applies to shapes, not to problems"):
        read_files(tmp_path / "batch.txt")


def test_operations_that_dnncore_lacks_are_told():
    missing = [LINE.replace("eltwise,jit", f"{name},jit") for name in ("zero_pad", "brgemm")]
    lines = [LINE, *missing]
    with pytest.warns(UserWarning, match="left out 1 of zero_pad, 1 of brgemm, which dnncore does"):
        assert len(from_verbose(lines)) == 1


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("data:f32", "data:s4", "1 with eltwise: src must be of type f64, f32, .* or u8; got s4"),
        (
            ":::,,",
            ":::,attr-precomputed-reductions:src0:1:s32,",
            "1 with attributes .*does not have: attr-precomputed-reductions",
        ),
    ],
)
def test_lines_of_what_dnncore_does_not_compute_are_told_and_the_others_read(before, after, reason):
    assert LINE.count(before) == 1
    with pytest.warns(UserWarning, match=f"verbose lines: left out {reason}"):
        (problem,) = from_verbose([LINE.replace(before, after), LINE])
    assert str(problem) == "--eltwise 2x3"


@pytest.mark.parametrize(
    ("before", "after"), [(" diff:undef::undef:::", ""), ("eltwise,jit", "eltwise_v2,jit")]
)
def test_other_versions_name_kinds_otherwise_and_leave_out_absent_tensors(before, after):
    assert LINE.count(before) == 1
    assert from_verbose([LINE.replace(before, after)]) == read("--eltwise 2x3")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (",0.01", "", "expected 9 fields after exec: engine, primitive, .*; got 8"),
        ("forward_training", "sideways", "prop_kind 'sideways': expected one of forward_training"),
        ("::blocked:ab::f0", "::blocked", "memory_descriptors .*: expected NAME:TYPE:MARKS"),
        (":ab:", ":abc:", "memory_descriptors .* at 'data:f32::blocked:abc::f0': .*abc"),
        ("data:", "src:", "memory_descriptors .*: expected data next; got 'src:f32"),
        ("data:f32::blocked:ab::f0 ", "", "memory_descriptors .*: expected data next; got 'diff"),
        (":::,,", ":::,scales:src0:0:f32,", "attributes .*: expected one of attr-post-ops"),
        (":::,,", ":::,attr-post-ops:eltwise_relo,", "attributes .*relo"),
        ("eltwise_relu", "eltwise_relo", "auxiliary .*: expected one of .*tanh.*; got 'eltwise_re"),
        ("alpha:0", "gamma:0", "auxiliary .*: expected words such as .*alpha.*; got 'gamma'"),
        ("alpha:0", "alpha:zero", "auxiliary .*: expected a number; got 'zero'"),
        ("beta:0", "beta:0 offsets:1", "auxiliary .*: expected offsets of 2 tensors"),
        ("2x3", "2by3", "problem_desc '2by3': expected dims such as 2x3"),
    ],
)
def test_malformed_lines_name_the_line_the_field_and_what_was_expected(before, after, message):
    assert LINE.count(before) >= 1
    broken = LINE.replace(before, after, 1)
    with pytest.raises(dnn.DescriptorError, match=f"verbose line 3: {message}"):
        from_verbose(["", LINE, broken])


@pytest.mark.parametrize("seed", range(4))
def test_mangled_lines_end_in_problems_or_clear_errors(seed):
    rng = np.random.default_rng(seed)
    pieces = [re.split(r"([,: x+_]|[0-9]+)", line) for line in GOLDEN[1::2]]
    words = ["", "0", "-1", "9" * 20, "undef", "any", "s8", "x", ":", ",", "1e400", "f0_mask99"]
    told = 0
    for _ in range(250):
        parts = list(pieces[rng.integers(len(pieces))])
        other = pieces[rng.integers(len(pieces))]
        place = int(rng.integers(8, len(parts)))
        parts[place] = str(rng.choice([*words, other[int(rng.integers(len(other)))]]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of kinds that are now unknown
            try:
                from_verbose(["".join(parts)])
            except dnn.DescriptorError as error:
                told += str(error).startswith("verbose line 1: ")
    assert told > 100


def test_a_reorder_between_engines_has_both_names(capsys):
    others = [d.name for d in dnn.devices() if d.status == "ok" and d.kind != "cpu"]
    for name in others:
        src, cpu = dnn.Memory(dnn.MemoryDesc((4,)), dnn.engine("cpu")), dnn.engine("cpu")
        with dnn.set_verbose("profile_exec"):
            dnn.reorder(src, engine=dnn.engine(name))
            dnn.reorder(src, dnn.MemoryDesc((4,), "s32"), engine=cpu)
        assert [line.split(",")[4] for line in lines_of(capsys)] == [f"cpu2{name}", "cpu"]


def test_a_remark_is_a_line_of_dispatch_alone(capsys):
    with dnn.set_verbose("profile_exec"):
        observers.remark(dnn.engine("cpu"), "a remark")
    assert not lines_of(capsys)
    with dnn.set_verbose("dispatch"):
        observers.remark(dnn.engine("cpu"), "a remark, in two parts")
    assert capsys.readouterr().out.endswith("info,cpu,a remark; in two parts\n")


def test_without_stdout_nothing_is_written(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with dnn.set_verbose("dispatch"):
        observers.remark(dnn.engine("cpu"), "a remark")
