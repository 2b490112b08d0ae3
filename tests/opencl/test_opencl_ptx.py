"""Instructions that NVIDIA's compiler refuses: in PTX, and what runs where they cannot be built."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.gemm.mma.family import HALF_PACE, TILES, Mma
from dnncore_opencl.gemm.mma.launch import INSTEAD, MmaTile
from dnncore_opencl.matmul import MatMulImplementation
from dnncore_opencl.runtime.launch import Launch, Source
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.ptx import HIDDEN, uncovered
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema
from opencl_engine import DEVICES

import dnncore as dnn
from dnncore.backend import BuildError, Refused

PTX = f"""//
.version 8.8
.target sm_90, texmode_independent
.address_size 64
  {HIDDEN} wgmma.fence.sync.aligned;
// another comment; .target sm_80
"""
WIDE = MmaTile(128, 128, 64, 128, wide=True)


def of_halves(**fields):
    square = dnn.MemoryDesc((512, 512), "f16")
    op = dnn.MatMul(src=square, weights=square, dst=square)
    (gemm,) = MatMulImplementation(Mma).gemms(op, dnn.Attributes(**fields))
    return gemm


def of_floats():
    square = dnn.MemoryDesc((512, 512))
    (gemm,) = MatMulImplementation(Mma).gemms(
        dnn.MatMul(src=square, weights=square, dst=square), dnn.Attributes()
    )
    return gemm


# -- PTX -------------------------------------------------------------------------------------------


def test_hidden_instructions_come_out_for_their_target():
    made = uncovered(PTX.encode() + b"\0", "sm_90a").decode()
    assert ".target sm_90a, texmode_independent\n" in made
    assert "\n   wgmma.fence.sync.aligned;\n" in made
    assert "// another comment; .target sm_80" in made
    assert made.count("//") == 2


def test_a_target_that_is_there_stays():
    assert b".target sm_90a," in uncovered(PTX.replace("sm_90", "sm_90a").encode(), "sm_90a")


@pytest.mark.parametrize(
    ("binary", "reason"),
    [
        (b"\x7fELF\xff\xfe", "no PTX"),
        (PTX.replace("sm_90", "sm_100").encode(), "got sm_100"),
        (PTX.replace("sm_90", "sm_80").encode(), "got sm_80"),
        (b"{}", "got none"),
        (PTX.replace(HIDDEN, "//").encode(), "no comments //@@"),
    ],
)
def test_what_else_a_compiler_may_give_is_refused(binary, reason):
    with pytest.raises(BuildError, match=reason):
        uncovered(binary, "sm_90a")


# -- launches --------------------------------------------------------------------------------------

SCHEMA = Schema(y=Buffer("int"), count=INT)
KERNEL = "__kernel void digits($parameters) { for (int i = 0; i < count; i++) y[i] = {value}; }"


class Text(Source):
    """A source whose text is given."""

    @property
    def text(self):
        return self.defines["text"].replace("$parameters", self.parameters.text)


def launch_of(text, instead=None):
    source = Text("digits", SCHEMA, {"text": text})
    return Launch(source, {"y": Arg(0), "count": 4}, (1,), (1,), instead=instead)


@pytest.mark.skipif(not DEVICES, reason="no OpenCL device")
def test_a_launch_that_cannot_be_built_has_another_instead():
    engine = dnn.engine("opencl")
    good = launch_of(KERNEL.replace("{value}", "i"))
    broken = launch_of("__kernel void digits(nonsense) {", good)
    program = LaunchProgram(engine, [launch_of("__kernel oh", broken), good])
    assert program.launches == (good, good)
    memory = dnn.Memory.from_numpy(np.full(4, 7, np.int32), dnn.MemoryDesc((4,), "s32"), engine)
    stream = engine.stream()
    program.bind([memory], None)(stream)
    stream.wait()
    np.testing.assert_array_equal(memory.numpy(), np.arange(4))


@pytest.mark.skipif(not DEVICES, reason="no OpenCL device")
def test_without_another_one_it_is_an_error():
    broken = launch_of("__kernel void digits(nonsense) {")
    with pytest.raises(BuildError, match="nonsense"):
        LaunchProgram(dnn.engine("opencl"), [launch_of("__kernel oh", broken)])


# -- wide tiles ------------------------------------------------------------------------------------


def test_wide_tiles_hide_their_instructions_and_have_other_tiles_instead():
    (launch,) = Mma(132, (WIDE,)).plan(of_halves()).launches
    assert launch.source.target == "sm_90a"
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in launch.source.text
    hidden = [line for line in launch.source.text.splitlines() if "wgmma" in line]
    assert all(HIDDEN in line.partition("wgmma")[0] for line in hidden if "__asm__" in line)
    other = launch.instead
    assert other is not None
    assert other.source.target == ""
    assert "wgmma" not in other.source.text
    assert (other.source.defines["ROWS"], other.source.defines["WIDE"]) == (INSTEAD.rows, 0)
    assert launch.args[:3] == other.args[:3]


def test_parts_of_k_are_those_of_the_other_tile_too():
    gemm = of_halves()
    first, reduction = Mma(132, (WIDE,), parts=2).plan(gemm).launches
    assert reduction.kernel == "gemm_reduce"
    place = [*first.source.parameters.types].index("part")
    assert first.args[place] == first.instead.args[place]


@pytest.mark.parametrize(
    ("capability", "has"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), False)]
)
def test_wide_tiles_belong_to_one_capability(capability, has):
    limits = {"compute_capability": capability, "local_memory": 227 << 10}
    engine = SimpleNamespace(
        native=SimpleNamespace(device=SimpleNamespace(max_compute_units=132)),
        device=SimpleNamespace(limits=limits),
    )
    assert any(tile.wide for tile in Mma.of(engine).tiles) == has


def test_only_halves_have_wide_tiles():
    assert any(tile.wide for tile in HALF_PACE.speeds)
    for family in (Mma(132), Mma(132, (WIDE, INSTEAD))):
        launch, *_ = family.plan(of_floats()).launches
        assert launch.source.defines["WIDE"] == 0
    refused = Mma(132, (WIDE,)).refusal_of(of_floats())
    assert isinstance(refused, Refused)
    assert refused.kind == "attribute"
    assert Mma(132, (WIDE,)).refusal_of(of_halves()) is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"warp_rows": 32}, "multiples of 64"),
        ({"warp_columns": 32}, "multiples of 64"),
        ({"chunks": 4}, "chunks"),
        ({"rows": 256, "warp_rows": 256, "columns": 256, "warp_columns": 256}, "128 sums"),
        ({"rows": 192, "columns": 192, "warp_columns": 64}, "powers of two"),
        ({"stages": 1}, "two stages"),
    ],
)
def test_rules_of_wide_tiles(fields, rule):
    with pytest.raises(dnn.DescriptorError, match=rule):
        replace(WIDE, **fields)


def test_every_tile_has_room():
    assert max(tile.local_bytes for tile in TILES) < 227 << 10
