"""The calls of scenarios: random operations on a scene's tensors, and their correct results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import numpy as np

from dnncore import ops
from dnncore.attributes import Attributes
from dnncore.comparison.compare import expected_outputs
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.execution.primitive import Primitive
from dnncore.post_op import PostOp
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.selection.reorder import reorder
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.scenarios.model import Tensor
from dnncore.testing.scenarios.scene import LEAST, MOST, Call, Scene, Unsupported

__all__ = ["BACK", "apply", "choose", "described", "prepared", "tensors_of"]

Array = np.ndarray[Any, Any]
Chosen: TypeAlias = tuple[ops.Operation, dict[str, Tensor], dict[str, Array]]

FLOATS = ("f32", "f32", "f32", "f32", "f16", "bf16")
BACK = PostOp.eltwise("clip", LEAST, MOST)  # keeps all values small integers


# -- operations ------------------------------------------------------------------------------------
#
# Each function chooses inputs from the scene. It returns the operation, with outputs in any format,
# the inputs by argument name, and inputs that are made for this call alone.


def _eltwise(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    src = scene.input(rng, engine, scene.dims, (rng.choice(FLOATS),))
    algorithm, alpha, beta = rng.choice(
        [("relu", 0, 0), ("abs", 0, 0), ("linear", 2, -1), ("square", 0, 0), ("clip", -1, 2)]
    )
    op = ops.EltwiseForward(
        "forward_inference", algorithm, src=src.desc, dst=_like(src), alpha=alpha, beta=beta
    )
    return op, {"src": src}, {}


def _eltwise_backward(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    data_type = rng.choice(FLOATS)
    src, diff = (scene.input(rng, engine, scene.dims, (data_type,)) for _ in range(2))
    algorithm, alpha, beta = rng.choice(
        [("relu", 0, 0), ("relu", 2, 0), ("abs", 0, 0), ("square", 0, 0), ("clip", -1, 2)]
    )
    op = ops.EltwiseBackward(
        algorithm, src=src.desc, diff_dst=diff.desc, diff_src=_like(src), alpha=alpha, beta=beta
    )
    return op, {"src": src, "diff_dst": diff}, {}


def _binary(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    data_type = rng.choice(FLOATS)
    src0 = scene.input(rng, engine, scene.dims, (data_type,))
    src1 = scene.input(rng, engine, _some_ones(rng, scene.dims), (data_type,))
    algorithm = rng.choice(("add", "sub", "mul", "max", "min", "ge", "ne"))
    op = ops.Binary(algorithm, src0=src0.desc, src1=src1.desc, dst=_like(src0))
    return op, {"src0": src0, "src1": src1}, {}


def _sum(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    data_type = rng.choice(FLOATS)
    sources = [scene.input(rng, engine, scene.dims, (data_type,)) for _ in range(rng.randint(1, 4))]
    scales = tuple(rng.choice((1.0, -1.0, 2.0)) for _ in sources)
    op = ops.Sum(scales, srcs=[s.desc for s in sources], dst=_like(sources[0]))
    return op, {f"src{i}": s for i, s in enumerate(sources)}, {}


def _matmul(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    data_type = rng.choice(FLOATS)
    src, weights = (scene.input(rng, engine, scene.dims, (data_type,)) for _ in range(2))
    op = ops.MatMul(src=src.desc, weights=weights.desc, dst=_like(src))
    return op, {"src": src, "weights": weights}, {}


def _convolution(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    """Return forward, or the gradient with respect to src."""
    image = scene.input(rng, engine, scene.dims, (rng.choice(FLOATS),))
    channels = scene.dims[1]
    values = scene.values(rng, (channels, channels, 3, 3), image.desc.data_type)
    weights = MemoryDesc(values.shape, image.desc.data_type, "any")
    how: dict[str, Any] = {
        "weights": weights, "padding_l": (1, 1), "algorithm": rng.choice(("direct", "auto"))
    }  # fmt: skip
    if rng.random() < 0.3:
        gradient = ops.ConvolutionBackwardData(diff_dst=image.desc, diff_src=_like(image), **how)
        return gradient, {"diff_dst": image}, {"weights": values}
    op = ops.ConvolutionForward("forward_inference", src=image.desc, dst=_like(image), **how)
    return op, {"src": image}, {"weights": values}


def _convolution_weights(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    data_type = rng.choice(FLOATS)
    src, diff = (scene.input(rng, engine, scene.dims, (data_type,)) for _ in range(2))
    channels = scene.dims[1]
    weights = MemoryDesc((channels, channels, 3, 3), data_type, "any")
    bias = rng.choice((None, MemoryDesc((channels,), data_type, "any")))
    op = ops.ConvolutionBackwardWeights(
        src=src.desc, diff_dst=diff.desc, diff_weights=weights, diff_bias=bias, padding_l=(1, 1)
    )
    return op, {"src": src, "diff_dst": diff}, {}


def _pooling(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    """Return forward. Training also writes a workspace."""
    src = scene.input(rng, engine, scene.dims, (rng.choice(FLOATS),))
    op = ops.PoolingForward(
        rng.choice(("forward_inference", "forward_training")), "max",
        src=src.desc, dst=_like(src), kernel=(3, 3), padding_l=(1, 1),
    )  # fmt: skip
    return op, {"src": src}, {}


def _pooling_backward(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    """Return the gradient for places that a forward operation need not have computed."""
    diff = scene.input(rng, engine, scene.dims, (rng.choice(FLOATS),))
    if diff.desc.has_repeats:  # the workspace has the layout of diff
        raise Unsupported
    image = MemoryDesc((*scene.dims[:2], *(n + 2 for n in scene.dims[2:])), diff.desc.data_type)
    op = ops.PoolingBackward(
        "max", diff_src=image.with_format("any"), diff_dst=diff.desc, kernel=(3, 3)
    )
    workspace = op.workspace_desc()
    assert workspace is not None
    places = np.random.default_rng(rng.getrandbits(32)).integers(0, 9, workspace.dims)
    return op, {"diff_dst": diff}, {"workspace": places.astype(workspace.dtype)}


def _reduction(scene: Scene, rng: Random, engine: Engine) -> Chosen:
    src = scene.input(rng, engine, scene.dims, (rng.choice(FLOATS),))
    dims = (*_some_ones(rng, scene.dims)[:-1], 1)
    dst = MemoryDesc(dims, src.desc.data_type, "any")
    op = ops.Reduction(rng.choice(("sum", "max", "min")), src=src.desc, dst=dst)
    return op, {"src": src}, {}


OPERATIONS = (
    *(_eltwise, _eltwise, _binary, _binary, _sum, _sum),
    *(_matmul, _convolution, _pooling, _reduction),
    *(_eltwise_backward, _convolution_weights, _pooling_backward),
)


def _like(tensor: Tensor) -> MemoryDesc:
    return tensor.desc.with_format("any")


def _some_ones(rng: Random, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dims; some of them may be replaced by 1."""
    return rng.choice((dims, tuple(rng.choice((1, n)) for n in dims)))


