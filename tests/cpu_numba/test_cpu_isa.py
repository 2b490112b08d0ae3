"""The CPU backend's instruction sets: chosen by the processor and a cap, and never exceeded."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("numba")

import llvmlite.binding as llvm
from dnncore_cpu_numba.codegen import isa
from dnncore_cpu_numba.codegen.isa import (
    AVAILABLE,
    AVX2,
    AVX2_VNNI,
    AVX512_CORE,
    AVX512_CORE_AMX,
    AVX512_CORE_BF16,
    AVX512_CORE_VNNI,
    BEST,
    DOT_ISAS,
    ISAS,
    SIMD128,
    SSE41,
)
from dnncore_cpu_numba.gemm.microkernel import Microkernel

import dnncore as dnn
from dnncore.problem import read

# Registers and encodings that begin with each instruction set.
MARKS = {
    "avx512_core": r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])",
    "avx2": r"%ymm|^\s+v[a-z]\w+\s",
    "sse41": r"^\s+(?:round[ps]s|blendv?ps|ptest|pmulld|pm[ai][xn][su][bdw]|insertps|pmov[sz]x\w+)",
    "simd128": r"^\s+mulps",
}
# One problem for each generator of code: matrices, chains, windows, sums, conversions, tiles.
PROBLEMS = """
--conv --dir=FWD_B --attr-post-ops=gelu_erf+relu ic5oc19_ih7kh3ph1
--eltwise --alg=round 9x37
--softmax --axis=1 5x37
--pool --alg=avg_np --tag=axb ic19ih9kh3
--reorder --sdt=s8 --ddt=f32 9x37
--reorder --stag=ab --dtag=ba 40x37
"""
REPORT = """
import sys
import llvmlite.binding as llvm
import dnncore as dnn
from dnncore import problem
from dnncore_cpu_numba.codegen import isa
from dnncore_cpu_numba.codegen import native

emit = native._emit

def watched(symbol, text, isa):
    print(native.machine(isa).emit_assembly(llvm.parse_assembly(text)), file=assembly)
    return emit(symbol, text, isa)

native._emit = watched
with open(sys.argv[1], "w") as assembly:
    for p in problem.read(sys.argv[2]):
        pd = dnn.PrimitiveDesc(p.op, dnn.engine("cpu"), p.attr, impl="cpu_numba:*")
        while pd is not None:
            pd.primitive()
            pd = pd.next()
print(isa.BEST.name)
"""


def run_python(code, *args, **environment):
    """Run code in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- the cap ---------------------------------------------------------------------------------------


