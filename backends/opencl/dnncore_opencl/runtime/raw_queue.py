"""Queueing a kernel by the driver's function itself, which need not make an event.

On two hosts with an H200 a launch costs 5.7 and 7.4 us so, 6.5 and 9.4 by pyopencl's function,
whose event is made and dropped. Whoever asks for an event later gets a point of the queue
(`events.Point`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from dnncore_opencl.devices.discovery import pyopencl

__all__ = ["enqueue_function", "launch_arguments"]


@functools.cache
def enqueue_function() -> Any:
    """Return clEnqueueNDRangeKernel of the library that pyopencl uses; None where it is hidden.

    A handle of an extension module also finds the functions of the libraries that it is linked to,
    by the rules of dlsym; Windows has others. The interpreter lock is kept, as pyopencl keeps it.
    The function declares no types of arguments, whose conversion would take 1 us of each launch:
    pointers must be `c_void_p`, `byref` or None.
    """
    try:
        function = ctypes.PyDLL(pyopencl()._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int32
    return function


def launch_arguments(kernel: Any, global_size: Sequence[int], local_size: Sequence[int]) -> Any:
    """Return the function's arguments behind the queue; `kernel` must live as long.

    They are the kernel, its dimensions, where the grid begins, its size and that of a group, and
    events: how many to wait for, these, and the one to make.
    """
    sizes = ctypes.c_size_t * len(global_size)
    grid, group = ctypes.byref(sizes(*global_size)), ctypes.byref(sizes(*local_size))
    return ctypes.c_void_p(kernel.int_ptr), len(global_size), None, grid, group, 0, None, None
