"""Inner product in three directions, as products over the flattened dims of images.

forward           dst[n, o] = sum over (i, y, x) of src[n, (i, y, x)] * weights[(i, y, x), o]
backward data     diff_src[n, (i, y, x)] = sum over o of diff_dst[n, o] * weights[o, (i, y, x)]
backward weights  diff_weights[o, (i, y, x)] = sum over n of diff_dst[o, n] * src[n, (i, y, x)]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dnncore import backend as core
from dnncore.backend import Attributes
from dnncore_opencl.codegen.vectors import BYTES
from dnncore_opencl.gemm.families import FAMILIES
from dnncore_opencl.gemm.implementation import GemmImplementation, in_lines
from dnncore_opencl.gemm.product import Gemm, Strides, chain, matrix
from dnncore_opencl.inner_product.direct import DirectBackwardData, DirectForward


class Forward(GemmImplementation[core.InnerProductForward]):
    """m: images; n: output channels; k: (input channel, pixels)."""

    def formats(self, op: core.InnerProductForward) -> dict[str, str]:
        """Put output channels, the columns of weights, last if the family prefers this."""
        tags = super().formats(op)
        if self.family.columns_last:
            rows = tags["weights"]
            tags["weights"] = rows[1:] + rows[0]
        return tags

    def aligned(
        self, op: core.InnerProductForward, name: str, desc: core.MemoryDesc
    ) -> core.MemoryDesc:
        """Store rows of bytes so that they begin at multiples of 16 bytes."""
        if op.src.data_type not in BYTES or name not in ("src", "weights"):
            return super().aligned(op, name, desc)
        return in_lines(desc, range(desc.ndims), desc.ndims - 1)

    def gemms(self, op: core.InnerProductForward, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        x, w = op.src.strides, op.weights.strides
        last = len(op.tensors()) - 1

        def bias(strides: Sequence[int]) -> Strides:
            return Strides(n=(strides[0],))

        def of_weights(strides: Sequence[int]) -> Strides:
            return Strides(n=(strides[0],), k=tuple(strides[1:]))

        yield Gemm(
            m=op.src.dims[0],
            n=(op.weights.dims[0],),
            k=op.src.dims[1:],
            a=matrix(0, op.src, Strides(m=x[0], k=x[1:])),
            b=matrix(1, op.weights, Strides(n=(w[0],), k=w[1:])),
            c=matrix(last, op.dst, _rows(op.dst.strides)),
            **chain(op, attr, _rows, bias, {"src": _rows, "weights": of_weights}),
        )


class BackwardData(GemmImplementation[core.InnerProductBackwardData]):
    """m: images; n: (input channel, pixels); k: output channels."""

    def gemms(self, op: core.InnerProductBackwardData, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        y, w = op.diff_dst.strides, op.weights.strides
        yield Gemm(
            m=op.diff_src.dims[0],
            n=op.diff_src.dims[1:],
            k=(op.weights.dims[0],),
            a=matrix(0, op.diff_dst, Strides(m=y[0], k=(y[1],))),
            b=matrix(1, op.weights, Strides(n=w[1:], k=(w[0],))),
            c=matrix(2, op.diff_src, _rows(op.diff_src.strides)),
            **chain(op, attr, _rows),
        )


class BackwardWeights(GemmImplementation[core.InnerProductBackwardWeights]):
    """m: output channels; n: (input channel, pixels); k: images."""

    def gemms(self, op: core.InnerProductBackwardWeights, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        x, y = op.src.strides, op.diff_dst.strides
        yield Gemm(
            m=op.diff_weights.dims[0],
            n=op.diff_weights.dims[1:],
            k=(op.src.dims[0],),
            a=matrix(1, op.diff_dst, Strides(m=y[1], k=(y[0],))),
            b=matrix(0, op.src, Strides(n=x[1:], k=(x[0],))),
            c=matrix(2, op.diff_weights, _rows(op.diff_weights.strides)),
            **chain(op, attr, _rows),
        )


def _rows(strides: Sequence[int]) -> Strides:
    """Return the strides of a tensor whose first dim is m and whose other dims are n."""
    return Strides(m=strides[0], n=tuple(strides[1:]))


FORWARD = (DirectForward(), *(Forward(family) for family in FAMILIES))
BACKWARD_DATA = (DirectBackwardData(), *(BackwardData(family) for family in FAMILIES))
BACKWARD_WEIGHTS = tuple(BackwardWeights(family) for family in FAMILIES)