@pytest.mark.skipif(SSE41 not in AVAILABLE, reason="the marks are those of x86 processors")
@pytest.mark.parametrize("cap", AVAILABLE[1:], ids=lambda cap: cap.name)
def test_a_capped_process_makes_no_code_beyond_the_cap(cap, tmp_path):
    assembly = tmp_path / "assembly.s"
    lesser = ",".join(f"*:{isa.name}" for isa in AVAILABLE if isa is not cap)
    best = run_python(
        REPORT, str(assembly), PROBLEMS, DNNCORE_MAX_CPU_ISA=cap.name, DNNCORE_SKIP_IMPL=lesser,
        DNNCORE_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    assert best == cap.name
    text = assembly.read_text()
    assert len(re.findall(r"^dnncore_\w+:", text, re.M)) > 20
    used = {name for name, mark in MARKS.items() if re.search(mark, text, re.M)}
    assert used.isdisjoint(i.name for i in ISAS[: ISAS.index(cap)])
    assert cap.name in used  # that of a lesser set would prove nothing


@pytest.mark.parametrize("cap", [*DOT_ISAS, *ISAS], ids=lambda cap: cap.name)
@pytest.mark.usefixtures("fresh_cap")
def test_a_cap_allows_sets_without_other_features(cap, monkeypatch):
    monkeypatch.setenv("DNNCORE_MAX_CPU_ISA", cap.name)
    beyond = {one.name for one in (*DOT_ISAS, *ISAS) if not one.x86 <= cap.x86}
    copies = [replace(one) for one in (*DOT_ISAS, *ISAS)]  # which have not been asked before
    refused = {one.name for one in copies if "allows" in one.obstacle}
    assert refused == beyond
    assert cap.name not in beyond


def test_what_is_beyond_the_cap_refuses_and_says_why():
    code = """
import dnncore as dnn
x = dnn.MemoryDesc((8, 8))
print(dnn.PrimitiveDesc(dnn.MatMul(src=x, weights=x, dst=x)).explain())
"""
    lines = run_python(code, DNNCORE_MAX_CPU_ISA="sse41").splitlines()
    assert lines[1].startswith("-> 1. cpu_numba:brgemm:s")
    for beyond in ("avx512_core", "avx2"):
        assert any(
            line.endswith(
                f"cpu_numba:brgemm:{beyond}: device: DNNCORE_MAX_CPU_ISA=sse41 allows sse41 and"
                " less"
            )
            for line in lines
        )


def test_an_unknown_cap_makes_the_backend_unavailable_and_says_so():
    code = """
import warnings
import dnncore as dnn
x = dnn.MemoryDesc((8, 8))
with warnings.catch_warnings(record=True) as caught:
    print(dnn.PrimitiveDesc(dnn.MatMul(src=x, weights=x, dst=x)).impl_name)
print(caught[0].message)
print({b.name: b for b in dnn.backends()}["cpu_numba"].status)
"""
    name, warning, *_, status = run_python(code, DNNCORE_MAX_CPU_ISA="avx3").splitlines()
    assert name == "reference:matmul"
    assert status == "failed"
    expected = (
        "DNNCORE_MAX_CPU_ISA must be one of avx512_core_amx, avx512_core_bf16, avx512_core_vnni,"
        " avx2_vnni, avx512_core, avx2, sse41, simd128, default, or oneDNN's word for another"
        " instruction set; got 'avx3'; unset it to use what the processor has"
    )
    assert expected in warning


@pytest.fixture
def fresh_cap():
    """The cap as if it had not been read, before and after a test."""
    isa.highest_allowed.cache_clear()
    yield
    isa.highest_allowed.cache_clear()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("", AVX512_CORE_AMX), ("DEFAULT", AVX512_CORE_AMX), ("AVX10_2_512", AVX512_CORE_AMX),
        ("AVX512_CORE_FP16", AVX512_CORE_BF16), ("avx512_core_vnni", AVX512_CORE_VNNI),
        ("AVX512_CORE", AVX512_CORE), ("AVX2_VNNI_2", AVX2_VNNI), ("AVX2", AVX2), ("AVX", SSE41),
        ("SSE41", SSE41), ("simd128", SIMD128),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("fresh_cap")
def test_onednns_words_are_understood(word, expected, monkeypatch):
    monkeypatch.setenv("DNNCORE_MAX_CPU_ISA", word)
    assert isa.highest_allowed() is expected


# -- the processor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["avx512vl", "fma", "sse4.1"])
@pytest.mark.usefixtures("fresh_cap")
def test_a_set_that_the_processor_lacks_is_refused(lacking, monkeypatch):
    monkeypatch.delenv("DNNCORE_MAX_CPU_ISA", raising=False)
    host = dict.fromkeys(AVX512_CORE.x86, True) | {lacking: False}
    monkeypatch.setattr(isa, "host_features", lambda: host)
    for one in (replace(one) for one in ISAS):  # copies, which have not been asked before
        lacks = f"{one.name} needs {lacking}, which the processor lacks"
        obstacle = lacks if lacking in one.x86 else ""
        assert one.obstacle == obstacle


@pytest.mark.usefixtures("fresh_cap")
def test_another_processor_has_plain_vectors_and_all_its_own_features(monkeypatch):
    monkeypatch.delenv("DNNCORE_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(isa, "host_features", lambda: {"neon": True, "sve": False})
    copies = [replace(one) for one in ISAS]
    assert [one.name for one in copies if not one.obstacle] == ["simd128"]
    assert copies[-1].features == "+neon,-sve"


def test_plain_vectors_compile_for_another_processor():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM knows no AArch64")
    module = llvm.parse_assembly(Microkernel(SIMD128, 9, 2, edge="masked").llvm_text("kernel"))
    module.triple = "aarch64-unknown-linux-gnu"
    assembly = target.create_target_machine(opt=3).emit_assembly(module)
    assert len(re.findall(r"fmla\s+v\d+\.4s", assembly)) >= 9 * 2


LARGE = {  # of one channel, around 2^29 and 2^31 elements: more bytes than 32 bits count
    "1d": ("iw16777216",),  # the limit of one dim
    "2d": ("ih16384", "ih23170", "ih23171", "ih23300", "ih32768", "ih46341"),
    "3d": ("id812", "id813", "id1291"),
}
MATRIX = "*:pointwise:*,*:brgemm:*"
TAGS = ("--stag=abx --dtag=abx", "--stag=axb --dtag=axb", "--stag=any --dtag=any")


@pytest.mark.skipif(BEST is not AVX512_CORE, reason="not the best of the lesser sets is meant")
@pytest.mark.parametrize("size", [size for sizes in LARGE.values() for size in sizes])
@pytest.mark.parametrize("direction", ["FWD_I", "BWD_D"])
def test_large_images_of_few_channels_are_for_the_best_set(cpu, direction, size):
    """Whatever the formats are, and whether weights are copied; nothing is executed."""
    kernel = f"k{size[1]}1"
    channels = ((1, 1), (1, 3), (2, 4), (4, 2), (3, 3), (4, 4))
    for tags, weights, (ic, oc) in itertools.product(TAGS, ("any", "abx"), channels):
        text = f"--conv --dir={direction} {tags} --wtag={weights} mb1ic{ic}oc{oc}{size}{kernel}"
        (problem,) = read(text)
        best = next(iter(dnn.primitive_descs(problem.op, cpu, impl=MATRIX)))
        assert best.impl_name.endswith(":avx512_core"), text


@pytest.mark.skipif(BEST is not AVX512_CORE, reason="compares avx2 with it")
def test_avx2_is_for_narrow_tiles_of_many_products(cpu):
    """Where the instruction sets' vectors are filled alike: the quicker one, as measured."""

    def best(channels):
        (problem,) = read(
            f"--conv --dir=FWD_I --stag=axb --wtag=abx --dtag=axb {channels}ih56kh3ph1"
        )
        return next(iter(dnn.primitive_descs(problem.op, cpu, impl=MATRIX))).impl_name

    assert best("ic1oc4").endswith(":avx512_core")
    assert best("ic32oc4").endswith(":avx2")
    assert best("ic16oc8").endswith(":avx2")
