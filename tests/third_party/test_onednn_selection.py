"""oneDNN's backend: ranking, refusals, workspaces, opaque formats, threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from checks import Target, check
from dnncore_cpu_numba.codegen.isa import host_features
from processor import HAS_VNNI

import dnncore as dnn
from dnncore.problem import read

pytestmark = pytest.mark.peer

CONVOLUTION = "--conv --dir=FWD_B mb2ic16oc32_ih14kh3ph1"
POOLING = "mb2ic16_ih8oh4kh2sh2"


def problem(text):
    (found,) = read(text)
    return found


def described(text, **wishes):
    found = problem(text)
    return dnn.PrimitiveDesc(found.op, dnn.engine("cpu"), found.attr, **wishes)


def filled(pd):
    """Memories of all arguments with values from a fixed generator."""
    draws = np.random.default_rng(5)
    memories = {name: dnn.Memory(desc, pd.engine) for name, desc in pd.descs.items()}
    for argument, desc in pd.arguments:
        if argument.direction == "in" and desc.format_kind == "blocked":
            values = draws.standard_normal(desc.dims).astype(desc.dtype)
            desc.pack(values, memories[argument.name].buffer)
    return memories


def executed(pd, memories):
    pd.primitive().execute(pd.engine.stream(), **memories).wait()
    return memories


# -- ranking ---------------------------------------------------------------------------------------


def test_a_preferred_backend_is_first(onednn, monkeypatch):
    names = [pd.impl_name for pd in dnn.primitive_descs(problem(CONVOLUTION).op)]
    assert names.index("onednn:any") < names.index("reference:convolution")
    monkeypatch.setenv("DNNCORE_PREFER", "onednn")
    assert described(CONVOLUTION).impl_name == "onednn:any"


def test_a_plain_loop_ranks_behind_generated_code(onednn):
    """oneDNN's jit of exp loses NaN, so that only its loop is left."""
    assert not described("--eltwise --alg=exp 16x64x56").impl_name.startswith("onednn")
    assert described("--eltwise --alg=exp 16x64x56", impl="onednn:*")


def test_accept_is_quick(onednn):
    described(CONVOLUTION, impl="onednn:*")
    seconds = []
    for size in range(20, 29):
        op = problem(f"--conv mb2ic16oc32_ih{size}kh3ph1").op
        start = time.perf_counter()
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="onednn:*")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.02


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "--eltwise 2x17x3": ("algorithm", "loses NaN.*got eltwise relu"),
    "--eltwise --alg=clip --alpha=-1 --beta=1 2x17x3": ("algorithm", "loses NaN"),
    "--eltwise --dir=BWD_D --alg=tanh 2x17x3": ("algorithm", "has large errors"),
    "--binary --alg=max 2x17x3:2x17x3": ("algorithm", "loses NaN"),
    "--binary --sdt=f32:f32:s8 --alg=SELECT 2x9x3:1x9x1:2x9x3": ("algorithm", "binary_select"),
    "--reduction --alg=max 2x17x3:2x1x3": ("algorithm", "loses NaN"),
    "--pool mb1ic3_ih4kh2": ("algorithm", "loses NaN"),
    "--softmax 3x5": ("algorithm", "-infinity"),
    "--softmax --dir=BWD_D --stag=ba --dtag=ab 3x5": ("format", "if formats differ"),
    "--reorder --ddt=s8 2x17x3": ("type", "got src of f32, dst of s8"),
    "--reorder --ddt=bf16 2x17x3": ("type", "subnormal"),
    "--reorder --stag=aBc6b --dtag=abc 2x17x3": ("format", "other blocks than"),
    "--matmul --bia-dt=f32 3x0:0x4": ("shape", "without terms"),
    "--matmul --attr-post-ops=relu 3x5:5x7": ("attribute", "another relu"),
    "--matmul --attr-post-ops=max:f32 3x5:5x7": ("attribute", "another max of NaN"),
    "--matmul --attr-post-ops=prelu:3 3x5:5x7": ("attribute", "one weight per channel"),
    "--eltwise --alg=tanh --attr-post-ops=sum 3x5": ("attribute", "applies binary to eltwise"),
    "--matmul --attr-deterministic=true 3x5:5x7": ("algorithm", "no attribute deterministic"),
    "--conv --dt=bf16 mb1ic3oc4_ih4kh3": ("type", "beside NaN"),
    "--matmul --attr-dropout=0.5 3x5:5x7": ("attribute", "dropout"),
    "--matmul --dt=u8:s8:s32 --attr-scales=src:common 3x5:5x7": ("type", "saturates s32"),
    "--matmul --dt=u8:s8:u8 --attr-post-ops=linear:2:1 3x5:5x7": ("attribute", "in linear"),
    "--matmul --dt=u8:s8:u8 --attr-post-ops=sum:0.5 3x5:5x7": ("attribute", "one rounding"),
    "--conv --dt=u8:s8:u8 --attr-scales=dst:common mb1ic3oc4_ih4kh3": ("type", "another integer"),
    "--reorder --sdt=s32 --ddt=s8 --attr-zero-points=src:common 3x5": ("type", "rounds s32"),
    "--matmul --dt=f32:s8:f32 --attr-scales=wei:3:f32:2x1 3x4:4x7": ("algorithm", "no|neither"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_deviations_are_refused_with_kind_and_reason(onednn, text):
    kind, reason = REFUSED[text]
    with pytest.raises(dnn.NoImplementation) as caught:
        described(text, impl="onednn:*")
    (refusal,) = [r for r in caught.value.refusals if r.impl_name == "onednn:any"]
    assert refusal.kind == kind
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refusal.reason)


