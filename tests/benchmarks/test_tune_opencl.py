"""The search for tuning tables accepts right results and writes faster parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyopencl")

from dnncore_opencl.gemm.product import Gemm, Matrix, Strides, Window
from dnncore_opencl.gemm.tuned import key, parameters, tuned, with_parameters
from dnncore_opencl.runtime.program import LaunchProgram

import dnncore as dnn
from benchmarks import tune_opencl
from dnncore.backend import Implementation
from dnncore.errors import DescriptorError
from dnncore.selection.plugins import registry

KEY = "f32 b1 m8 n8 k64"
WORDS = ("--matmul", "8x64:64x8")
ROUNDED = ("--eltwise", "--dt=f16", "--alg=logistic", "8x64")  # most results are rounded
SLOW = 30  # repetitions of the computation in the family's own choice


@dataclass(frozen=True)
class Tile:
    """A tile that repeats the computation. Zero repetitions give a wrong result."""

    times: int

    def __post_init__(self) -> None:
        if self.times < 0:
            raise DescriptorError("times must be at least 0")


@dataclass(frozen=True)
class Toy:
    tiles: tuple[Tile, ...] = (Tile(SLOW), Tile(0), Tile(1))
    parts: int = 0
    name: str = "toy"

    @classmethod
    def of(cls, _engine: Any) -> Toy:
        return cls()


class ToyImplementation(Implementation):
    """An implementation of the toy family: it repeats the launches of another one."""

    name, family = "opencl:toy", Toy

    def accept(self, op, attr, engine, hint):
        found = engine.tuning_table("toy").get(KEY)
        toy = with_parameters(Toy(), found) if found else Toy()
        table = registry.implementations("opencl", type(op))
        other = next(i for _, i in table if i.name in ("opencl:simd", "opencl:pointwise"))
        accepted = other.accept(op, attr, engine, hint)
        launches = accepted.build().launches * toy.tiles[0].times
        return replace(accepted, build=lambda: LaunchProgram(engine, launches))


@pytest.fixture
def search(monkeypatch, tmp_path):
    """Run the search for the toy family. Returns its output and its table."""
    if not any(d.name == "opencl:0" and d.status == "ok" for d in dnn.devices()):
        pytest.skip("no OpenCL device")
    right = registry.implementations

    def with_toy(kind, op):
        found = right(kind, op)
        backend, _ = found[0]
        return [*found, (backend, ToyImplementation())]

    monkeypatch.setattr(registry, "implementations", with_toy)
    monkeypatch.setattr(tune_opencl, "PARTS", (1,))

    def run(*options, words=WORDS):
        command = ["--family=toy", f"--folder={tmp_path}", *options, *words]
        done = CliRunner().invoke(tune_opencl.main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        (path,) = tmp_path.glob("*.json")
        return done.output, json.loads(path.read_text())["toy"], path

    return run


@pytest.mark.peer
@pytest.mark.parametrize("words", [WORDS, ROUNDED])
def test_the_fastest_right_candidate_is_written(search, words):
    printed, table, _ = search(words=words)
    assert "WRONG" in printed
    assert table[KEY]["times"] == 1


@pytest.mark.peer
def test_products_in_the_table_are_skipped_unless_again_is_given(search):
    _, _, path = search()
    path.write_text(json.dumps({"toy": {KEY: {"times": 7}}}))
    assert search()[1] == {KEY: {"times": 7}}
    assert search("--again")[1][KEY]["times"] == 1


# -- keys and choices ------------------------------------------------------------------------------


def _convolution():
    """A channels-last convolution: 64 channels, 2 images of 56 x 56, 3x3 with stride 2."""
    return Gemm(
        batch=(), m=128, n=(2, 1, 28, 28), k=(64, 1, 3, 3),
        a=Matrix(1, 0, Strides(m=576, k=(9, 9, 3, 1))),
        b=Matrix(0, 0, Strides(n=(200704, 0, 7168, 128), k=(1, 0, 3584, 64))),
        c=Matrix(2, 0, Strides(m=1, n=(100352, 0, 3584, 128))),
        window=Window((0, -1, -1), (1, 2, 2), (1, 1, 1), (1, 56, 56)),
    )  # fmt: skip


def test_a_key_contains_sizes_steps_and_directions_of_operands():
    gemm = _convolution()
    assert key(gemm) == "f32 b1 m128 n2x1x28x28 k64x1x3x3 s1x2x2 ak bk cm"
    assert key(replace(gemm, fpmath="tf32")).startswith("f32 tf32 b1 ")
    assert key(replace(gemm, batch=(3, 4), window=None)) == (
        "f32 b12 m128 n2x1x28x28 k64x1x3x3 ak bk cm"
    )


class Engine:
    """An engine with a table that has these parameters for the convolution."""

    def __init__(self, **found: int) -> None:
        self.found = found

    def tuning_table(self, name):
        return {key(_convolution()): self.found} if name == "toy" and self.found else {}


def test_a_table_sets_the_tile_and_the_parts():
    chosen = tuned(Toy(), _convolution(), Engine(times=5, parts=3))
    assert parameters(chosen) == {"times": 5, "parts": 3}
    assert tuned(Toy(), replace(_convolution(), m=7), Engine(times=5)) == Toy()
    assert tuned(Toy(), _convolution(), Engine()) == Toy()


@pytest.mark.parametrize("found", [{"times": -1}, {"rows": 8}])
def test_parameters_that_the_family_lacks_are_reported_and_not_used(found, monkeypatch):
    told = []
    monkeypatch.setattr("dnncore_opencl.gemm.tuned.remark", lambda _engine, text: told.append(text))
    assert tuned(Toy(), _convolution(), Engine(**found)) == Toy()
    assert "toy cannot have" in told[0]
