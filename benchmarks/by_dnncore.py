"""dnncore's own contestants: the implementation that is chosen, and all others that accept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dnncore as dnn
from benchmarks.contestants import Array, Contestant, LeftOut
from benchmarks.libraries import between_reorders, contestant
from dnncore.problem import Problem

__all__ = ["chosen", "others"]


class Dnncore:
    """dnncore as a library among others."""

    def __init__(self, **wishes: Any) -> None:
        self.engine = dnn.engine("cpu")
        self.stream = self.engine.stream()
        self.wishes = wishes

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> dnn.PrimitiveDesc:
        """The best that accepts, of those that are wished for; reorders are not chosen among."""
        wishes = {} if isinstance(op, dnn.Reorder) else self.wishes
        return dnn.PrimitiveDesc(op, self.engine, attr, **wishes)

    def fill(self, memory: dnn.Memory, values: Array) -> None:
        """Reorder from plain."""
        plain = dnn.Memory.from_numpy(values, engine=self.engine)
        op = dnn.Reorder(src=plain.desc, dst=memory.desc)
        reorder = dnn.PrimitiveDesc(op, self.engine).primitive()
        reorder.execute(self.stream, src=plain, dst=memory)

    def values(self, memory: dnn.Memory) -> Array:
        """Reorder to plain where numpy has no strides for the format."""
        if memory.desc.format_kind == "blocked":
            return memory.numpy()
        return dnn.reorder(memory, memory.desc.with_format(None)).numpy()

    def forward(self, pd: dnn.PrimitiveDesc) -> dnn.PrimitiveDesc:
        """In the formats that the gradient chose."""
        assert pd.op.forward_op is not None
        return dnn.PrimitiveDesc(pd.op.forward_op, self.engine)

    def scratchpad(self, pd: dnn.PrimitiveDesc) -> int:
        """As the descriptor says."""
        return pd.scratchpad_bytes

    def call(self, calls: list[Any]) -> Callable[[], object]:
        """Several as a sequence."""
        run = calls[0] if len(calls) == 1 else dnn.Sequence(calls)
        return lambda: run(self.stream)


def chosen(problem: Problem, reorders: bool) -> Iterator[Contestant]:
    """The implementation that is chosen for the problem as it is and, if asked, in any formats."""
    library = Dnncore(impl=problem.impl or None, skip_impl=problem.skip_impl or None)
    try:
        yield contestant(library, library.choose(problem.op, problem.attr))
    except dnn.NoImplementation as error:
        raise LeftOut(str(error)) from None
    if reorders:
        moved = between_reorders(library, problem.op, problem.attr)
        if moved:
            yield moved


def others(problem: Problem, _reorders: bool) -> Iterator[Contestant]:
    """All other implementations that accept, but the reference."""
    library = Dnncore()
    pds = list(dnn.primitive_descs(problem.op, library.engine, problem.attr))[1:]
    rest = [pd for pd in pds if not pd.is_reference]
    if not rest:
        raise LeftOut("no other implementation accepts")
    for pd in rest:
        yield contestant(library, pd)
