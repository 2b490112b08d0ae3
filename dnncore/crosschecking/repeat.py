"""Repeats saved calls and compares them with the reference."""

from __future__ import annotations

from dataclasses import replace

from dnncore.crosschecking.hidden import Hidden
from dnncore.crosschecking.judgement import Difference, judge
from dnncore.crosschecking.repetition import Repetition
from dnncore.crosschecking.saved import SavedCall
from dnncore.errors import DescriptorError
from dnncore.problem import Problem
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["differences", "with_problem", "wrong_outputs"]


def differences(saved: SavedCall, pd: PrimitiveDesc) -> tuple[Difference, ...]:
    """Execute a saved call by this implementation. Return the outputs that are wrong.

    Raises `DescriptorError` if an input does not fit, and the errors of the launch.
    """
    call = saved.call(pd)
    call.outputs.update(Repetition(pd, Hidden(), call.alias).outputs(call, strays=True))
    return judge(call).differences


def wrong_outputs(saved: SavedCall) -> list[str]:
    """Return lines about the wrong outputs of a saved call, for each of its implementations.

    Raises `NoImplementation` if there is no implementation.
    """
    return [
        f"{saved.problem} on {saved.engine}: {found.argument} of {pd.impl_name}: {found.comparison}"
        for pd in saved.descriptors()
        for found in differences(saved, pd)
    ]


def with_problem(saved: SavedCall, problem: Problem) -> SavedCall:
    """Return a saved call with the same inputs and another problem, which names its
    implementations.

    Raises `DescriptorError` if the operation has other arguments.
    """
    names = {argument.name for argument, _ in problem.op.tensors() if argument.direction == "in"}
    if missing := sorted(names - set(saved.inputs)):
        raise DescriptorError(
            f"saved call: the problem needs values of {', '.join(missing)}; the file has"
            f" {', '.join(saved.inputs)}"
        )
    return replace(saved, problem=str(problem), implementation=problem.impl or "*")
