"""The device: a process that holds buffers and runs kernels. It does not import dnncore.

The engine starts this file as a program. The process reads requests from its standard input, and
writes an answer to each one to its standard output, in order. It ends at the end of its input. A
request is (numbers of freed buffers, name, arguments). An answer is (whether the request succeeded,
value or text of the error, start, end), with times of `time.perf_counter`.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


View = tuple[int, tuple[int, ...], str, int, tuple[int, ...]]
"""A tensor: buffer, shape, type, offset and strides in bytes."""

FORWARD: dict[str, Callable[..., Any]] = {  # f(s, alpha, beta)
    "relu": lambda s, a, _: np.maximum(s, 0) if a == 0 else np.where(s > 0, s, a * s),
    "tanh": lambda s, *_: np.tanh(s),
    "logistic": lambda s, *_: 1 / (1 + np.exp(-s)),
    "linear": lambda s, a, b: a * s + b,
}
SLOPE: dict[str, Callable[..., Any]] = {  # df/ds
    "relu": lambda s, a, _: np.where(s > 0, 1, a),
    "tanh": lambda s, *_: 1 / np.cosh(s) ** 2,
    "logistic": lambda s, *_: 1 / (2 + np.exp(s) + np.exp(-s)),
    "linear": lambda _, a, __: a,
}
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
    "lt": np.less, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip

KERNELS: dict[
    str, Callable[..., Any]
] = {  # the parameters of the operation, then its inputs; returns the result
    "forward": lambda kind, a, b, src: FORWARD[kind](src, a, b),
    "backward": lambda kind, a, b, src, diff: SLOPE[kind](src.astype("f8"), a, b) * diff,
    "binary": lambda kind, src0, src1: BINARY[kind](src0, src1),
    "matmul": lambda src, weights, bias=None: (
        src @ weights if bias is None else src @ weights + bias
    ),
    "copy": lambda src: src,
}


class Device:
    """Buffers by number, and one method per request."""

    def __init__(self) -> None:
        self.buffers: dict[int, Array] = {}

    def allocate(self, buffer: int, nbytes: int) -> None:
        """Make a buffer."""
        self.buffers[buffer] = np.empty(max(nbytes, 1), np.uint8)

    def write(self, buffer: int, data: bytes) -> None:
        """Copy bytes to a buffer's start."""
        self.buffers[buffer][: len(data)] = np.frombuffer(data, np.uint8)

    def read(self, buffer: int, nbytes: int) -> bytes:
        """Return the bytes at a buffer's start."""
        return self.buffers[buffer][:nbytes].tobytes()

    def run(self, kernel: str, parameters: tuple[Any, ...], views: list[View]) -> None:
        """Run a kernel on tensors. The last one is its result."""
        *inputs, output = map(self._array, views)
        with np.errstate(all="ignore"):
            output[...] = KERNELS[kernel](*parameters, *inputs)

    def _array(self, view: View) -> Array:
        buffer, shape, dtype, offset, strides = view
        return np.ndarray(shape, dtype, self.buffers[buffer].data, offset, strides)


def serve(requests: Any, answers: Any) -> None:
    """Answer requests until there are no more."""
    device = Device()
    while True:
        try:
            freed, name, arguments = pickle.load(requests)
        except EOFError:
            return
        for buffer in freed:
            device.buffers.pop(buffer, None)
        start = time.perf_counter()
        try:
            answer = True, getattr(device, name)(*arguments)
        except Exception as error:  # the engine raises it as an error of the command
            answer = False, f"{type(error).__name__}: {error}"
        pickle.dump((*answer, start, time.perf_counter()), answers)
        answers.flush()


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not mix with the answers
    serve(sys.stdin.buffer, output)