@pytest.mark.parametrize("text", ["--eltwise 4", "--eltwise --alg=clip --alpha=-1 --beta=1 4"])
def test_onednn_still_loses_nan(text):
    """Else the rows of the table are obsolete."""
    from benchmarks.contestants.onednn import Peer

    op = problem(text).op
    found = Peer().outputs(op, dnn.Attributes(), {"src": np.full(4, np.nan, np.float32)})
    assert not np.isnan(found["dst"]).any()


# -- results ---------------------------------------------------------------------------------------


def test_padding_is_zero_beside_nan(onednn):
    pd = described("--conv --dir=BWD_D mb1ic3oc16_ih4kh3ph1", impl="onednn:*")
    assert pd.diff_src_desc.has_padding
    memories = filled(pd)
    memories["diff_dst"].fill(np.nan)
    result = executed(pd, memories)["diff_src"]
    padded = np.zeros(pd.diff_src_desc.nbytes, np.uint8)
    pd.diff_src_desc.pack(np.array(result.numpy()), padded)
    assert (result.buffer == padded).all()


@pytest.mark.parametrize("text", [
    "--conv mb2ic3oc8_ih7kh3ph1", "--conv --dir=BWD_WB mb2ic16oc32_ih7kh3ph1",
    "--matmul --attr-post-ops=sum:0.5+tanh+add:f32:2 5x7:7x9",
    "--ip --dir=BWD_D mb3ic5ih2oc7", "--lrn --dir=FWD_I mb1ic8ih5iw5ls5",
    "--pool --alg=avg_np mb2ic5ih7kh3ph1",
    ("--matmul --dt=u8:s8:f32 --bia-dt=f32 --attr-scales=src:0+wei:2+dst:0 "
    "--attr-zero-points=src:0 --attr-post-ops=sum+relu 5x33:33x9"),
    "--conv --dt=s8:s8:bf16 --attr-scales=src:common+wei:per_oc mb2ic16oc32_ih7kh3ph1",
    "--conv --dt=u8:s8:u8 --dir=FWD_I --attr-post-ops=sum:1:3 mb2ic16oc32_ih7kh3ph1",
    "--ip --dt=u8:s8:bf16 --attr-scales=wei:per_oc mb3ic5ih2oc7",
    ("--reorder --sdt=s8 --ddt=bf16 --stag=abx --dtag=axb --attr-scales=src:common "
     "--attr-zero-points=src:common 3x17x5"),
    "--binary --sdt=s8:u8 --ddt=s8 --attr-scales=src0:common+src1:common 3x17:1x17",
    "--pool --dt=u8 --dir=FWD_I --alg=avg_p mb2ic5ih7kh3ph1",
    "--matmul --dt=bf16:bf16:f32 5x7:7x9",
])  # fmt: skip
def test_results_are_those_of_the_reference(onednn, text):
    found = problem(text)
    # oneDNN multiplies to and from bf16 only with AVX-512
    may_refuse = "bf16" in text and not host_features().get("avx512bw")
    may_refuse |= ":s8:" in text and not HAS_VNNI
    target = Target("onednn", "cpu", impl="onednn:*")
    check(target, found.op, found.attr, may_refuse=may_refuse)


