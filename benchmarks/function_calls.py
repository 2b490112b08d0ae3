"""Measures warm calls of one-line functions above their kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore import functional, observers

__all__ = ["function_rows"]

LIMIT = 15  # us
LOOPS = 50  # calls of a sample
SAMPLES = 200  # the shortest sample counts: disturbances take longer than calls of microseconds

Row = tuple[str, float, float | None, str]  # name, value, limit, unit


class _LastLaunch(observers.Observer):
    """Keeps the primitive and the memories of the last launch."""

    def watch(self, primitive: Any, memories: Sequence[Any], run: Any) -> Any:
        self.primitive, self.memories = primitive, list(memories)
        return run


def function_rows() -> list[Row]:
    """For each function, the microseconds that a warm call on small arrays adds to its launch."""
    return [
        (f"cpu: {name} in one line above its launch", above_launch(call) * 1e6, LIMIT, "us")
        for name, call in calls().items()
    ]


def calls() -> dict[str, Callable[[], object]]:
    """Calls by function name: functions of one, two and three arrays, with and without options."""
    image, weights = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
    matrix, row = np.ones((4, 4), np.float32), np.ones(4, np.float32)
    return {
        "relu": lambda: functional.relu(matrix),
        "add": lambda: functional.add(matrix, matrix),
        "sum": lambda: functional.sum(matrix, 0),
        "softmax": lambda: functional.softmax(matrix),
        "max_pool2d": lambda: functional.max_pool2d(image, 2),
        "matmul": lambda: functional.matmul(matrix, matrix),
        "linear": lambda: functional.linear(matrix, matrix, row),
        "conv2d": lambda: functional.conv2d(image, weights, row[:3], padding=1, activation="relu"),
    }


def above_launch(call: Callable[[], object]) -> float:
    """Seconds by which a call takes longer than the native function that it launches."""
    observer = _LastLaunch()
    observers.add(observer)
    try:
        call()
    finally:
        observers.remove(observer)
    stream = dnn.engine("cpu").stream()
    names = [argument.name for argument, _ in observer.primitive.pd.arguments]
    arguments = dict(zip(names, observer.memories, strict=True))
    run = observer.primitive.bind(**arguments).run_on(stream)
    return _least(call) - _least(lambda: run.native(run.address))


def _least(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(LOOPS):
            call()
        seconds.append(time.perf_counter() - start)
    return min(seconds) / LOOPS
