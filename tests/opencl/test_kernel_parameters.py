"""Parameters of kernels: declared once, rendered into the text, and checked before a launch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.codegen.digits import INT4, UINT4, int4, inverses
from dnncore_opencl.codegen.layout import LARGE, Parameters
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.matmul import MatMulImplementation
from dnncore_opencl.runtime.launch import Launch, Source, _templates, template
from dnncore_opencl.runtime.schema import FLOAT, INT, LONG, Arg, Buffer, Schema, Scratch

import dnncore as dnn

SCHEMA = Schema(
    src=Buffer("const float", is_restrict=True),
    dst=Buffer("RESULT"),
    sizes=INT4,
    count=INT,
    offset=LONG,
    scale=FLOAT,
)
ARGUMENTS = {
    "src": Arg(0),
    "dst": Scratch(),
    "sizes": int4((1, 2, 3, 4)),
    "count": 5,
    "offset": 1 << 40,
    "scale": 0.5,
}


def launch(**changes: Any) -> Launch:
    """A launch with other arguments; None leaves one out."""
    given = {name: value for name, value in (ARGUMENTS | changes).items() if value is not None}
    return Launch(Source("transpose", SCHEMA), given, (1,), (1,))


def test_arguments_come_in_the_order_of_the_parameters() -> None:
    shuffled = dict(reversed(ARGUMENTS.items()))
    args = Launch(Source("transpose", SCHEMA), shuffled, (1,), (1,)).args
    assert args == (Arg(0), Scratch(), int4((1, 2, 3, 4)), 5, 1 << 40, 0.5)
    assert [arg.dtype for arg in args[3:]] == [np.int32, np.int64, np.float32]


def test_the_text_declares_the_parameters() -> None:
    (listed,) = re.findall(r"void transpose\((.*?)\)", launch().source.text, re.DOTALL)
    assert [" ".join(line.split()) for line in listed.split(",")] == [
        "__global const float *restrict src",
        "__global RESULT *dst",
        "const int4 sizes",
        "const int count",
        "const long offset",
        "const float scale",
    ]


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"transpose lacks count, sizes$"):
        launch(sizes=None, count=None)


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"transpose does not have counts$"):
        launch(counts=5)


def test_a_misspelt_argument_is_both() -> None:
    with pytest.raises(TypeError, match=r"transpose lacks count and does not have counts$"):
        launch(count=None, counts=5)


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("count", 5.0, "int"),
        ("count", 1 << 31, "int"),
        ("count", np.int64(5), "int"),
        ("count", np.float32(5), "int"),
        ("count", Arg(0), "int"),
        ("count", "5", "int"),
        ("offset", np.int32(5), "long"),
        ("scale", 5, "float"),
        ("scale", np.float64(5), "float"),
        ("sizes", 5, "int4"),
        ("sizes", (1, 2, 3, 4), "int4"),
        ("sizes", inverses((1, 2, 3, 4)), "int4"),
        ("src", 5, "a buffer"),
        ("dst", int4((1, 2, 3, 4)), "a buffer"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_its_type(
    name: str, value: Any, needs: str
) -> None:
    with pytest.raises(
        TypeError, match=rf"argument {name} of a launch of transpose must be.*{needs}"
    ):
        launch(**{name: value})


def test_no_two_parameters_have_one_name() -> None:
    with pytest.raises(TypeError, match="count"):
        SCHEMA | Schema(count=UINT4)


def test_every_kernel_of_a_file_takes_the_parameters_of_its_schema() -> None:
    kernels = 0
    for name in _templates():
        heads = re.findall(r"__kernel\b[^{]*?\bvoid\s+(\w+)\(([^)]*)\)", template(name))
        assert heads in ([], [(name, "$parameters")]), name
        kernels += len(heads)
    assert kernels > 20


@pytest.mark.parametrize(("elements", "kind"), [(LARGE - 1, "int"), (LARGE, "long")])
def test_collected_parameters_are_a_schema(elements: int, kind: str) -> None:
    parameters = Parameters(elements)
    assert [parameters.size(7), parameters.index(1), parameters.real(2)] == ["p0", "1", "p1"]
    assert parameters.schema.declarations == [f"const {kind} p0", "const float p1"]
    assert parameters.schema.arguments("any", parameters.arguments) == (7, 2.0)


def test_a_family_that_forgets_an_argument_fails_when_it_plans() -> None:
    square = dnn.MemoryDesc((8, 8), "f32", "ab")
    op = dnn.MatMul(src=square, weights=square, dst=square)
    (gemm,) = MatMulImplementation(CpuFamily).gemms(op, dnn.Attributes())
    (planned,) = CpuFamily(2, 8, False).plan(gemm).launches
    arguments = dict(planned.arguments)
    del arguments["c_part"]
    with pytest.raises(TypeError, match=r"gemm_cpu lacks c_part$"):
        Launch(planned.source, arguments, planned.global_size, planned.local_size)
