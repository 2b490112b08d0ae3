"""Names of engines: kinds, indexes, types and words, in dnn.engine, the commands and the kit."""

from contextlib import ExitStack

import numpy as np
import pytest
from click.testing import CliRunner
from toy import devices

import dnncore as dnn
from dnncore.cli import main
from dnncore.selection import plugins
from dnncore.testing.running import device_choice

EPYC = dnn.Device("EPYC 9", "AMD", "3.0 (OpenCL 3.0 PoCL)", type="cpu")
H200 = dnn.Device("NVIDIA H200", "NVIDIA Corporation", "580", type="gpu")
H100 = dnn.Device("NVIDIA H100", "NVIDIA Corporation", "580", type="gpu")
RADEON = dnn.Device("gfx90a:sramecc+", "AMD", "6.4", type="gpu")
NPU = dnn.Device("Brain 1", "Acme", type="npu")
UNTYPED = dnn.Device("Box", "Acme")


@pytest.fixture
def machine(monkeypatch):
    """Make a machine with these engine kinds, and no others but the CPU; kind -> devices."""
    monkeypatch.setenv("DNNCORE_BACKENDS", "reference")
    registry = plugins.Registry()
    for module in (plugins, device_choice):
        monkeypatch.setattr(module, "registry", registry)
    with ExitStack() as stack:

        def add(**kinds):
            for kind, found in kinds.items():
                stack.enter_context(devices(kind, *found))

        yield add


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", "cpu"),
        ("CPU:0", "cpu"),
        ("ocl", "ocl:0"),
        ("Ocl:1", "ocl:1"),
        ("ocl:01", "ocl:1"),
        (" ocl : 1 ", "ocl:1"),
        ("gpu", "ocl:1"),
        ("GPU", "ocl:1"),
        ("gpu:0", "ocl:1"),
        ("gpu:1", "ocl:2"),
        ("gpu:2", "hip:0"),
        ("gpu:amd", "hip:0"),
        ("ocl:gpu", "ocl:1"),
        ("hip:gpu", "hip:0"),
        ("ocl:nvidia", "ocl:1"),  # of several the first
        ("ocl:h100", "ocl:2"),
        ("ocl:nvidia h100", "ocl:2"),
        ("OCL:H100 NVIDIA", "ocl:2"),
        ("ocl:pocl 3.0", "ocl:0"),
        ("hip:gfx90a:sramecc+", "hip:0"),
        ("h200", "ocl:1"),
        ("NVIDIA Corporation", "ocl:1"),
        ("npu", "acme:0"),
        ("acme:box", "acme:1"),
        ("brain 1", "acme:0"),
    ],
)
def test_names_and_what_they_mean(machine, name, expected):
    machine(ocl=[EPYC, H200, H100], hip=[RADEON], acme=[NPU, UNTYPED])
    assert dnn.engine(name).name == expected
    assert dnn.engine(name) is dnn.engine(expected)
    chosen = device_choice.choose(name)
    assert chosen[0].name == expected
    result = CliRunner().invoke(main, ["impls", f"--engine={name}", "--eltwise", "2x3"])
    assert f"--eltwise 2x3 on {expected}\n" in result.output


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("tpu", dnn.BackendNotFound, "unknown engine 'tpu'; there are: cpu"),
        ("tpu:1", dnn.BackendNotFound, "unknown engine 'tpu:1'"),
        ("", dnn.BackendNotFound, "unknown engine ''"),
        (":", dnn.BackendNotFound, "unknown engine ':'"),
        (":1", dnn.BackendNotFound, "unknown engine ':1'"),
        ("1", dnn.BackendNotFound, "unknown engine '1'"),
        ("580", dnn.BackendNotFound, "unknown engine '580'"),
        ("nvid", dnn.BackendNotFound, "unknown engine 'nvid'"),  # not a whole word
        ("nvidia:1", dnn.BackendNotFound, "unknown engine 'nvidia:1'"),
        ("cpu,ocl", dnn.BackendNotFound, "unknown engine 'cpu,ocl'"),
        ("ocl:", dnn.BackendNotFound, "'ocl:': write kind, kind:index or kind:words"),
        ("ocl:-1", dnn.BackendNotFound, "'ocl:-1': write kind, kind:index or"),
        ("ocl:3.0", dnn.BackendNotFound, "'ocl:3.0': write kind, kind:index or"),
        ("ocl:3", dnn.EngineUnavailable, "the number of 'ocl' devices is 3; there are"),
        ("ocl:580", dnn.EngineUnavailable, "indices begin with 0"),
        ("ocl:" + "9" * 5000, dnn.EngineUnavailable, "indices begin with 0"),
        ("gpu:7", dnn.EngineUnavailable, "the number of 'gpu' devices is 3"),
        ("ocl:intel", dnn.EngineUnavailable, "no 'ocl' device has all of these words"),
        ("ocl:amd h200", dnn.EngineUnavailable, "no 'ocl' device has all of these words"),
        ("cpu:x", dnn.EngineUnavailable, "no 'cpu' device has all of these words"),
        ("accelerator", dnn.EngineUnavailable, "there is no device of type 'accelerator'"),
        (3, dnn.BackendNotFound, "must be a string, as in 'cpu', 'gpu' or 'opencl:1'; got 3"),
        (b"cpu", dnn.BackendNotFound, "must be a string"),
        (["cpu"], dnn.BackendNotFound, "must be a string"),
        (True, dnn.BackendNotFound, "must be a string"),
    ],
)
def test_names_that_mean_nothing(machine, name, error, message):
    machine(ocl=[EPYC, H200, H100], hip=[RADEON], acme=[NPU, UNTYPED])
    with pytest.raises(error, match=message) as raised:
        dnn.engine(name)
    if isinstance(name, str):
        assert "ocl:1 (gpu, NVIDIA H200, NVIDIA Corporation, 580)" in str(raised.value)
        assert "acme:1 (Box, Acme)" in str(raised.value)


