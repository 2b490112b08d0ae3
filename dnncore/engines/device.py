"""Descriptions of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dnncore.errors import DescriptorError

__all__ = ["DEVICE_TYPES", "LIMITS", "Device"]

DEVICE_TYPES = ("cpu", "gpu", "accelerator")

LIMITS: Mapping[str, type] = {
    "threads": int,  # threads that compute at the same time, on a processor
    "compute_units": int,  # multiprocessors or cores, on other devices
    "global_memory": int,  # bytes of all memory
    "max_allocation": int,  # bytes of the largest buffer
    "local_memory": int,  # bytes of memory that one work-group shares
    "max_work_group": int,  # work-items of the largest work-group
    "alignment": int,  # bytes: addresses of buffers are multiples of this number
    "fp16": bool,  # whether the device computes in f16
}
"""The standard keys of `Device.limits` and their types. Each is optional."""


@dataclass(frozen=True)
class Device:
    """One device that an engine kind can open. Its index is its position in the kind's list.

    limits: numbers and flags that describe the device. `LIMITS` in this module lists the standard
        keys. A backend may add its own keys. The core reads no key; `dnncore devices --json` prints
        all.
    type: "cpu", "gpu", "accelerator" or another word; "" if unknown. `dnncore.engine` accepts it as
        a name.
    """

    name: str
    vendor: str = ""
    version: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "vendor", "version", "type"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise DescriptorError(f"device: {name} must be a string; got {value!r}")
        if not isinstance(self.limits, Mapping):
            raise DescriptorError(f"device: limits must be a mapping; got {self.limits!r}")
