"""Prepare the factors of products: decompression, zero points and scales.

Weights with fewer bits than src are decompressed, and so are float factors whose scales vary along
K. Integers whose zero points vary along K are converted to s32 after subtracting the zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.backend import Attributes, Operation
from dnncore_cpu_numba.codegen.type_conversion import F8, INTEGERS, PACKED
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.decompression import Values, decompressed
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.quantization import FACTORS, WORDS, varying
from dnncore_cpu_numba.runtime.tensor import Tensor

SMALL = (*F8, *PACKED)  # types that only weights have


def is_decompressed(op: Operation) -> bool:
    """Whether weights have fewer bits than src, or 4 bits."""
    own = op.tensors()[1][1].data_type
    return own in SMALL or (own in INTEGERS and op.data_type not in INTEGERS)


def prepare(
    plan: ProgramPlan, op: Operation, attr: Attributes, arithmetic: Arithmetic
) -> Sequence[str]:
    """Replace a plan's factors, zero points and scales by the tensors that the product reads.

    Returns the names of the factors whose scales the epilogue applies.
    """
    whole = arithmetic.a == "s32"
    moves = [name for kind, name in varying(op, attr) if kind == "scales" and not whole]
    left = set(FACTORS)
    if op.data_type not in INTEGERS:
        moves += ["weights"] if is_decompressed(op) else []
        for name in dict.fromkeys(moves):
            zero, scale = (values_of(plan, attr, kind, name) for kind in ("zero_points", "scales"))
            own = decompressed(plan, plan.tensors[name], arithmetic.real, zero, scale)
            plan.tensors[name] = own
            left.remove(name)
    elif whole:
        for name in FACTORS:
            zero = values_of(plan, attr, "zero_points", name)
            plan.tensors[name] = decompressed(plan, plan.tensors[name], "s32", zero)
    elif is_decompressed(op):
        plan.tensors["weights"] = decompressed(plan, plan.tensors["weights"], "s8")
    for kind in WORDS:
        for name in getattr(attr, kind):
            if name in left or name == op.result_name:
                _spread(plan, op, attr, kind, name)
    return [name for name in FACTORS if name in left]


def values_of(plan: ProgramPlan, attr: Attributes, kind: str, name: str) -> Values | None:
    """Return the scales or zero points of a tensor, None without them."""
    tensor = plan.tensors.get(f"{name}_{kind}")
    if tensor is None:
        return None
    return Values(tensor, _groups(attr, kind, name, tensor))


def _groups(attr: Attributes, kind: str, name: str, tensor: Tensor) -> list[int]:
    """Return the group sizes along all dims; 1 along dims with one value for all elements."""
    groups = getattr(attr, kind)[name].groups
    sizes = [*[1] * (tensor.desc.ndims - len(groups)), *groups]
    return [1 if dim == 1 else size for dim, size in zip(tensor.desc.dims, sizes, strict=True)]


def _spread(plan: ProgramPlan, op: Operation, attr: Attributes, kind: str, name: str) -> None:
    """Expand values of groups to one value per row or column. Groups along K remain."""
    tensor = plan.tensors[f"{name}_{kind}"]
    groups = _groups(attr, kind, name, tensor)
    if op.KIND == "matmul":
        groups[-1 if name == "src" else -2] = 1
    else:
        groups[1:] = [1] * (len(groups) - 1)
    if max(groups, default=1) > 1:
        target = "f32" if kind == "scales" else "s32"
        plan.tensors[f"{name}_{kind}"] = decompressed(plan, tensor, target, repeats=groups)
