"""Conversions in registers: all values of small types, on each instruction set of this machine."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen import type_conversion
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import AVAILABLE, Isa
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.vector_ir import F32, I64

SMALL = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
PACKED = {"s4": (-8, 7), "u4": (0, 15)}  # each in a byte of its own
NUMBERS = {"f32": np.dtype(np.float32), "u8": np.dtype(np.uint8), "s8": np.dtype(np.int8),
           "s32": np.dtype(np.int32), "s4": np.dtype(np.int8), "u4": np.dtype(np.uint8),
           **SMALL}  # fmt: skip
LANES = 16


@dataclass(frozen=True)
class Conversion(NativeKernel):
    """Converts `count` elements, vector by vector or one by one, by way of float32."""

    ARGUMENTS = Record("conversion", ("source target", "address"), ("count", "count"))

    isa: Isa
    source: str
    target: str
    lanes: int = LANES

    def _emit(self, builder, args):
        def turn(index, _):
            places = [
                vir.at(builder, vir.address(builder, args[name]), builder.mul(index, I64(size)))
                for name, size in (("source", source), ("target", target))
            ]
            if self.lanes == 1:
                stored = builder.load(places[0], typ=type_conversion.STORED[self.source])
                value = type_conversion.as_f32(builder, stored, self.source, self.isa)
                assert value.type == F32
                value = type_conversion.from_f32(builder, value, self.target, self.isa)
                builder.store(value, places[1])
            else:
                value = type_conversion.load_as_f32(
                    builder, places[0], self.source, self.lanes, isa=self.isa
                )
                type_conversion.store_from_f32(builder, value, places[1], self.target, isa=self.isa)
            return []

        source, target = (
            self.lanes * NUMBERS[name].itemsize for name in (self.source, self.target)
        )
        vir.loop(builder, args["count"], [], turn)


def convert(isa, source, target, values, lanes=LANES):
    """An array of one type as one of another, its elements converted in registers."""
    assert values.size % lanes == 0
    kernel = Conversion(isa, source, target, lanes)
    found = np.zeros(values.size, NUMBERS[target])
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(kernel.address)(
        values.ctypes.data, found.ctypes.data, values.size // lanes
    )
    return found


def assert_equal(found, wanted):
    """The same bits, but any NaN for NaN."""
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    bits = np.dtype(f"u{found.itemsize}")
    np.testing.assert_array_equal(found.view(bits)[~nan], wanted.view(bits)[~nan])


def all_values(name):
    """Each value of a type."""
    bits = np.dtype(f"u{SMALL[name].itemsize}")
    return np.arange(1 << 8 * bits.itemsize).astype(bits).view(SMALL[name])


def numbers_around_midpoints(name):
    """Float32 between and beside neighbouring values of a type, and its values."""
    values = all_values(name)
    magnitudes = values[: values.size // 2]
    finite = magnitudes[np.isfinite(magnitudes.astype(np.float32))].astype(np.float64)
    beyond = 2 * finite[-1] - finite[-2]
    middles = ((finite + np.append(finite[1:], beyond)) / 2).astype(np.float32)
    positive = np.concatenate([
        finite.astype(np.float32), middles, np.nextafter(middles, np.float32(0)),
        np.nextafter(middles, np.float32(np.inf)), np.float32([1e-45, 1e-38, 3e38, np.inf, np.nan]),
        np.array([0x7F800001, 0x7FBFFFFF, 0x7FC00001, 0x7FFFFFFF], np.uint32).view(np.float32),
    ])  # fmt: skip
    both = np.concatenate([positive, -positive])
    return np.resize(both, -(-both.size // LANES) * LANES)


@pytest.mark.parametrize("lanes", [LANES, 4, 1])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("isa", AVAILABLE, ids=lambda isa: isa.name)
def test_all_values_are_read_exactly(isa, name, lanes):
    values = all_values(name)
    assert_equal(convert(isa, name, "f32", values, lanes), values.astype(np.float32))


@pytest.mark.parametrize("lanes", [LANES, 4, 1])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("isa", AVAILABLE, ids=lambda isa: isa.name)
def test_numbers_are_rounded_half_to_even(isa, name, lanes):
    values = numbers_around_midpoints(name)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(SMALL[name])
    assert_equal(convert(isa, "f32", name, values, lanes), wanted)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("isa", AVAILABLE, ids=lambda isa: isa.name)
def test_all_values_survive(isa, name):
    values = all_values(name)
    assert_equal(convert(isa, name, name, values), values)


@pytest.mark.parametrize("name", ["u8", "s8", "s32", *PACKED])
@pytest.mark.parametrize("isa", AVAILABLE, ids=lambda isa: isa.name)
def test_integers_are_rounded_and_saturate(isa, name):
    whole = np.iinfo(NUMBERS[name])
    low, high = PACKED.get(name, (whole.min, whole.max))
    edges = np.float32([low, high, 2.0**31, 1e30, np.inf, 0.25, np.nan])
    steps = np.arange(-600, 600, dtype=np.float32) / np.float32(2)
    values = np.concatenate([edges, -edges, steps])
    values = np.resize(values, -(-values.size // LANES) * LANES).astype(np.float32)
    rounded = np.rint(np.nan_to_num(values.astype(np.float64), posinf=1e30, neginf=-1e30))
    wanted = np.clip(rounded, low, high).astype(NUMBERS[name])
    np.testing.assert_array_equal(convert(isa, "f32", name, values), wanted)