# -- calls -----------------------------------------------------------------------------------------


def prepared(scene: Scene, rng: Random, engine: Engine) -> tuple[Call, Primitive, dict[str, Any]]:
    """Return a call that can be launched, with its primitive and its memories.

    Raises `Unsupported`.
    """
    op, inputs, constants = rng.choice(OPERATIONS)(scene, rng, engine)
    pair = next((source for source, _ in op.IN_PLACE if source in inputs), None)
    steps = []
    for i in range(rng.choice((0, 0, 1, 2, 3))):
        operand = scene.input(rng, engine, _some_ones(rng, op.result.dims), ("f32",))
        steps.append(PostOp.binary(rng.choice(("add", "mul", "max")), operand.desc))
        inputs[f"post_op_{i}_src"] = operand
    reads_dst = rng.random() < 0.3
    if reads_dst:
        steps.append(PostOp.sum(rng.choice((1.0, -1.0))))
    attr = Attributes(
        (*steps, BACK),
        scratchpad=rng.choice(("library", "library", "user")),
        deterministic=rng.random() < 0.3,
    )
    dst = None
    if pair and rng.random() < 0.3 and _may_be_written(op, inputs, pair):
        dst = inputs[pair]
    elif reads_dst or rng.random() < 0.6:
        dst = scene.output(rng, engine, op.result, inputs.values())
    if dst is not None:
        op = replace(op, **{op.result_name: dst.desc})
    pd = choose(scene, rng, op, engine, attr, host_fallback=rng.random() < 0.3)
    written = [a.name for a, _ in op.tensors(op.workspace_desc()) if a.direction == "out"]
    outputs = {name: _made_for(scene, rng, pd, name) for name in written[dst is not None :]}
    if dst is not None:
        outputs[op.result_name] = dst
    tensors = {**inputs, **outputs}
    memories: dict[str, Any] = {name: tensor.memory for name, tensor in tensors.items()}
    for name, values in constants.items():
        plain = Memory.from_numpy(values, None, engine)
        memories[name] = reorder(plain, pd.descs[name], engine)
    if pd.scratchpad_desc is not None:
        memories["scratchpad"] = Memory(pd.scratchpad_desc, engine)
    call = Call(op, attr, tensors, tuple(written), constants, f"{op.KIND} by {pd.impl_name}")
    return call, pd.primitive(), memories


