"""Launches by the driver's own function, without an event.

pyopencl's function creates an event for each launch. On two hosts with an H200, a launch takes 6.5
and 9.4 us with it, 5.7 and 7.4 us with the driver's function. A caller that later needs an event
gets a point of the queue (`events.Point`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from dnncore_opencl.devices.discovery import pyopencl


@functools.cache
def enqueue_function() -> Any:
    """Return clEnqueueNDRangeKernel of the library that pyopencl uses; None if it is not found.

    On Linux and macOS, the handle of an extension module also finds functions of the libraries that
    the module is linked to. The function keeps the interpreter lock, as pyopencl does. Argument
    types are not declared, because their conversion takes 1 us per launch. So pointers must be
    `c_void_p`, `byref` or None.
    """
    try:
        function = ctypes.PyDLL(pyopencl()._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int32
    return function


def launch_arguments(kernel: Any, global_size: Sequence[int], local_size: Sequence[int]) -> Any:
    """Return the function's arguments after the queue. `kernel` must live as long as they do.

    The arguments are: kernel, number of dimensions, grid offset, grid size, work-group size, number
    of events to wait for, these events, and the event to create.
    """
    sizes = ctypes.c_size_t * len(global_size)
    grid, group = ctypes.byref(sizes(*global_size)), ctypes.byref(sizes(*local_size))
    return ctypes.c_void_p(kernel.int_ptr), len(global_size), None, grid, group, 0, None, None
