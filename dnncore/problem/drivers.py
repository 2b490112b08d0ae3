"""All drivers, by the option that names them."""

from __future__ import annotations

from dnncore.ops import Operation
from dnncore.problem.convolution import CONVOLUTION
from dnncore.problem.settings import Driver

__all__ = ["DRIVERS", "driver_of"]

DRIVERS: dict[str, Driver] = {driver.name: driver for driver in (CONVOLUTION,)}
_DRIVER_OF = {kind: driver for driver in DRIVERS.values() for kind in driver.operations}


def driver_of(kind: type[Operation]) -> Driver:
    """The driver that writes operations of this type."""
    return _DRIVER_OF[kind]
