"""OpenCL drivers that list no device."""

import os
import subprocess
import sys
import types

import pytest
from dnncore_opencl.devices import discovery

import dnncore as dnn

cl = pytest.importorskip("pyopencl")

OPEN = """
import dnncore as dnn
try:
    dnn.engine("opencl")
except dnn.EngineUnavailable as error:
    print(error)
print([row.reason for row in dnn.devices() if row.name == "opencl"])
"""


@pytest.mark.parametrize(
    ("variable", "others"),
    [
        ("HOME", ("POCL_CACHE_DIR", "XDG_CACHE_HOME")),
        ("XDG_CACHE_HOME", ("POCL_CACHE_DIR",)),
        ("POCL_CACHE_DIR", ()),
    ],
)
def test_pocl_without_a_folder_for_its_code_is_reported_with_the_reason(tmp_path, variable, others):
    if not any("PoCL" in platform.version for platform in cl.get_platforms()):
        pytest.skip("PoCL is not installed")
    (tmp_path / "vendors").mkdir()
    (tmp_path / "file").write_text("no folder")
    unusable = str(tmp_path / "file" / "x")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment["OCL_ICD_VENDORS"] = str(tmp_path / "vendors")  # PoCL needs no entry there
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        env={**environment, variable: unusable},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    error, listed = done.stdout.splitlines()
    for text in (error, listed):
        assert "no platform has a device: PoCL must write compiled code to a folder" in text
        assert f"Not a directory: '{tmp_path / 'file'}" in text
        assert f"({variable}={unusable}); set POCL_CACHE_DIR to a folder" in text


@pytest.mark.parametrize(("has_pocl", "words"), [(True, "pip install"), (False, "conda-forge")])
def test_a_system_without_a_driver_gets_advice_about_drivers(monkeypatch, has_pocl, words):
    empty = types.SimpleNamespace(name="Empty", version="OpenCL 3.0", get_devices=list)
    monkeypatch.setattr(discovery, "HAS_POCL", has_pocl)
    monkeypatch.setattr(cl, "get_platforms", lambda: [empty])
    with pytest.raises(dnn.EngineUnavailable, match=f"Empty lists none; .*driver.*{words}"):
        discovery._cl_devices.__wrapped__()
