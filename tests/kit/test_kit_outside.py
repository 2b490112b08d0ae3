"""The kit where a stranger has it: installed from the wheel, run in an empty folder."""

import re
from pathlib import Path

import pytest
from outside import ROOT, installed, run

pytestmark = pytest.mark.long

EXAMPLES = ("minimal_backend", "opencl_kernel", "remote_backend")
OPTIONS = ("--strict-markers", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Run Python with the wheels of dnncore and the examples, in a folder with nothing of ours."""
    folder = tmp_path_factory.mktemp("outside")
    python = installed(folder, *(ROOT / "examples" / name for name in EXAMPLES))
    (folder / "empty").mkdir()

    def run_python(*arguments):
        return run(python, *arguments, cwd=folder / "empty")

    found = Path(run_python("-c", "import dnncore; print(dnncore.__file__)").strip())
    assert found.is_relative_to(folder), found
    return run_python


def test_the_minimal_backend_passes(outside):
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=toy", "--dnncore-size=tiny")
    claims = "--dnncore-claims=../minimal_backend/claims.txt"
    output = outside("-m", "pytest", *OPTIONS, *suite, claims)
    assert re.search(r"^backend toy 0.1.0: ", output, re.M)
    assert re.search(r"^engine toy:0: ", output, re.M)
    assert re.search(r"^eltwise +f32 +forward training +[1-9]\d*", output, re.M)
    assert re.search(r"^eltwise +f32 +backward +[1-9]\d*", output, re.M)
    assert re.search(r"^claims: [1-9]\d+ kept, 0 lost", output, re.M)
    assert re.search(r"^toy@toy:0: \d+ cases of operations without tables: .*softmax", output, re.M)
    assert "failed" not in output


def test_a_device_with_its_own_memory_passes(outside):
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=remote", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite)
    assert re.search(r"^engine remote:0: ", output, re.M)
    for operation in ("eltwise", "binary", "matmul", "reorder"):
        assert re.search(rf"^{operation} +f32 +[a-z ]+ [1-9]\d*", output, re.M)
    assert "failed" not in output


def test_the_wheels_own_backends_are_checked_the_same_way(outside):
    options = ("--dnncore-backend=reference,cpu_numba", "--dnncore-match=--eltwise")
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite, *options)
    assert re.search(r"^eltwise +f32 .* +[1-9]\d* +[1-9]\d*$", output, re.M)


KERNEL = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=small_matmul")


def test_a_kernel_for_the_engines_of_another_backend_passes(outside):
    claims = ("--dnncore-size=claims", "--dnncore-claims=../opencl_kernel/claims.txt")
    output = outside("-m", "pytest", *OPTIONS, *KERNEL, *claims, "--dnncore-engine=pocl")
    assert re.search(r"^claims: [1-9]\d+ kept, 0 lost", output, re.M)
    smoke = ("--dnncore-size=smoke", "--dnncore-match= --matmul", "--dnncore-engine=pocl")
    output = outside("-m", "pytest", *OPTIONS, *KERNEL, *smoke)
    assert re.search(r"^matmul +f32 +forward +[1-9]\d*, \d+ unsupported", output, re.M)


def test_the_kernel_is_selected_and_its_times_can_be_measured_and_tuned(outside):
    problem = ("--matmul", "20000x4x4:20000x4x4")
    output = outside("-m", "dnncore", "impls", "--engines=pocl", *problem)
    assert re.search(r"^ +1 +small_matmul:direct", output, re.M)
    measure = ("../opencl_kernel/measure.py", "--engine=pocl", "--count=50")
    assert re.search(r"^ +8x8:8x8 +opencl +\d+ +small_matmul +\d+", outside(*measure), re.M)
    tuned = outside(*measure, "--tune")
    assert re.search(r"^wrote .*opencl_kernel/dnncore_small_matmul/tuning/", tuned)
