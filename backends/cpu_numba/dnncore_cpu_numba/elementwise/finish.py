"""The stages of a chain between a result and its store.

dropout, post-ops, x * (1 / dst scale), x + dst zero point, stochastic rounding
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dnncore.backend import Attributes, MemoryDesc, Operation
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import MANTISSA
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.noise import noise, spread
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary, stages_of
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor

POST_OP_WORDS = ("operand_types", "sum_zero_point")
"""The attributes of post-ops."""

WORDS = (*POST_OP_WORDS, "scales", "dropout", "stochastic_rounding")
"""The attributes that a chain supports."""


@dataclass
class Finish:
    """Stages, and the tensors that they read.

    tensors: the tensors of these stages; in the chain, they follow the other tensors. mask: the
    tensors of the chain that writes the dropout mask, which runs first; () without dropout. nbytes:
    of the scratchpad.
    """

    dims: Sequence[int]
    stages: list[Stage] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    mask: Sequence[Tensor] = ()
    nbytes: int = 0

    def before(self) -> list[Step]:
        """Return the steps that precede the chain."""
        if not self.mask:
            return []
        return chain_steps(self.dims, self.mask, [Stage(algorithms.KEEP, operand=4)])


def is_finished(op: Operation, attr: Attributes) -> bool:
    """Whether any stage follows the result."""
    name = op.result_name
    random = attr.dropout is not None or attr.rounding == "stochastic"
    return bool(attr.post_ops) or name in attr.scales or name in attr.zero_points or random


def finish(
    op: Operation, attr: Attributes, named: Mapping[str, Tensor], first: int, place: int = 0,
    *, stepwise: bool = False,
) -> Finish:  # fmt: skip
    """Return the stages after the result of an operation.

    named: the tensors of the operation and of its attributes. first: the number of the first tensor
    of `Finish.tensors`. place: the offset of the free part of the scratchpad. stepwise: as in
    `Stage`.
    """
    dims = op.result.dims
    found = Finish(dims)

    def number(*tensors: Tensor) -> int:
        found.tensors += tensors
        return first + len(found.tensors) - len(tensors)

    if attr.dropout:
        _add_dropout(found, named, number, place)
    operands = [named[name] for name, _ in attr.operands()]
    found.stages += stages_of(attr.post_ops, number(*operands))
    name = op.result_name
    if name in attr.scales:
        scale = number(named[f"{name}_scales"])
        found.stages.append(Stage(algorithms.DESCALE, operand=scale))
    if name in attr.zero_points:
        found.stages.append(binary("add", number(named[f"{name}_zero_points"])))
    if attr.rounding == "stochastic":
        numbers = number(*noise(dims, named["rounding_seed"]))
        bits = 23 - MANTISSA[op.result.data_type]
        found.stages.append(Stage(algorithms.ROUND_AT_RANDOM, bits, operand=numbers))
    if stepwise:
        found.stages = [replace(stage, stepwise=True) for stage in found.stages]
    return found


def _add_dropout(
    found: Finish, named: Mapping[str, Tensor], number: Callable[..., int], place: int
) -> None:
    mask = named.get("dropout_mask")
    if mask is None:
        mask = Tensor(Scratch(place), MemoryDesc(found.dims, "u8"))
        found.nbytes = -(-mask.desc.nbytes // LINE) * LINE
    probability = spread(named["dropout_probability"], found.dims)
    numbers = noise(found.dims, named["dropout_seed"], named.get("dropout_offset"))
    found.mask = (mask, *numbers, probability)
    operand = number(mask, probability)
    found.stages.append(Stage(algorithms.DROP, operand=operand, condition=operand + 1))
