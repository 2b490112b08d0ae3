"""Measures the arithmetic peak and the memory bandwidth of the machine.

    python -m benchmarks.roofline [--threads 2] [--json figures.json]

Two small kernels run on the given number of threads. One computes multiply-adds in registers; there
are enough independent ones to hide their latency. The other loads an array that is much larger than
all caches. Both figures are the best of many runs.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.native import function
from llvmlite import ir

__all__ = ["Roofline", "roofline"]

AT_ONCE = 10  # independent multiply-adds: 2 start per cycle, each takes 4 or 5 cycles
TURNS = 1_000_000  # iterations; they take some milliseconds
READ_BYTES = 1 << 28  # larger than the last-level cache
SECONDS = 0.5  # duration of each measurement

Body = Callable[[ir.IRBuilder, Any, Any], Any]  # (builder, address, vectors) -> the next vectors


@dataclass(frozen=True)
class Roofline:
    """flops: floating-point operations per second. bandwidth: bytes per second."""

    flops: float
    bandwidth: float

    def at(self, intensity: float) -> float:
        """The highest possible operations per second at `intensity` operations per byte."""
        return min(self.flops, intensity * self.bandwidth)


def roofline(threads: int) -> Roofline:
    """Measure the roofline for a number of threads. Takes about a second."""
    return Roofline(_flops(threads), _bandwidth(threads))


def _flops(threads: int) -> float:
    kernel = _kernel("arithmetic", _multiply_adds)
    spot = np.ones(BEST.lanes, np.float32)
    work = [lambda: kernel(spot.ctypes.data, TURNS)] * threads
    rate = threads * TURNS * AT_ONCE * 2 * BEST.lanes / _best(work)
    _verify(spot, AT_ONCE)  # x / 2 + 1 / 2 becomes 1
    return rate


def _bandwidth(threads: int) -> float:
    kernel = _kernel("reading", _loads)
    turn = 4 * BEST.lanes * AT_ONCE
    parts = [np.ones(READ_BYTES // threads // 4, np.float32) for _ in range(threads)]
    turns = parts[0].nbytes // turn
    work = [lambda p=part: kernel(p.ctypes.data, turns) for part in parts]
    rate = threads * turns * turn / _best(work)
    for part, run in zip(parts, work, strict=True):
        part[: BEST.lanes] = 1
        run()
        _verify(part[: BEST.lanes], AT_ONCE * (AT_ONCE - 1) / 2 + turns * AT_ONCE)
    return rate


def _verify(found: np.ndarray[Any, Any], expected: float) -> None:
    """Raise `ValueError` if a kernel did not do its work."""
    if not np.array_equal(found, np.full(BEST.lanes, expected, np.float32)):
        raise ValueError(f"roofline: each sum must be {expected}; got {found}")


def _multiply_adds(builder: ir.IRBuilder, _place: Any, vectors: Any) -> Any:
    factor = vir.constant(vectors[0].type, 0.5)
    return [vir.multiply_add(builder, vector, factor, factor) for vector in vectors]


def _loads(builder: ir.IRBuilder, place: Any, vectors: Any) -> Any:
    kind, size = vectors[0].type, 4 * BEST.lanes
    loaded = [
        vir.load(builder, vir.at(builder, place, i * size), kind, None) for i in range(AT_ONCE)
    ]
    return [builder.fadd(*pair) for pair in zip(vectors, loaded, strict=True)]


def _kernel(name: str, body: Body) -> Any:
    """A C function of an address and a number of iterations. Each processes AT_ONCE vectors.

    The sum of the vectors is stored at the address, so that LLVM removes no computation.
    """

    def text(symbol: str) -> str:
        module = ir.Module(symbol)
        kind = ir.FunctionType(ir.VoidType(), [vir.I64, vir.I64])
        kernel = ir.Function(module, kind, symbol)
        builder = ir.IRBuilder(kernel.append_basic_block("entry"))
        start = vir.address(builder, kernel.args[0])

        def turn(index: Any, vectors: Any) -> Any:
            offset = builder.mul(index, vir.I64(4 * BEST.lanes * AT_ONCE))
            return body(builder, vir.at(builder, start, offset), vectors)

        zeros = [vir.constant(vir.vector_of(BEST.lanes), float(i)) for i in range(AT_ONCE)]
        first, *rest = vir.loop(builder, kernel.args[1], zeros, turn)
        for vector in rest:
            first = builder.fadd(first, vector)
        vir.store(builder, first, start, None)
        builder.ret_void()
        return str(module)

    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    return prototype(function(f"roofline_{name}", text).address)


def _best(work: list[Callable[[], object]]) -> float:
    """The shortest of many parallel runs of all parts, because disturbances only lengthen runs."""
    shortest, end = math.inf, time.perf_counter() + SECONDS
    with ThreadPoolExecutor(len(work)) as pool:
        while time.perf_counter() < end:
            start = time.perf_counter()
            wait([pool.submit(part) for part in work])
            shortest = min(shortest, time.perf_counter() - start)
    return shortest


@click.command()
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--json", "path", type=Path, help="Write the figures to this file.")
def main(threads: int, path: Path | None) -> None:
    """Measure and print."""
    found = roofline(threads)
    click.echo(f"{found.flops / 1e9:.0f} GF/s, {found.bandwidth / 1e9:.0f} GB/s")
    if path:
        path.write_text(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
