"""The stages of a chain: algorithms and post-ops, with the numbers of the tensors that they read.

`elementwise/tiles.py` computes them for a tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import PostOp, Refused
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.tiles import DST, NOTHING


class UnknownAlgorithm(LookupError):
    """An algorithm without a stage in this backend."""


@dataclass(frozen=True)
class Stage:
    """One step of a chain.

    operand, condition: numbers of tensors. factor: the number of a tensor that first multiplies the
    operand. stepwise: in a chain with buffers of f64, this stage computes with values rounded to
    f32.
    """

    task: Task
    alpha: float = 0.0
    beta: float = 0.0
    operand: int = NOTHING
    condition: int = NOTHING
    factor: int = NOTHING
    stepwise: bool = False

    @property
    def cost(self) -> float:
        """The measured time of the stage divided by the time of reading and writing memory."""
        return algorithms.COSTS.get(self.task, 0.0)

    def row(
        self, *, streamed: bool = False, data_type: str = "f32", splat: bool = False
    ) -> dict[str, Any]:
        """Return the values of the `STAGE` record. Compiles the function.

        streamed: also compile the variant with non-temporal stores. data_type: of the tensors; see
        `computes`. splat: the operand is one value.
        """
        task = self._typed(self.task, data_type)
        task = algorithms.SPLATS[task] if splat else task
        wide = np.array([self.alpha, self.beta], np.float64).view(np.int64)
        multiply = 0
        if self.factor != NOTHING:
            multiply = self._typed(algorithms.BINARY["mul"], data_type).address
        return {
            "function": task.address, "alpha": self.alpha, "beta": self.beta,
            "wide_alpha": wide[0], "wide_beta": wide[1],
            "operand": self.operand, "condition": self.condition,
            "streamed": algorithms.STREAMED[task].address if streamed else 0,
            "factor": self.factor, "multiply": multiply,
        }  # fmt: skip

    def _typed(self, task: Task, data_type: str) -> Task:
        if data_type == "f32":
            return task
        steps = data_type == algorithms.WIDE and self.stepwise
        return algorithms.TYPED[task, algorithms.STEPS_OF_F64 if steps else data_type]

    def computes(self, data_type: str) -> bool:
        """Whether there is a function for tensors of this type."""
        return data_type == "f32" or (self.task, data_type) in algorithms.TYPED

    def takes_splat(self, data_type: str) -> bool:
        """Whether there is a function for tensors of this type with an operand of one value."""
        return self.computes(data_type) and self._typed(self.task, data_type) in algorithms.SPLATS


def eltwise(algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> Stage:
    """Return the stage x = algorithm(x). Raises `UnknownAlgorithm`."""
    if algorithm == "relu" and alpha == 0.0:
        algorithm = "relu_0"
    if algorithm == "pow" and beta in algorithms.POWERS:
        return Stage(algorithms.POWERS[beta], alpha)
    return Stage(_task(algorithms.ELTWISE, algorithm), alpha, beta)


def gradient(algorithm: str, alpha: float, beta: float, operand: int, *, of_dst: bool) -> Stage:
    """Return the stage x = operand * derivative of the algorithm. Raises `UnknownAlgorithm`.

    of_dst: x is the value of the algorithm; otherwise its argument.
    """
    if algorithm == "pow" and beta != 0.0 and beta - 1.0 in algorithms.POWER_GRADIENTS:
        return Stage(algorithms.POWER_GRADIENTS[beta - 1.0], alpha * beta, operand=operand)
    table = algorithms.SLOPES_OF_DST if of_dst else algorithms.SLOPES
    return Stage(_task(table, algorithm), alpha, beta, operand)


def add(operand: int, scale: float = 1.0, of_x: float = 1.0) -> Stage:
    """Return the stage x = of_x * x + scale * operand."""
    return Stage(algorithms.ADD_SCALED, scale, of_x, operand)


def binary(algorithm: str, operand: int) -> Stage:
    """Return the stage x = algorithm(x, operand). Raises `UnknownAlgorithm`.

    For `select`, the tensor after the operand is the condition.
    """
    if algorithm == "select":
        return Stage(algorithms.SELECT, operand=operand, condition=operand + 1)
    return Stage(_task(algorithms.BINARY, algorithm), operand=operand)


def stages_of(post_ops: Iterable[PostOp], first: int) -> list[Stage]:
    """Return the stages of a post-op chain. Its operands are tensors `first`, `first` + 1, ..."""
    stages = []
    for post_op in post_ops:
        stages.append(_stage_of(post_op, first))
        first += len(post_op.operands)
    return stages


def _stage_of(post_op: PostOp, operand: int) -> Stage:
    match post_op.kind:
        case "eltwise":
            return eltwise(post_op.algorithm, post_op.alpha, post_op.beta)
        case "sum":
            if not post_op.zero_point:
                return add(DST, post_op.scale)
            return Stage(algorithms.ADD_SHIFTED, post_op.scale, post_op.zero_point, DST)
        case "binary":
            return binary(post_op.algorithm, operand)
        case "prelu":
            return Stage(algorithms.PRELU, operand=operand)
        case kind:
            raise UnknownAlgorithm(f"has no post-op {kind!r}")


def refuse_unknown(post_ops: Iterable[PostOp]) -> Refused | None:
    """Refuse a chain with an unknown post-op or an unknown algorithm."""
    try:
        stages_of(post_ops, 0)
    except UnknownAlgorithm as error:
        return Refused("attribute", str(error))
    return None


def _task(table: Mapping[str, Task], algorithm: str) -> Task:
    if algorithm not in table:
        raise UnknownAlgorithm(f"has no algorithm {algorithm!r}")
    return table[algorithm]