def test_without_a_gpu_the_error_lists_all_devices_and_what_is_broken(machine):
    machine(ocl=[EPYC], broken=[RuntimeError("no driver loaded")], empty=[], odd=["a string"])
    with pytest.raises(dnn.EngineUnavailable, match="there is no device of type 'gpu'") as raised:
        dnn.engine("gpu")
    for part in (
        "there are: cpu (cpu, ",
        "ocl:0 (cpu, EPYC 9, AMD, 3.0 (OpenCL 3.0 PoCL))",
        "broken (failed: RuntimeError: no driver loaded (",  # and its place
        "empty (unavailable: empty: there is no device of this kind)",
        "odd (failed: odd: devices() must return Device objects; got 'a string')",
        "opencl (blocked: not in DNNCORE_BACKENDS=reference)",
        "install the driver of such a device, or use one of these names",
    ):
        assert part in str(raised.value)


def test_a_broken_backend_does_not_hide_the_gpu_of_another(machine):
    machine(broken=[RuntimeError("no driver loaded")], hip=[RADEON])
    assert dnn.engine("gpu").name == "hip:0"
    assert dnn.functional.relu([-1, 2], engine="cpu").tolist() == [0, 2]
    with pytest.raises(dnn.EngineUnavailable, match="'broken:amd': RuntimeError: no driver loaded"):
        dnn.engine("broken:amd")
    machine(empty=[])
    with pytest.raises(dnn.EngineUnavailable, match="there is no device of this kind"):
        dnn.engine("empty")


def test_the_gpu_of_a_backend_that_is_gone_is_not_opened(machine):
    machine(hip=[RADEON])
    with devices("ocl", H200):
        assert dnn.engine("nvidia").name == "ocl:0"
        assert dnn.engine("gpu").name == "hip:0"
    with pytest.raises(dnn.BackendNotFound, match="unknown engine 'nvidia'"):
        dnn.engine("nvidia")


def test_an_engine_kind_goes_before_a_type_and_a_type_before_words(machine):
    machine(ocl=[dnn.Device("not a GPU", type="cpu"), H200])
    assert dnn.engine("gpu").name == "ocl:1"
    machine(gpu=[dnn.Device("first of its kind")])
    assert dnn.engine("GPU").name == "gpu:0"


def test_kinds_that_differ_in_case_alone_are_refused(machine):
    machine(ocl=[EPYC])
    with (
        pytest.raises(dnn.PluginError, match="kind 'OCL' must be new"),
        devices("OCL", H200, name="another"),
    ):
        pass


def test_the_environment_and_functions_take_the_same_names(machine, monkeypatch):
    machine(hip=[RADEON])
    for name in ("gpu", "HIP:AMD", "gpu:0"):
        monkeypatch.setenv("DNNCORE_ENGINE", name)
        assert dnn.engine().name == "hip:0"
    monkeypatch.setenv("DNNCORE_ENGINE", "hip:intel")
    with pytest.raises(dnn.EngineUnavailable, match="no 'hip' device has all of these words"):
        dnn.functional.relu(np.float32([1]))
    with pytest.raises(dnn.EngineUnavailable, match="no 'hip' device has all of these words"):
        dnn.functional.relu([1], engine="hip:nvidia")


def test_a_list_of_names_means_all_their_devices_once(machine):
    machine(ocl=[EPYC, H200, H200, H100], hip=[RADEON])

    def names(wanted):
        return [row.name for row in device_choice.choose(wanted)]

    assert names("") == ["cpu", "ocl:0", "ocl:1", "ocl:3", "hip:0"]
    assert names("ocl") == ["ocl:0", "ocl:1", "ocl:3"]
    assert names("gpu") == ["ocl:1", "ocl:3", "hip:0"]
    assert names(" amd, ocl:2,,ocl:nvidia h100 ") == names("ocl:h100,amd,ocl:2")
    assert names("ocl:1,ocl:2") == ["ocl:1", "ocl:2"]  # one by one equal devices are two
    with pytest.raises(dnn.EngineUnavailable, match="no 'ocl' device has all of these words"):
        names("cpu,ocl:intel")


@pytest.mark.parametrize("field", ["name", "vendor", "version", "type"])
def test_a_device_is_described_in_strings(field):
    with pytest.raises(dnn.DescriptorError, match=f"device: {field} must be a string; got 3"):
        dnn.Device(**{"name": "a", field: 3})


def test_a_row_without_a_device_has_no_description():
    with devices("gone", dnn.EngineUnavailable("no driver")):
        (row,) = (row for row in dnn.devices() if row.kind == "gone")
    assert (row.status, row.type, row.description, row.device) == ("unavailable", "", "", None)
