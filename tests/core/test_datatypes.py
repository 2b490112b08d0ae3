"""The table of data types and its ways in and out of numpy."""

import ml_dtypes
import numpy as np
import pytest

from dnncore.errors import DescriptorError
from dnncore.tensors.datatypes import DATA_TYPES, data_type, from_numpy_dtype, numpy_dtype


def test_every_type_is_here_with_its_size_in_bits():
    bits = {name: row.bits for name, row in DATA_TYPES.items()}
    assert bits == {
        "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8_e5m2": 8, "f8_e4m3": 8, "e8m0": 8,
        "f4_e2m1": 4, "s64": 64, "s32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "boolean": 8,
    }  # fmt: skip


@pytest.mark.parametrize("name", DATA_TYPES)
def test_a_name_leads_to_a_dtype_and_back(name):
    row = data_type(name)
    assert row.name == name
    assert numpy_dtype(name) is row.dtype
    assert from_numpy_dtype(row.dtype) == name
    assert row.itemsize == row.dtype.itemsize == max(row.bits // 8, 1)
    assert row.is_packed == (row.bits == 4)


@pytest.mark.parametrize(
    ("name", "highest"),
    [
        ("f16", 65504),
        ("bf16", 2.0**127 * (2 - 2**-7)),
        ("f8_e5m2", 57344),
        ("f8_e4m3", 448),
        ("f4_e2m1", 6),
        ("s8", 127),
        ("u8", 255),
        ("s4", 7),
        ("u4", 15),
    ],
)
def test_the_largest_value_is_the_one_of_the_format(name, highest):
    limits = ml_dtypes.finfo if data_type(name).is_float else ml_dtypes.iinfo
    assert float(limits(numpy_dtype(name)).max) == highest


def test_accumulation_is_at_least_as_wide_and_of_the_same_kind():
    for row in DATA_TYPES.values():
        accumulation = data_type(row.accumulation)
        assert accumulation.bits >= row.bits
        assert accumulation.is_float == row.is_float
    assert data_type("bf16").accumulation == "f32"
    assert data_type("u8").accumulation == "s32"


@pytest.mark.parametrize(("count", "nbytes"), [(0, 0), (1, 1), (5, 3), (6, 3)])
def test_two_4_bit_elements_share_a_byte(count, nbytes):
    assert data_type("s4").nbytes(count) == nbytes
    assert data_type("f32").nbytes(count) == 4 * count


def test_numpy_types_may_be_given_in_any_of_numpys_ways():
    assert from_numpy_dtype(np.float32) == "f32"
    assert from_numpy_dtype("int8") == "s8"
    assert from_numpy_dtype(np.longlong) == "s64"
    assert from_numpy_dtype(ml_dtypes.bfloat16) == "bf16"


@pytest.mark.parametrize("dtype", [np.complex64, np.int16, ">f4", "no such dtype", "U3"])
def test_other_numpy_types_are_refused(dtype):
    with pytest.raises(DescriptorError, match="convert to one of float64, float32"):
        from_numpy_dtype(dtype)


@pytest.mark.parametrize("name", ["float32", "F32", "", None, np.dtype("f4")])
def test_other_names_are_refused_with_the_valid_ones(name):
    with pytest.raises(DescriptorError, match="use one of f64, f32, f16, bf16"):
        data_type(name)
