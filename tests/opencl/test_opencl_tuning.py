"""Tuning tables: found by device and package, shared, written so that people can read them."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.mma.launch import MmaTile
from dnncore_opencl.gemm.tiled.family import Tiled
from dnncore_opencl.gemm.tiled.launch import TiledTile
from dnncore_opencl.gemm.tuned import parameters, with_parameters
from dnncore_opencl.runtime import tuning

import dnncore as dnn

ENTRIES = {"m64 k8": {"rows": 8, "vector": 4}, "m1 k9": {"rows": 1, "vector": 2}}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stranger's package in a folder of its own, importable for the test."""
    name = f"stranger_{tmp_path.name}".replace("-", "_")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / name
    sys.modules.pop(name, None)


def engine_of(device):
    return SimpleNamespace(name="opencl:7", device=dnn.backend.Device(device))


@pytest.mark.parametrize(
    ("name", "file"),
    [("NVIDIA H200", "nvidia_h200"), ("Intel(R) Arc(TM) A770 ", "intel_r_arc_tm_a770")],
)
def test_a_device_names_its_file(name, file):
    assert tuning.slug(name) == file


def test_what_was_written_is_read(package):
    path = package / "tuning" / "some_device.json"
    tuning.write(path, "tiled", {"m1": {"rows": 9}})
    tuning.write(path, "simd", {"m1": {"vector": 16}})
    tuning.write(path, "tiled", ENTRIES)
    engine = engine_of("Some Device")
    assert tuning.table(engine, "tiled", package.name) == ENTRIES
    assert tuning.table(engine, "simd", package.name) == {"m1": {"vector": 16}}
    assert tuning.table(engine, "other", package.name) == {}
    assert '    "m1 k9": {"rows": 1, "vector": 2},\n    "m64 k8"' in path.read_text()


def test_a_table_cannot_be_changed(package):
    tuning.write(package / "tuning" / "x.json", "tiled", ENTRIES)
    found: Any = tuning.table(engine_of("x"), "tiled", package.name)
    with pytest.raises(TypeError):
        found["m64 k8"]["rows"] = 1


def test_a_device_without_a_file_is_told_of_once(package, capsys):
    engine = engine_of("Unheard-of")
    with dnn.set_verbose("dispatch"):
        assert tuning.table(engine, "tiled", package.name) == {}
        assert tuning.table(engine, "simd", package.name) == {}
    told = [line for line in capsys.readouterr().out.splitlines() if "tuning" in line]
    text = f"tuning: {package.name} has no tuning/unheard_of.json: defaults are used"
    assert told == [f"dnncore_verbose,v1,info,opencl:7,{text}"]


@pytest.mark.parametrize("text", ["{", "[]", '{"tiled": [1]}', '{"tiled": {"m1": 3}}'])
def test_a_file_without_tables_is_named(package, text):
    (package / "tuning").mkdir()
    (package / "tuning" / "y.json").write_text(text)
    with pytest.raises(dnn.PluginError, match=r"tuning/y\.json must hold tables"):
        tuning.table(engine_of("y"), "tiled", package.name)


SHIPPED = sorted((Path(tuning.__file__).parents[1] / "tuning").glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_families_can_have_what_shipped_tables_choose(path):
    families = {"mma": Mma(132), "tiled": Tiled(132)}
    tables = json.loads(path.read_text())
    assert tables
    for name, entries in tables.items():
        for key, found in entries.items():
            assert parameters(with_parameters(families[name], found)) == found, key


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"warp_rows": 48}, "warps must divide rows and columns"),
        ({"warp_columns": 48}, "warps must divide rows and columns"),
        ({"warp_rows": 16}, "rows and columns of warps must be multiples of 32"),
        ({"warp_columns": 16}, "rows and columns of warps must be multiples of 32"),
        ({"chunks": 2}, "chunks must be 4 or 8"),
        ({"chunks": 16}, "chunks must be 4 or 8"),
        ({"warp_rows": 64}, "a group must have 128 to 1024 work-items"),
        ({"columns": 256, "chunks": 4}, "work-items must copy equal numbers of chunks"),
        ({"stages": 1}, "there must be two stages at least"),
        ({"chain": 3}, "a chain must have 1, 2 or 4 steps"),
    ],
)
def test_tiles_of_tensor_cores_have_rules(values, rule):
    sizes = {"rows": 64, "columns": 64, "warp_rows": 32, "warp_columns": 32}
    assert MmaTile(**sizes)
    with pytest.raises(dnn.DescriptorError, match=rule):
        MmaTile(**sizes | values)


def test_work_items_load_whole_vectors():
    assert TiledTile(64, 64, depth=16, item_rows=4, item_columns=4)
    with pytest.raises(dnn.DescriptorError, match="work-items must load whole vectors"):
        TiledTile(64, 64, depth=8, item_rows=4, item_columns=4)


def test_a_tile_may_limit_registers():
    limited, free = MmaTile(64, 64, 32, 32, registers=128), MmaTile(64, 64, 32, 32)
    assert limited.options == ("-cl-nv-maxrregcount=128",)
    assert not free.options
    assert (limited.defines["LIMITED"], free.defines["LIMITED"]) == (1, 0)
