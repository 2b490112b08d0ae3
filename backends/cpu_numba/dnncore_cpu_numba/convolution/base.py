"""The base of all implementations of convolution: the algorithm and the formats."""

from __future__ import annotations

import math
from typing import ClassVar

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.convolution.image import spatial_tag
from dnncore_cpu_numba.gemm.plan import PlannedImplementation
from dnncore_cpu_numba.runtime.tensor import refuse_long

MOST_ENTRIES = 1 << 18  # most entries of tables; creating them takes about a second
MOST_TAPS = 1 << 14  # most taps; each is an entry of tables and of a list


class PlannedConvolution(PlannedImplementation[Convolution]):
    """Resolves formats. Activations are plain unless a subclass selects other formats."""

    ALGORITHM: ClassVar[str] = "direct"

    def refused(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse other algorithms and very large tables."""
        if math.prod(op.grouped_weights[3:]) > MOST_TAPS:
            return Refused("shape", f"takes up to {MOST_TAPS} taps; got {op.grouped_weights[3:]}")
        if refusal := refuse_long(*op.src_role.dims[2:], *op.dst_role.dims[2:]):
            return refusal
        entries = self.table_entries(Geometry.of(op))
        if entries > MOST_ENTRIES:
            return Refused("shape", f"has tables of up to {MOST_ENTRIES} entries; got {entries}")
        if op.algorithm not in (self.ALGORITHM, "auto"):
            return Refused(
                "algorithm",
                f"computes by algorithm {self.ALGORITHM}; got {op.algorithm};"
                f" pass algorithm={self.ALGORITHM!r} or 'auto'",
            )
        return super().refused(op, attr)

    def table_entries(self, _g: Geometry) -> int:
        """Return the size of the tables that grow with the problem.

        The unit is an entry that takes a few microseconds to create.
        """
        return 0

    def resolved(self, op: Convolution) -> Convolution:
        """Resolve the algorithm, the formats of activations and bias, then those of weights."""
        src, dst = self.activations(Geometry.of(op), spatial_tag(op.src_role.ndims))
        formats = {op.SRC: src, op.DST: dst}
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        op = op.resolve_auto(self.ALGORITHM).resolve_any(**formats)
        return op.resolve_any(**{op.WEIGHTS: self.weights_format(op)})

    def activations(self, _g: Geometry, spatial: str) -> tuple[str, str]:
        """Return the tags of src and dst. spatial: the letters of the spatial dims."""
        return f"nc{spatial}", f"nc{spatial}"

    def weights_format(self, op: Convolution) -> str | MemoryDesc:
        """Return the format of weights. The formats of activations in `op` are resolved."""
        raise NotImplementedError


def weights_tag(op: Convolution, channels: str, inner: str = "") -> str:
    """Return a tag of weights: groups if any, then channels and spatial dims, then blocks."""
    ndims = op.src_role.ndims
    grouped = "g" * (op.weights_role.ndims - ndims)
    return f"{grouped}{channels}{spatial_tag(ndims)}{inner}"
