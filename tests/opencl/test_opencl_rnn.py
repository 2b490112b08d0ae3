"""Recurrent cells as they are planned for GPUs, on the devices at hand; refusals; launches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import Target
from conftest import TARGETS
from dnncore_opencl.rnn.tiles import Tile, persistent_tile

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import run_case

cl = pytest.importorskip("pyopencl")
OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
IMPL = "opencl:steps"
GRU_OF_U8 = "--dir=FWD_I --alg=VANILLA_GRU --sdt=u8 --wdt=s8 --ddt=u8"


@pytest.fixture(params=OPENCL, ids=str)
def target(request) -> Target:
    """Each device."""
    from dnncore_opencl.devices.pocl import miscompiles_barriers

    if miscompiles_barriers(request.param.engine.native.device):
        pytest.skip("this driver miscompiles barriers in loops")
    return request.param


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "text",
    [
        "--alg=VANILLA_LSTM l1t2mb1_sic20slc20dhc20dic20",  # one row, strips of k
        "--alg=VANILLA_LSTM --with-projection=true l1t2mb3_sic8slc8dhc12dic8",
        "--alg=VANILLA_GRU l1t2mb18_sic5slc5dhc5dic5",  # three tiles of eight rows
        "--alg=LBR_GRU l1t2mb35_sic12slc12dhc12dic12",  # three tiles of sixteen rows
    ],
)
def test_work_items_share_products(target, planned_for_gpus, text):
    for direction in ("FWD_D", "BWD_DW"):
        (problem,) = read(f"--rnn --dir={direction} {text}")
        result = run_case(problem, target.engine, impl=IMPL, checks=["integers", "random"])
        assert result.executed
        assert not result.failures


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("direction", "text", "knobs"),
    [
        ("BWD_DW", "--alg=VANILLA_LSTM l1t2mb5_sic20slc20dhc20dic20", "each:2+slices:8"),
        ("BWD_DW", "--alg=VANILLA_GRU l1t2mb3_slc35", "each:4+rows:2+slices:8"),
        ("FWD_I", "--alg=VANILLA_LSTM l1t2mb3_slc19", "each:2+rows:1+slices:8"),
        ("FWD_D", "--alg=LBR_GRU l1t2mb2_slc33", "each:4+rows:4+slices:16"),
    ],
)
def test_knobs_of_tiles(target, planned_for_gpus, direction, text, knobs):
    (problem,) = read(f"--rnn --dir={direction} {text}")
    asked = replace(problem, knobs=knobs)
    result = run_case(asked, target.engine, impl=IMPL, checks=["integers", "random"])
    assert result.executed
    assert not result.failures


@pytest.mark.in_turn
@pytest.mark.parametrize("direction", ["FWD_D", "FWD_I", "BWD_DW"])
@pytest.mark.parametrize(
    "text",
    [
        "--alg=VANILLA_LSTM l1t6mb1_sic20slc20dhc20dic20",
        "--alg=VANILLA_LSTM --with-peephole=true l2t7mb6_sic12slc12dhc12dic12",
        "--alg=LBR_AUGRU l1t7mb5_slc9dhc9",  # k one by one
        "--alg=VANILLA_RNN --activation=TANH --direction=sum l1t6mb9_slc8dhc8",
        "--alg=LBR_GRU --direction=right2left l1t5mb2_slc8dhc8",
    ],
)
def test_one_launch_for_all_steps(target, planned_for_gpus, direction, text):
    """With one work-group, which waits for no other. So any device can run it."""
    (problem,) = read(f"--rnn --dir={direction} {text}")
    for wish, count in (("no", 0), ("yes", problem.op.sizes.layers * problem.op.sizes.directions)):
        asked = replace(problem, knobs=f"persistent:{wish}")
        result = run_case(asked, target.engine, impl=IMPL, checks=["integers", "random"])
        assert result.executed
        assert not result.failures
        pd = dnn.PrimitiveDesc(problem.op, target.engine, impl=IMPL, knobs={"persistent": wish})
        launches = pd.primitive().executable.launches
        assert sum("PERSISTENT" in launch.source.defines for launch in launches) == count


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "text",
    [
        "--sdt=u8:u8:f32 --ddt=u8:u8:f32 --attr-rnn-data-qparams=50:100 l1t6mb3_slc12dhc12",
        "--sdt=s8:f32:f32 --ddt=f32:f32:f32 --attr-rnn-data-qparams=60:-3.6 l2t5mb9_slc8dhc8",
    ],
)
def test_persistent_kernels_of_integers(target, planned_for_gpus, text):
    options = "--dir=FWD_I --alg=VANILLA_LSTM --wdt=s8 --attr-rnn-weights-qparams=0:90"
    (problem,) = read(f"--knobs=persistent:yes --rnn {options} {text}")
    result = run_case(problem, target.engine, impl=IMPL, checks=["integers", "random", "tiny"])
    assert result.executed
    assert not result.failures


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_DW"])
def test_persistent_kernels_without_images(planned_for_gpus, direction):
    (problem,) = read(f"--knobs=persistent:yes --rnn --dir={direction} l1t9mb0_slc40dhc40")
    result = run_case(problem, OPENCL[0].engine, impl=IMPL, checks=["random"])
    assert not result.failures


def test_tiles_of_persistent_kernels_fit():
    """Work-groups fit on the compute units, weights in registers, bands hold all images."""
    limits = {"max_work_group": 1024, "local_memory": 49152, "compute_capability": (9, 0)}
    for units, gates, width, batch in itertools.product(
        (1, 20, 132), (1, 3, 4), (1, 7, 64, 200, 512, 650, 1024), (0, 1, 2, 5, 16, 100, 999)
    ):
        device = SimpleNamespace(limits={**limits, "compute_units": units})
        engine = SimpleNamespace(is_cpu=False, device=device)
        for depth in (width, 4 * width):
            strip = 1 if depth % 4 else 4
            wish = {"persistent": "yes"}
            tile = persistent_tile(engine, gates, batch, width, depth, strip, wish)
            if isinstance(tile, str):
                continue
            assert tile.groups(width) * tile.bands <= units
            assert tile.turns * tile.slices * strip >= depth
            assert tile.turns * strip * gates * tile.each <= 128
            assert tile.units * tile.slices <= 256
            assert tile.slices % tile.parts(gates) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("l1t3mb1_slc8", "needs at least 4 steps; got 3"),
        ("--alg=VANILLA_GRU l1t9mb1_slc8", "each step of this cell has two products"),
        ("--alg=VANILLA_LSTM --with-projection=true l1t9mb1_slc8", "has two products"),
        ("l1t9mb1_slc300", "a work-item would keep .* it has registers for 128"),
    ],
)
def test_refused_persistent_kernels(planned_for_gpus, text, reason):
    (problem,) = read(f"--knobs=persistent:yes --rnn {text}")
    with pytest.raises(dnn.NoImplementation, match=reason):
        dnn.PrimitiveDesc(problem.op, OPENCL[0].engine, **problem.wishes | {"impl": IMPL})


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"slices": 64, "rows": 1}, "its tile needs 512 work-items; the device has 256"),
        (
            {"each": 2, "rows": 8},
            "its tile needs 32768 bytes of local memory; the device has 16384",
        ),
    ],
)
def test_tiles_that_exceed_a_device_are_refused(knobs, reason):
    limits = {"max_work_group": 256, "local_memory": 16384}
    engine = SimpleNamespace(is_cpu=False, device=SimpleNamespace(limits=limits))
    assert Tile.of(engine, 4, 64, {}).refusal(engine, 4) is not None
    found = Tile.of(engine, 4, 64, knobs).refusal(engine, 4)
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--attr-post-ops=relu l1t1mb1_slc1", "takes no post-ops"),
        ("l1t1mb1_slc0dhc1", "has no cells without channels"),
        (f"{GRU_OF_U8} --attr-rnn-weights-qparams=0:1e-37 l1t1mb1_slc1", "got up to 2.55e\\+39"),
        (f"{GRU_OF_U8} --attr-rnn-data-qparams=1e-37:0 l1t1mb1_slc1", "got up to 2.55e\\+39"),
    ],
)
def test_refusals(text, reason):
    (problem,) = read(f"--rnn {text}")
    with pytest.raises(dnn.NoImplementation, match=reason):
        dnn.PrimitiveDesc(problem.op, OPENCL[0].engine, problem.attr, impl=IMPL)


def test_a_step_that_is_absent_costs_no_launch():
    """The launches are products, a step each, and the slope of the first state."""
    (problem,) = read("--rnn --dir=BWD_DW --alg=LBR_GRU l1t3mb2_slc4")
    engine = OPENCL[0].engine

    def kernels(op) -> list[str]:
        pd = dnn.PrimitiveDesc(op, engine, impl=IMPL)
        return [one.kernel for one in pd.primitive().executable.launches]

    assert kernels(problem.op).count("rnn_backward") == 4
    without = replace(problem.op, diff_src_iter=None, diff_src_layer=None, diff_bias=None)
    assert kernels(without).count("rnn_backward") == 3
    assert set(kernels(without)) == {"rnn_backward", "gemm_cpu"}
    assert np.isfinite(dnn.PrimitiveDesc(without, engine, impl=IMPL).seconds)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "text",
    [
        "--alg=VANILLA_LSTM --sdt=u8:u8:f32 --ddt=u8:u8:f32 l1t2mb5_slc8",
        "--alg=VANILLA_LSTM --with-projection=true --sdt=s8:f32:f32 --ddt=f32 l1t2mb3_dhc12dic8",
        "--alg=VANILLA_GRU --without=src_iter --sdt=u8 --ddt=u8 l1t2mb2_slc5",
        "--alg=VANILLA_GRU --sdt=u8:f32 --ddt=u8:f32 l1t0mb2_slc5",
    ],
)
def test_states_are_rounded_to_integers(target, planned_for_gpus, text):
    """The shift is no integer, so that an absent state is no zero."""
    numbers = "--attr-rnn-data-qparams=90:3.5 --attr-rnn-weights-qparams=0:2000"
    (problem,) = read(f"--rnn --dir=FWD_I --wdt=s8 {numbers} {text}")
    result = run_case(problem, target.engine, impl=IMPL, checks=["integers", "random"])
    assert result.executed
    assert not result.failures


def test_scales_that_cannot_be_allocated(monkeypatch):
    def failing(*_, **__):
        raise cl.MemoryError(cl._cl._ErrorRecord("clCreateBuffer", -4, ""))

    (problem,) = read(f"--rnn {GRU_OF_U8} --attr-rnn-weights-qparams=24:2x3 l1t1mb1_dhc5")
    pd = dnn.PrimitiveDesc(problem.op, OPENCL[0].engine, problem.attr, impl=IMPL)
    monkeypatch.setattr(cl, "Buffer", failing)
    with pytest.raises(dnn.ExecutionError, match=r"60 bytes: MEM_OBJECT_ALLOCATION_FAILURE"):
        pd.primitive()
