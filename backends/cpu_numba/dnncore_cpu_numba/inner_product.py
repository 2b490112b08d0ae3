"""Inner product: the implementations of its three directions, best first.

Each direction is a matrix product. A tensor (N, IC, [[D,] H,] W) is a matrix with one row per
sample. Its columns are the elements of a sample in memory order, which may be any dense order.
Weights use the same order. The order is written as a tag without the first dim: "bcd", "cdb" or
"Bcd16b".
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from dnncore.backend import Attributes, InnerProduct, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.isa import BEST, DOT_ISAS, ISAS
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.gemm import ranges
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.decompression import Values
from dnncore_cpu_numba.gemm.factors import SMALL, is_decompressed, prepare, values_of
from dnncore_cpu_numba.gemm.few_rows import MOST_ROWS, FewRows
from dnncore_cpu_numba.gemm.plan import INTEGERS, PlannedImplementation, ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, transposed
from dnncore_cpu_numba.gemm.quantization import (
    ATTRIBUTES,
    FACTORS,
    Terms,
    refuse_varying,
)
from dnncore_cpu_numba.gemm.tiling import utilisation
from dnncore_cpu_numba.runtime.program import Table
from dnncore_cpu_numba.runtime.tensor import Tensor


class _BrgemmInnerProduct(PlannedImplementation[InnerProduct]):
    """Base of the directions: formats, and the views of tensors as matrices."""

    data_types: Collection[str] = (*FLOATS, "f64")

    def resolved(self, op: InnerProduct) -> InnerProduct:
        """Resolve activations to row-major, and weights to vectors of output channels."""
        op = op.resolve_any(**{op.SRC: self._src_tag(op.src_role), op.DST: "ab"})
        tag = self._weights_tag(op.src_role, self.arithmetic(op))
        formats = {op.WEIGHTS: "a" + _order(op.src_role) if is_decompressed(op) else tag}
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        return op.resolve_any(**formats)

    def utilisation(self, op: InnerProduct) -> float:
        """Return the better utilisation of the product and of the transposed product."""
        rows, columns = _matrix_dims(op.result)
        arithmetic = self.arithmetic(op)
        isa = arithmetic.vectors_of(self.isa)
        best = max(utilisation(isa, rows, columns), utilisation(isa, columns, rows))
        return arithmetic.speed(self.isa) * best

    def arithmetic(self, op: InnerProduct) -> Arithmetic:
        """Return products of groups of k if the instruction set has them."""
        (_, a), (_, b), *_ = op.tensors()
        return Arithmetic.of(a, b, self.isa)

    def kept(self, op: InnerProduct) -> tuple[str, ...]:
        """Return the result and bias, and the factors that are not converted to f32."""
        factors = [argument.name for argument, _ in op.tensors()[:2]]
        bias = ("bias", "diff_bias") if op.data_type == "f64" else ("bias",)
        if self.arithmetic(op).converts:
            factors = factors[1:] if is_decompressed(op) else []
        return (op.result_name, *bias, *factors)

    def _src_tag(self, desc: MemoryDesc) -> str:
        """Return the tag of row-major activations."""
        return "abcde"[: desc.ndims]

    def _lanes(self, arithmetic: Arithmetic) -> int:
        """Return the number of groups in a vector."""
        return arithmetic.vectors_of(self.isa).lanes

    def _weights_tag(self, src: MemoryDesc, arithmetic: Arithmetic) -> str:
        """Return a tag with vectors of output channels: panels, if these are the columns."""
        return f"A{_order(src)}{self._lanes(arithmetic)}a"

    def _in_vectors(self, tensor: Tensor) -> Tensor:
        """Return weights of format `_weights_tag` as a matrix (OC, IC * spatial).

        The vectors are of output channels or of input channels.
        """
        (dim, lanes), dims = tensor.desc.inner_blocks[-1], _matrix_dims(tensor.desc)
        tag = f"Ba{lanes}b" if dim else f"Ab{lanes}a"
        return tensor.seen_as(MemoryDesc(dims, tensor.desc.data_type, tag))

    def _operands(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> list[Tensor]:
        """Return operands as matrices for a result with spatial dims.

        An operand that is broadcast along only some dims of a sample is first repeated.
        """
        operands, order = [], _order(op.src_role)
        for operand in plan.operands(attr):
            rows, *rest = operand.desc.dims
            if math.prod(rest) == 1 and operand.desc.is_plain:
                operands.append(operand.seen_as(operand.desc.reshape((rows, 1))))
                continue
            full = MemoryDesc((rows, *op.result.dims[1:]), "f32", "a" + order)
            serves = operand.desc.dims == full.dims and _has_rows(operand.desc, order)
            operands.append(_rows(plan.read(operand, None if serves else full, expand=True)))
        return operands


class BrgemmInnerProductForward(_BrgemmInnerProduct):
    """dst = src * transposed weights."""

    data_types: Collection[str] = (*FLOATS, "f64", *INTEGERS, *SMALL)
    attributes = (*ATTRIBUTES, "groups")

    def refused(self, op: InnerProduct, attr: Attributes) -> Refused | None:
        """Refuse scales and zero points that vary along K."""
        return super().refused(op, attr) or refuse_varying(op, attr, self.arithmetic(op).group)

    def _weights_tag(self, src: MemoryDesc, arithmetic: Arithmetic) -> str:
        """Return panels of groups along the innermost dim of a sample if groups are whole."""
        order, group = _order(src), arithmetic.group
        if group == 1:
            return super()._weights_tag(src, arithmetic)
        last = order[-1]
        if not order.isalpha() or (src.ndims > 2 and src.dims["abcde".index(last)] % group):
            return "a" + order
        return f"A{order[:-1]}{last.upper()}{self.isa.lanes}a{group}{last}"

    def plan(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> None:
        """Append the steps."""
        arithmetic = self.arithmetic(op)
        few = self._few_rows(plan, op, attr)
        if few is not None and few.serves:
            few.append_to(plan)
            return
        scales = prepare(plan, op, attr, arithmetic)
        weights = plan.tensors["weights"]
        if arithmetic.group > 1:
            weights = self._in_groups(plan, weights, op.src_role, arithmetic)
        elif weights.desc.ndims > 2 or weights.desc.inner_blocks:
            tag = self._weights_tag(op.src_role, arithmetic)
            weights = self._in_vectors(plan.read(weights, tag))
        zeros = {name: plan.tensors.get(f"{name}_zero_points") for name in ("src", "weights")}
        MatrixProduct(
            isa=self.isa, a=_read_rows(plan, plan.tensors["src"], _order(op.src_role)),
            b=transposed(weights), c=plan.tensors["dst"],
            terms=Terms.of(plan, op, attr, _as_dst, scales=scales), arithmetic=arithmetic,
            a_zero=zeros["src"] and _as_dst("src_zero_points", zeros["src"]),
            b_zero=zeros["weights"] and _as_dst("weights_zero_points", zeros["weights"]),
        ).append_to(plan)  # fmt: skip

    def _few_rows(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> FewRows | None:
        """Return the product that decompresses weights in registers.

        None if weights are not decompressed, if their rows are not contiguous, or if src has too
        many rows.
        """
        weights, order = plan.tensors["weights"], _order(op.src_role)
        if op.data_type not in FLOATS or not is_decompressed(op):
            return None
        if op.src_role.dims[0] > MOST_ROWS or not _has_rows(weights.desc, order):
            return None
        values = [values_of(plan, attr, kind, "weights") for kind in ("zero_points", "scales")]
        if weights.desc.ndims > 2 and any(own and max(own.tensor.desc.dims[1:]) > 1
                                          for own in values):  # fmt: skip
            return None
        zero, scale = (own and _columns_of(own) for own in values)
        return FewRows(
            isa=self.isa, a=_read_rows(plan, plan.tensors["src"], order),
            b=transposed(_rows(weights)), c=plan.tensors["dst"],
            terms=Terms.of(plan, op, attr, _as_dst, scales=("src",)), zero=zero, scale=scale,
        )  # fmt: skip

    def _in_groups(
        self, plan: ProgramPlan, weights: Tensor, src: MemoryDesc, arithmetic: Arithmetic
    ) -> Tensor:
        """Return weights as a matrix (OC, IC * spatial): panels, or rows that are packed later."""
        tag, group = self._weights_tag(src, arithmetic), arithmetic.group
        if not weights.desc.matches(tag) or tag.isalpha():
            return _read_rows(plan, weights, _order(src))
        panels = MemoryDesc(
            _matrix_dims(weights.desc), weights.desc.data_type, f"AB{self.isa.lanes}a{group}b"
        )
        return weights.seen_as(panels)


class GemmInnerProductForward(ranges.RangedProduct[InnerProduct], BrgemmInnerProductForward):
    """Products of s32."""

    def plan(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> None:
        """Append the steps."""
        prepare(plan, op, attr, self.arithmetic(op))
        order = "bcde"[: op.src_role.ndims - 1]
        src, weights = (_read_rows(plan, plan.tensors[name], order) for name in FACTORS)
        product = MatrixProduct(
            isa=self.isa, a=src, b=transposed(weights), c=plan.tensors["dst"],
            terms=Terms.of(plan, op, attr, _as_dst, scales=()), arithmetic=self.arithmetic(op),
        )  # fmt: skip
        scales = [plan.tensors.get(f"{name}_scales") for name in FACTORS]
        src_scale, weights_scale = (own and _rows(own) for own in scales)
        weights_scale = weights_scale and transposed(weights_scale)
        ranges.append_ranges(plan, product, src_scale, weights_scale)


class BrgemmInnerProductBackwardData(_BrgemmInnerProduct):
    """diff_src = diff_dst * weights. Weights become vectors of input channels if possible."""

    def _src_tag(self, desc: MemoryDesc) -> str:
        """Return channels last if channels fill vectors, otherwise row-major."""
        letters = super()._src_tag(desc)
        fills = desc.dims[1] % self.isa.lanes == 0
        return f"a{letters[2:]}b" if fills else letters

    def _weights_tag(self, src: MemoryDesc, arithmetic: Arithmetic) -> str:
        """Return a tag with vectors of input channels if possible: panels of this product.

        With groups of output channels, this is only possible without spatial dims.
        """
        if (group := arithmetic.group) > 1:
            return f"BA{self.isa.lanes}b{group}a" if src.ndims == 2 else f"a{_order(src)}"
        lanes = self._lanes(arithmetic)
        order, vector = _order(src), f"{lanes}b"
        if order.endswith(vector):
            return f"{order.removesuffix(vector)}a{vector}"
        whole = src.ndims == 2 or src.dims[1] % lanes == 0
        if "B" not in order and order.endswith("b") and whole:
            return f"{order.replace('b', 'B')}a{vector}"
        return super()._weights_tag(src, arithmetic)

    def plan(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> None:
        """Append the steps."""
        order = _order(op.src_role)
        weights = plan.tensors["weights"]
        arithmetic = self.arithmetic(op)
        is_panelled = op.weights_role.matches(self._weights_tag(op.src_role, arithmetic))
        if is_panelled and arithmetic.group == 1:
            weights = self._in_vectors(weights)
        elif not (is_panelled and op.weights_role.inner_blocks):
            weights = _read_rows(plan, weights, order)
        MatrixProduct(
            isa=self.isa, a=plan.tensors["diff_dst"], b=weights,
            c=_write_rows(plan, plan.tensors["diff_src"], order, attr),
            terms=Terms.of(plan, op, attr, operands=self._operands(plan, op, attr)),
            arithmetic=arithmetic,
        ).append_to(plan)  # fmt: skip


class BrgemmInnerProductBackwardWeights(_BrgemmInnerProduct):
    """diff_weights = transposed diff_dst * src; diff_bias = ones * diff_dst."""

    def plan(self, plan: ProgramPlan, op: InnerProduct, attr: Attributes) -> None:
        """Append the steps."""
        order = _order(op.src_role)
        weights = plan.tensors["diff_weights"]
        arithmetic = self.arithmetic(op)
        if op.weights_role.matches(self._weights_tag(op.src_role, arithmetic)):
            weights = self._in_vectors(weights)
        else:
            weights = _write_rows(plan, weights, order, attr)
        diff_dst = plan.tensors["diff_dst"]
        MatrixProduct(
            isa=self.isa, a=transposed(diff_dst),
            b=_read_rows(plan, plan.tensors["src"], order), c=weights,
            terms=Terms.of(plan, op, attr, operands=self._operands(plan, op, attr)),
            arithmetic=arithmetic,
        ).append_to(plan)  # fmt: skip
        if op.bias_role is not None:
            batch = op.dst_role.dims[0]
            ones = _ones(batch, diff_dst.desc.data_type)
            bias = plan.tensors["diff_bias"]
            bias = bias.seen_as(bias.desc.reshape((1, *bias.desc.dims)))
            MatrixProduct(
                isa=self.isa, a=ones, b=diff_dst, c=bias, arithmetic=arithmetic
            ).append_to(plan)  # fmt: skip


def _as_dst(name: str, tensor: Tensor) -> Tensor:
    """Return an argument of the epilogue as a matrix of one row. Matrices for dst are kept."""
    if tensor.desc.ndims == 2 and name.startswith("dst"):
        return tensor
    return tensor.seen_as(tensor.desc.reshape((1, tensor.desc.nelems)))


def _ones(count: int, data_type: str) -> Tensor:
    """Return a row of ones of type f64, f32 or bf16."""
    values = np.ones(count, np.float64 if data_type == "f64" else np.float32)
    if data_type == "bf16":  # the upper half of an f32
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    return Tensor(Table(values), MemoryDesc((1, count), data_type))


def _columns_of(values: Values) -> Values:
    """Return zero points or scales of weights as values of the transposed matrix."""
    desc = values.tensor.desc
    matrix = values.tensor.seen_as(desc.reshape(_matrix_dims(desc)))
    groups = values.groups if desc.ndims == 2 else (values.groups[0], 1)
    return Values(transposed(matrix), groups[::-1])


def _order(desc: MemoryDesc) -> str:
    """Return the order of a sample's elements in memory; row-major if they are not dense.

    If samples are blocked, "A...16a", elements are not dense.
    """
    plain = "bcde"[: desc.ndims - 1]
    if desc.tag is None or "A" in desc.tag:
        return plain
    order = desc.tag.replace("a", "", 1)
    return order if _has_rows(desc, order) else plain


def _has_rows(desc: MemoryDesc, order: str) -> bool:
    """Whether the elements of each index of dim 0 are dense and in this order."""
    dense = desc.with_format("a" + order)
    steps = zip(desc.dims[1:], desc.strides[1:], dense.strides[1:], strict=True)
    same = all(size == 1 or given == wanted for size, given, wanted in steps)
    return same and desc.inner_blocks == dense.inner_blocks and not dense.has_padding


def _read_rows(plan: ProgramPlan, tensor: Tensor, order: str) -> Tensor:
    """Return a tensor as a matrix. It is copied if its elements are in another order."""
    wanted = None if _has_rows(tensor.desc, order) else tensor.desc.with_format("a" + order)
    return _rows(plan.read(tensor, wanted))


def _write_rows(plan: ProgramPlan, tensor: Tensor, order: str, attr: Attributes) -> Tensor:
    wanted = None if _has_rows(tensor.desc, order) else tensor.desc.with_format("a" + order)
    return _rows(plan.write(tensor, wanted, old=attr.reads_dst))


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor of dense rows as a matrix."""
    rows, columns = _matrix_dims(tensor.desc)
    step = tensor.desc.strides[0] if rows > 1 else columns
    return tensor.seen_as(MemoryDesc((rows, columns), tensor.desc.data_type, strides=(step, 1)))


def _matrix_dims(desc: MemoryDesc) -> tuple[int, int]:
    return desc.dims[0], math.prod(desc.dims[1:])


FORWARD = (
    *(BrgemmInnerProductForward(isa) for isa in (*DOT_ISAS, *ISAS)), GemmInnerProductForward(BEST),
)  # fmt: skip
BACKWARD_DATA = tuple(BrgemmInnerProductBackwardData(isa) for isa in (*DOT_ISAS, *ISAS))
BACKWARD_WEIGHTS = tuple(BrgemmInnerProductBackwardWeights(isa) for isa in (*DOT_ISAS, *ISAS))
