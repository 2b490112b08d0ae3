"""Matrix multiplication: a batch of strided products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dnncore.backend import Attributes, MatMul, MemoryDesc
from dnncore_opencl.codegen.vectors import BYTES
from dnncore_opencl.gemm.families import FAMILIES
from dnncore_opencl.gemm.implementation import GemmImplementation, in_lines
from dnncore_opencl.gemm.product import Gemm, Strides, broadcast_strides, chain, matrix


class MatMulImplementation(GemmImplementation[MatMul]):
    """Matmul: src (..., M, K) is a, weights (..., K, N) is b. Batch dims that merge are joined."""

    def formats(self, op: MatMul) -> dict[str, str]:
        """Store bytes contiguously along K if the family requires it."""
        tags = super().formats(op)
        if op.src.data_type in BYTES and self.family.bytes_along_k:
            tag = tags["weights"]
            tags["weights"] = tag[:-2] + tag[:-3:-1]
        return tags

    def aligned(self, op: MatMul, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Store bytes contiguously along K, in lines that begin at multiples of 16 bytes."""
        if op.src.data_type not in BYTES or name not in ("src", "weights"):
            return super().aligned(op, name, desc)
        order = [*range(desc.ndims)]
        if name == "weights":
            order[-2:] = reversed(order[-2:])
        return in_lines(desc, order)

    def gemms(self, op: MatMul, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        groups = _batch_dims(op, attr)
        rows, depth, columns = *op.src.dims[-2:], op.weights.dims[-1]
        last = len(op.ARGUMENTS) - (op.bias is None) - 1

        def batch(strides: Sequence[int]) -> tuple[int, ...]:
            return tuple(strides[group[-1]] for group in groups)

        def result(strides: Sequence[int]) -> Strides:
            return Strides(batch=batch(strides), m=strides[-2], n=(strides[-1],))

        def of_src(strides: Sequence[int]) -> Strides:
            return Strides(batch=batch(strides), m=strides[-2], n=(0,))

        def of_weights(strides: Sequence[int]) -> Strides:
            return Strides(batch=batch(strides), n=(strides[-1],), k=(strides[-2],))

        src, weights = broadcast_strides(op.src), broadcast_strides(op.weights)
        yield Gemm(
            batch=tuple(math.prod(op.dst.dims[dim] for dim in group) for group in groups),
            m=rows,
            n=(columns,),
            k=(depth,),
            a=matrix(0, op.src, Strides(batch=batch(src), m=src[-2], k=(src[-1],))),
            b=matrix(
                1, op.weights, Strides(batch=batch(weights), k=(weights[-2],), n=(weights[-1],))
            ),
            c=matrix(last, op.dst, result(op.dst.strides)),
            **chain(op, attr, result, result, {"src": of_src, "weights": of_weights}),
        )


def _batch_dims(op: MatMul, attr: Attributes) -> list[list[int]]:
    """Group the batch dims larger than 1 into runs that merge into one dim in all operands."""
    extra = [desc for _, desc in attr.arguments(op) if desc.ndims == op.dst.ndims]  # not seeds
    operands = [op.src, op.weights, op.dst, *extra]
    if op.bias is not None:
        operands.append(op.bias)
    groups: list[list[int]] = []
    for dim, size in enumerate(op.dst.dims[:-2]):
        if size == 1:
            continue
        if groups and all(_merges(desc, groups[-1][-1], dim, size) for desc in operands):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _merges(desc: MemoryDesc, outer: int, inner: int, size: int) -> bool:
    strides = broadcast_strides(desc)
    return strides[outer] == strides[inner] * size


TABLE = tuple(MatMulImplementation(family) for family in FAMILIES)
