"""The drivers: one file per operation, with the data for problem text, checks and the kit.

`problem`, `comparison` and `testing` import it; operations are found by `DRIVERS` and `driver_of`.
"""

from __future__ import annotations

from dnncore.ops import Operation
from dnncore.problem.drivers.attention import SDPA
from dnncore.problem.drivers.batch_normalization import BATCH_NORMALIZATION
from dnncore.problem.drivers.binary import BINARY
from dnncore.problem.drivers.concat import CONCAT
from dnncore.problem.drivers.convolution import CONVOLUTION
from dnncore.problem.drivers.deconvolution import DECONVOLUTION
from dnncore.problem.drivers.driver import Driver
from dnncore.problem.drivers.eltwise import ELTWISE
from dnncore.problem.drivers.group_normalization import GROUP_NORMALIZATION
from dnncore.problem.drivers.inner_product import INNER_PRODUCT
from dnncore.problem.drivers.layer_normalization import LAYER_NORMALIZATION
from dnncore.problem.drivers.lrn import LRN
from dnncore.problem.drivers.matmul import MATMUL
from dnncore.problem.drivers.pooling import POOLING
from dnncore.problem.drivers.prelu import PRELU
from dnncore.problem.drivers.reduction import REDUCTION
from dnncore.problem.drivers.reorder import REORDER
from dnncore.problem.drivers.resampling import RESAMPLING
from dnncore.problem.drivers.rnn import RNN
from dnncore.problem.drivers.shuffle import SHUFFLE
from dnncore.problem.drivers.softmax import SOFTMAX
from dnncore.problem.drivers.sum import SUM

__all__ = ["DRIVERS", "driver_of"]

_ALL = (
    CONVOLUTION,
    DECONVOLUTION,
    INNER_PRODUCT,
    MATMUL,
    ELTWISE,
    PRELU,
    POOLING,
    LRN,
    SDPA,
    BATCH_NORMALIZATION,
    LAYER_NORMALIZATION,
    GROUP_NORMALIZATION,
    SOFTMAX,
    BINARY,
    SUM,
    REDUCTION,
    REORDER,
    RNN,
    CONCAT,
    SHUFFLE,
    RESAMPLING,
)
DRIVERS: dict[str, Driver] = {driver.name: driver for driver in _ALL}
_DRIVER_OF = {kind: driver for driver in DRIVERS.values() for kind in driver.operations}


def driver_of(kind: type[Operation]) -> Driver:
    """Return the driver that writes operations of this type."""
    return _DRIVER_OF[kind]
