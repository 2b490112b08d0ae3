"""A backend whose primitives do nothing. It measures the cost of the core.

python -m dnncore.testing.null
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dnncore
from dnncore.attributes import Attributes
from dnncore.backend import (
    Accepted,
    Backend,
    EltwiseForward,
    HostEngine,
    HostFunction,
    Implementation,
    hookimpl,
)
from dnncore.engines.device import Device
from dnncore.ops import Operation
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["NullEngine", "costs", "installed"]

SAMPLES = 9


class NullEngine(HostEngine):
    """Host memory, with primitives that compute nothing."""

    kind = "null"

    @classmethod
    def devices(cls) -> list[Device]:
        """Return one device."""
        return [Device("nothing")]


class Null(Implementation[Operation]):
    """An implementation of every operation with given formats. It does not change the outputs."""

    name = "null:nothing"

    def accept(
        self, op: Operation, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted:
        """Accept every problem."""
        return Accepted(op, build=lambda: HostFunction(_nothing), seconds=1e-9)


def _nothing(*memories: object) -> None:
    pass


TABLE = [Null()]


@hookimpl
def dnncore_backends() -> Backend:
    """Return the backend `null` with its engine."""
    return Backend(
        "null",
        "1.0",
        engines={"null": f"{__name__}:NullEngine"},
        implementations={("null", EltwiseForward): f"{__name__}:TABLE"},
    )


@contextmanager
def installed() -> Iterator[dnncore.Engine]:
    """Register the backend for the duration of a block; yield its engine."""
    module = sys.modules[__name__]
    dnncore.register(module)
    try:
        yield dnncore.engine("null")
    finally:
        dnncore.unregister(module)


def costs() -> dict[str, float]:
    """Return the median seconds of the core for each step of a primitive's life."""
    with installed() as engine:
        stream = engine.stream()
        desc = dnncore.MemoryDesc((16,))
        op = EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        pd = PrimitiveDesc(op, engine)
        primitive = pd.primitive()
        memories: dict[str, Any] = {name: dnncore.Memory(desc, engine) for name in ("src", "dst")}
        bound = primitive.bind(**memories)
        return {
            "primitive descriptor, warm": median(lambda: PrimitiveDesc(op, engine)),
            "primitive, cached": median(pd.primitive),
            "bind": median(lambda: primitive.bind(**memories)),
            "execute": median(lambda: primitive.execute(stream, **memories)),
            "bound call": median(lambda: bound(stream)),
        }


def median(work: Callable[[], object], loops: int = 2000) -> float:
    """Return the median over SAMPLES of the mean seconds of `loops` calls."""
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(loops):
            work()
        samples.append((time.perf_counter() - start) / loops)
    return statistics.median(samples)