def test_a_scratchpad_may_be_the_users(onednn):
    text = "--ip --attr-scratchpad=user mb64ic256oc128"
    pd = described(text, impl="onednn:*")
    assert pd.scratchpad_desc.nbytes == pd.scratchpad_bytes > 0
    memories = filled(pd)
    memories["scratchpad"] = dnn.Memory(pd.scratchpad_desc, pd.engine)
    other = described(text, impl="reference:*")
    theirs = {n: dnn.reorder(memories[n], d) for n, d in other.descs.items() if n != "dst"}
    theirs["dst"] = dnn.Memory(other.dst_desc)
    got, expected = executed(pd, memories)["dst"], executed(other, theirs)["dst"]
    assert dnn.compare(got.numpy(), expected.numpy()).error < 1e-5


# -- workspaces ------------------------------------------------------------------------------------


def test_max_pooling_shares_its_workspace(onednn):
    """The forward primitive of cpu_numba, the gradient of oneDNN."""
    forward = described(f"--pool {POOLING}", impl="cpu_numba:*")
    given = executed(forward, filled(forward))
    op = problem(f"--pool --dir=BWD_D {POOLING}").op
    results = []
    for impl in ("onednn:*", "reference:*"):
        pd = dnn.PrimitiveDesc(op, forward.engine, hint=forward, impl=impl)
        memories = {**filled(pd), "workspace": given["workspace"]}
        results.append(executed(pd, memories)["diff_src"].numpy())
    assert np.array_equal(*results)


def test_the_workspace_of_lrn_is_private(onednn):
    forward = described("--lrn --dir=FWD_D mb1ic8ih5iw5ls5", impl="onednn:*")
    assert forward.workspace_desc.tag.startswith("onednn:workspace:")
    op = problem("--lrn --dir=BWD_D mb1ic8ih5iw5ls5").op
    assert dnn.PrimitiveDesc(op, forward.engine, hint=forward).impl_name == "onednn:any"
    with pytest.raises(dnn.NoImplementation, match="workspace"):
        dnn.PrimitiveDesc(op, forward.engine, hint=forward, skip_impl="onednn:*")


# -- opaque formats --------------------------------------------------------------------------------


def test_opaque_weights_come_back(onednn, monkeypatch):
    """Here a layout of oneDNN counts as one that dnncore cannot express."""
    from dnncore_onednn.layouts import Layouts

    usual = Layouts._blocked

    def blocked(layouts, md, dims, data_type):
        found = usual(layouts, md, dims, data_type)
        return None if found is not None and len(found.inner_blocks) == 2 else found

    monkeypatch.setattr(Layouts, "_blocked", blocked)
    pd = described("--conv mb1ic32oc48_ih9kh3ph1", impl="onednn:*")
    assert pd.weights_desc.tag.startswith("onednn:")
    values = np.random.default_rng(3).standard_normal(pd.weights_desc.dims).astype(np.float32)
    packed = dnn.reorder(dnn.Memory.from_numpy(values), pd.weights_desc)
    assert packed.desc.format_kind == "opaque"
    assert np.array_equal(dnn.reorder(packed, pd.weights_desc.with_format(None)).numpy(), values)
    op = dnn.Reorder(src=pd.weights_desc, dst=pd.weights_desc.with_format(None))
    with pytest.raises(dnn.NoImplementation):
        dnn.PrimitiveDesc(op, pd.engine, skip_impl="onednn:*")


def test_an_opaque_layout_of_another_process_is_refused(onednn):
    other = dnn.MemoryDesc((16, 16), "f32", "onednn:1:0", nbytes=1024)
    op = dnn.Reorder(src=other, dst=dnn.MemoryDesc((16, 16)))
    with pytest.raises(dnn.NoImplementation, match="cannot express"):
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="onednn:*")


# -- threads ---------------------------------------------------------------------------------------


