"""Memory format propagation: a convolution selects its formats, and a pooling reuses them.

A memory format is the order of a tensor's elements in memory. The tensors of the convolution have
the format "any", so the implementation selects the formats with which it is fastest. The primitive
descriptor reports the selected formats. The program reorders inputs that have another format. The
pooling reads the result of the convolution without a reorder.

    python examples/memory_format_propagation.py
    python examples/memory_format_propagation.py --engine opencl
"""

from __future__ import annotations

import click
import numpy as np

import dnncore as dnn

BATCH, IN_CHANNELS, OUT_CHANNELS, SIZE = 4, 16, 32, 28


def convolution(engine: dnn.Engine) -> dnn.PrimitiveDesc:
    """Select an implementation of a 3x3 convolution with relu, and the formats of its tensors."""
    image = (BATCH, IN_CHANNELS, SIZE, SIZE)
    result = (BATCH, OUT_CHANNELS, SIZE, SIZE)
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=dnn.MemoryDesc(image, "f32", "any"),
        weights=dnn.MemoryDesc((OUT_CHANNELS, IN_CHANNELS, 3, 3), "f32", "any"),
        dst=dnn.MemoryDesc(result, "f32", "any"),
        padding_l=(1, 1),
    )
    attr = dnn.Attributes(post_ops=[dnn.PostOp.eltwise("relu")])
    return dnn.PrimitiveDesc(op, engine, attr)


def pooling(src: dnn.MemoryDesc, engine: dnn.Engine) -> dnn.PrimitiveDesc:
    """Select an implementation of a 2x2 max pooling of `src`, and the format of its dst."""
    dims = (BATCH, OUT_CHANNELS, SIZE // 2, SIZE // 2)
    op = dnn.PoolingForward(
        "forward_inference",
        "max",
        src=src,
        dst=dnn.MemoryDesc(dims, "f32", "any"),
        kernel=(2, 2),
        strides=(2, 2),
    )
    return dnn.PrimitiveDesc(op, engine)


def argument(
    pd: dnn.PrimitiveDesc, name: str, memory: dnn.Memory, stream: dnn.Stream
) -> dnn.Memory:
    """The memory in the format of the primitive's argument, reordered if necessary."""
    wanted = pd.descs[name]
    if not pd.needs_reorder(memory, name):
        print(f"  {name}: {memory.desc.tag}, not reordered")
        return memory
    print(f"  {name}: {memory.desc.tag}, reordered to {wanted.tag}")
    return dnn.reorder(memory, wanted, stream=stream)


@click.command()
@click.option(
    "--engine", "name", default="cpu", show_default=True, help="Such as cpu, gpu or opencl:1."
)
def main(name: str) -> None:
    """Run a convolution and a pooling in the formats that the convolution selected."""
    try:
        engine = dnn.engine(name)
    except (dnn.BackendNotFound, dnn.EngineUnavailable) as error:
        raise click.ClickException(str(error)) from None
    stream = engine.stream()
    rng = np.random.default_rng(0)
    # Small integers, so every order of summation gives exactly the same result.
    image = rng.integers(-3, 4, (BATCH, IN_CHANNELS, SIZE, SIZE)).astype(np.float32)
    user_weights = rng.integers(-3, 4, (OUT_CHANNELS, IN_CHANNELS, 3, 3)).astype(np.float32)

    # In format tags, a, b, c, d are the dims N, C, H, W. The outermost dim in memory is first. A
    # capital letter marks a dim that is divided into blocks: aBcd16b has blocks of 16 channels.
    conv = convolution(engine)
    print(f"convolution by {conv.impl_name}")
    src = argument(conv, "src", dnn.Memory.from_numpy(image, engine=engine), stream)
    weights = argument(conv, "weights", dnn.Memory.from_numpy(user_weights, engine=engine), stream)
    features = dnn.Memory(conv.dst_desc, engine)
    print(f"  dst: {features.desc.tag}")
    conv.primitive().execute(stream, src=src, weights=weights, dst=features)

    pool = pooling(features.desc, engine)
    print(f"pooling by {pool.impl_name}")
    src = argument(pool, "src", features, stream)
    pooled = dnn.Memory(pool.dst_desc, engine)
    print(f"  dst: {pooled.desc.tag}")
    pool.primitive().execute(stream, src=src, dst=pooled)

    # The user wants nchw. If the memory has this format already, reorder() returns it.
    result = dnn.reorder(pooled, pooled.desc.with_format("nchw"), stream=stream)
    print(f"result: {result.desc.tag}")

    plain = dnn.functional.conv2d(image, user_weights, padding=1, activation="relu", engine=engine)
    if not np.array_equal(result.numpy(stream), dnn.functional.max_pool2d(plain, 2)):
        raise click.ClickException("the result differs from the result in nchw")
    print("equal to the result in nchw")


if __name__ == "__main__":
    main()
