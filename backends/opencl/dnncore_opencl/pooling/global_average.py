"""Average pooling with the whole image as window: a mean; its gradient is a repetition."""

from __future__ import annotations

from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.vectors import COMPUTED, WITH_F64
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import Elementwise, Pass, refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.reduction.implementations import Stages
from dnncore_opencl.runtime.program import LaunchProgram

NAME = "opencl:global"
GPU_EFFICIENCY = 0.85  # workers of a short row are neighbours, too
MEAN_OF_TWO = core.Reduction("mean", src=MemoryDesc((2,)), dst=MemoryDesc((1,)))


class Mean(Implementation[core.PoolingForward]):
    """Forward, computed as a reduction."""

    name = NAME
    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, ROUNDING)

    def accept(
        self, op: core.PoolingForward, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        op = op.resolve_any(dst=op.src)
        refused = _refuse(op) or refuse_common(op, attr, engine)
        if refused:
            return refused
        stages = Stages(engine, MEAN_OF_TWO.with_descs(src=op.src, dst=op.dst), attr)
        return Accepted(
            op,
            lambda: LaunchProgram(engine, stages.launches()),
            efficiency=stages.efficiency if engine.is_cpu else GPU_EFFICIENCY,
            scratchpad_bytes=stages.scratchpad_bytes,
            exact=False,
            notes=("compiles",),
        )


class Repetition(Elementwise[core.PoolingBackward]):
    """Backward. Each cell gets the same share."""

    name = NAME
    data_types = WITH_F64
    like: ClassVar = {"diff_src": "diff_dst"}

    def refuse(self, op: core.PoolingBackward, attr: Attributes, engine: Any) -> Refused | None:
        """Refuse windows other than the whole image."""
        return _refuse(op)

    def compute(self, op: core.PoolingBackward, attr: Attributes, work: Pass) -> None:
        """Divide the gradient by the number of cells of a plane."""
        cells = work.parameters.real(op.diff_src.nelems / max(op.diff_dst.nelems, 1))
        work.start(f"v0 / {cells}")
        work.post_ops(attr)


def _refuse(op: core.Pooling) -> Refused | None:
    """Refuse maximum pooling, and windows that are not exactly the image."""
    image = op.src_role.dims[2:]
    is_whole = all(size == 1 for size in op.dst_role.dims[2:]) and not any(op.dilations)
    if not op.is_max and is_whole and op.kernel == image and not any(op.padding_l):
        return None
    return Refused(
        "shape",
        f"averages over the whole image {image}, which is one window; got {op.algorithm} over"
        f" {op.kernel}",
    )