def test_the_callers_number_of_threads_remains(onednn):
    from dnncore_onednn.implementation import THREADS

    before = dnn.get_num_threads()
    try:
        dnn.set_num_threads(1)
        pd = described(CONVOLUTION, impl="onednn:*")
        primitive = pd.primitive()
    finally:
        dnn.set_num_threads(before)
    assert primitive.executable.count == 1
    present = THREADS.present()
    THREADS.call_with(3, primitive.bind(**filled(pd)), pd.engine.stream())
    assert THREADS.present() == present


def test_threads_share_a_primitive(onednn):
    """With a scratchpad, which each stream has."""
    pd = described("--ip mb64ic256oc128", impl="onednn:*")
    assert pd.scratchpad_bytes
    primitive, shared = pd.primitive(), filled(pd)
    expected = executed(pd, shared)["dst"].numpy().copy()
    wrong = []

    def work():
        stream = pd.engine.stream()
        own = {**shared, "dst": dnn.Memory(pd.dst_desc)}
        call = primitive.bind(**own)
        for _ in range(50):
            own["dst"].fill(np.nan)
            call(stream)
            if not np.allclose(own["dst"].numpy(), expected, rtol=1e-5, atol=1e-5):
                wrong.append(own["dst"].numpy())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


# -- workspaces of LRN, and the promise of ordinary numbers ----------------------------------------


def test_lrn_and_its_gradient_have_one_workspace(onednn):
    """Also where oneDNN's first choice is refused, so that the next one computes forward."""
    stream, wishes = dnn.engine("cpu").stream(), {"impl": "onednn:*"}
    forward = described("--lrn --dir=FWD_D mb2ic32_ih9ls5", **wishes)
    memories = filled(forward)
    assert dnn.against_reference(forward, memories, stream)["dst"].ok
    op = problem("--lrn --dir=BWD_D mb2ic32_ih9ls5").op
    backward = dnn.PrimitiveDesc(op, dnn.engine("cpu"), hint=forward, **wishes)
    given = filled(backward) | {name: memories[name] for name in ("src", "workspace")}
    assert dnn.against_reference(backward, given, stream)["diff_src"].ok


ORDINARY = """
import numpy as np, dnncore as dnn, dnncore_onednn
from dnncore.problem import read
dnn.register(dnncore_onednn)
for text in ("--eltwise 2x70x5", "--pool --alg=max mb2ic16_ih8oh4kh2sh2",
             "--conv --attr-post-ops=relu mb2ic16oc32_ih14kh3ph1", "--softmax 3x40",
             "--matmul --dt=s8:s8:u8 --wtag=abx --bia-dt=f32 --attr-post-ops=relu "
             "--attr-scales=src:0+wei:2+dst:0 --attr-zero-points=src:0+dst:0 5x33:33x9"):
    (problem,) = read(text)
    pd = dnn.PrimitiveDesc(problem.op, dnn.engine("cpu"), problem.attr, impl="onednn:*")
    memories = {name: dnn.Memory(desc, pd.engine) for name, desc in pd.descs.items()}
    draws = np.random.default_rng(2)
    for argument, desc in pd.arguments:
        if argument.direction == "in":
            values = 1 + draws.uniform(size=desc.dims) * (40 if desc.itemsize == 1 else 1)
            desc.pack(values.astype(desc.dtype), memories[argument.name].buffer)
    found = dnn.against_reference(pd, memories, pd.engine.stream())
    print(text.split()[0], all(comparison.ok for comparison in found.values()))
"""


@pytest.mark.skipif(not HAS_VNNI, reason="oneDNN saturates sums of integers without VNNI")
def test_ordinary_numbers_may_be_promised(run):
    expected = ["--eltwise True", "--pool True", "--conv True", "--softmax True", "--matmul True"]
    assert run(ORDINARY, DNNCORE_ONEDNN_FINITE="1").splitlines() == expected
    with pytest.raises(AssertionError, match="no implementation on cpu accepts"):
        run(ORDINARY, DNNCORE_ONEDNN_FINITE="0")


def test_another_value_of_the_promise_is_an_error(run):
    program = "import dnncore_onednn.deviations"
    with pytest.raises(AssertionError, match="DNNCORE_ONEDNN_FINITE must be 0 or 1; got 'yes'"):
        run(program, DNNCORE_ONEDNN_FINITE="yes")