def _may_be_written(op: ops.Operation, inputs: dict[str, Tensor], name: str) -> bool:
    """Whether the result can be written to an input, which no other argument may overlap."""
    tensor = inputs[name]
    others = [other for key, other in inputs.items() if key != name]
    return (
        tensor.desc.dims == op.result.dims
        and not tensor.desc.has_repeats
        and tensor.is_apart_from(others)
    )


def choose(
    scene: Scene, rng: Random, op: ops.Operation, engine: Engine, attr: Attributes, **wishes: Any
) -> PrimitiveDesc:
    """Return an implementation without rounding, only rarely one that the scene does not prefer.

    Winograd's transforms round. Raises `Unsupported` if there is none.
    """
    found = [pd for pd in primitive_descs(op, engine, attr, **wishes) if pd.exact]
    if not found:
        raise Unsupported
    preferred = [pd for pd in found if scene.prefers(pd)]
    return rng.choice(preferred if preferred and rng.random() < 0.9 else found)


def _made_for(scene: Scene, rng: Random, pd: PrimitiveDesc, name: str) -> Tensor:
    """Return a new tensor for an output in the format that an implementation has chosen."""
    desc = pd.descs[name]
    if rng.random() < 0.5:
        return scene.adopt(Memory(desc, pd.engine))
    return scene.placed(rng, pd.engine, desc)


def apply(call: Call) -> None:
    """Compute the correct values of a call."""
    result = call.outputs[0]
    read = [name for name in call.tensors if name not in call.outputs]
    read += [result] if call.attr.reads_dst else []
    inputs = {name: call.tensors[name].values() for name in read}
    expected = expected_outputs(call.op, call.attr, inputs | call.constants)
    for name in call.outputs:
        call.tensors[name].store(expected[name].values)


def tensors_of(calls: Iterable[Call]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that calls read, and the tensors that they write."""
    calls = list(calls)
    inputs = [t for c in calls for name, t in c.tensors.items() if name not in c.outputs]
    return inputs, [call.tensors[name] for call in calls for name in call.outputs]


def described(call: Call) -> str:
    """Return a text for the log."""
    sources = ", ".join(f"{k}={t.name}" for k, t in call.tensors.items() if k not in call.outputs)
    results = ", ".join(call.tensors[name].name for name in call.outputs)
    steps = "+".join(step.kind for step in call.attr.post_ops)
    return f"{results} = {call.name}({sources}) {steps}"
