"""All drivers, by the option that names them."""

from __future__ import annotations

from dnncore.ops import Operation
from dnncore.problem.binary import BINARY
from dnncore.problem.convolution import CONVOLUTION
from dnncore.problem.eltwise import ELTWISE
from dnncore.problem.inner_product import INNER_PRODUCT
from dnncore.problem.lrn import LRN
from dnncore.problem.matmul import MATMUL
from dnncore.problem.pooling import POOLING
from dnncore.problem.reduction import REDUCTION
from dnncore.problem.reorder import REORDER
from dnncore.problem.settings import Driver
from dnncore.problem.softmax import SOFTMAX
from dnncore.problem.sum import SUM

__all__ = ["DRIVERS", "driver_of"]

_ALL = (
    CONVOLUTION, INNER_PRODUCT, MATMUL, ELTWISE, POOLING, LRN, SOFTMAX, BINARY, SUM, REDUCTION,
    REORDER,
)  # fmt: skip
DRIVERS: dict[str, Driver] = {driver.name: driver for driver in _ALL}
_DRIVER_OF = {kind: driver for driver in DRIVERS.values() for kind in driver.operations}


def driver_of(kind: type[Operation]) -> Driver:
    """The driver that writes operations of this type."""
    return _DRIVER_OF[kind]
