"""Command errors: the status by name, its cause and the remedy."""

from __future__ import annotations

from typing import Any

from dnncore.backend import ExecutionError
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.runtime.memory_account import Account

FAILED_DEPENDENCY = -14  # CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: a dependency failed

OUT_OF_MEMORY = frozenset((-4, -6))
"""MEM_OBJECT_ALLOCATION_FAILURE, OUT_OF_HOST_MEMORY."""

ADVICE = {
    -2: "the device has gone; this engine is lost: close the process, `dnncore devices` in a new"
    " one lists the devices that work",
    -5: "a kernel ran longer than the driver's watchdog allows, met a fault, or found no room:"
    " {account}",
    -9999: "a kernel read or wrote outside its buffers, by the word of NVIDIA's driver, which gives"
    " the device up for this process: open a new one",
    **dict.fromkeys(OUT_OF_MEMORY, "{account}"),
    **dict.fromkeys(
        (-33, -34, -36),  # INVALID_DEVICE, INVALID_CONTEXT, INVALID_COMMAND_QUEUE
        "the driver has given up the device or its queue, as after a fault; this engine is lost:"
        " open a new process",
    ),
}


def status_name(status: int) -> str:
    """Return the name of an OpenCL status, such as OUT_OF_RESOURCES."""
    return str(pyopencl().status_code.to_string(status, "status %d"))


def failure(name: str, account: Account, what: str, error: Any) -> ExecutionError:
    """Return an engine's exception. `error` is a status or a pyopencl error."""
    status = error if isinstance(error, int) else error.code
    text = f"{name}: {what}: {status_name(status)}"
    if status in ADVICE:
        text += "; " + ADVICE[status].format(account=account.text())
    elif error is not status:
        text += f": {error}"
    return ExecutionError(text)
