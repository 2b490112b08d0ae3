"""A 1x1 convolution and its post-op depthwise as two convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dnncore.attributes import Attributes
from dnncore.backend import Accepted, Refused
from dnncore.composition.composition import Composition
from dnncore.composition.steps import Steps
from dnncore.ops import ConvolutionForward
from dnncore.ops.depthwise import depthwise_of

__all__ = ["depthwise_fusions"]


class _Fusion(Composition[ConvolutionForward]):
    """The 1x1 convolution with the steps before the depthwise one, then the latter."""

    STEM: ClassVar[str] = "then_depthwise"

    def accept(
        self, op: ConvolutionForward, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Refuse problems without the post-op."""
        if "depthwise" not in attr.words:
            return Refused("attribute", "computes only chains with the post-op depthwise")
        return super().accept(op, attr, engine, hint)

    def compose(self, op: ConvolutionForward, attr: Attributes, steps: Steps) -> ConvolutionForward:
        """Round the result of the first convolution to the type of the operation's dst."""
        place = [step.kind for step in attr.post_ops].index("depthwise")
        first = replace(attr, post_ops=attr.post_ops[:place], rounding="environment")
        if op.algorithm == "auto" or any(desc.is_any for _, desc in op.tensors()):
            op = steps.chosen(op, first)
        room = steps.room(op.dst)
        steps.add(op.with_descs(dst=room.desc), first, dst=room)
        step = attr.post_ops[place]
        second = depthwise_of(step, room.desc, attr.stored(op))
        own = f"post_op_{place}"
        later = {
            f"post_op_{i}_{name}": f"post_op_{place + 1 + i}_{name}"
            for i, after in enumerate(attr.post_ops[place + 1 :])
            for name, _ in after.operands
        }
        steps.add(
            second,
            replace(attr, post_ops=attr.post_ops[place + 1 :]),
            src=room,
            weights=f"{own}_weights",
            bias=f"{own}_bias",
            dst="dst",
            **later,
        )
        return op


def depthwise_fusions(backend: str) -> tuple[Composition[ConvolutionForward], ...]:
    """Return the implementation of 1x1 convolutions with the post-op depthwise by the convolutions
    of a backend.
    """
    return (_Fusion(backend),)
