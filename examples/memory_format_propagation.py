"""Memory format propagation: a convolution selects its formats, and a pooling reuses them.

A convolution runs fastest on formats that suit it. So its operation has the format "any". The
primitive descriptor reports the selected formats. Data in another format is reordered. The pooling
takes the result of the convolution without a reorder.

    python examples/memory_format_propagation.py
    python examples/memory_format_propagation.py --engine opencl
"""

from __future__ import annotations

import click
import numpy as np

import dnncore as dnn

BATCH, IN_CHANNELS, OUT_CHANNELS, SIZE = 4, 16, 32, 28


def convolution(engine: dnn.Engine) -> dnn.PrimitiveDesc:
    """Select a 3x3 convolution with relu. Each tensor may have any format."""
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
    """Select a 2x2 max pooling of `src`. Its dst is "any" and gets the format of src."""
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
        print(f"  {name}: {memory.desc.tag}, taken as it is")
        return memory
    print(f"  {name}: {memory.desc.tag}, reordered to {wanted.tag}")
    return dnn.reorder(memory, wanted, stream=stream)


@click.command()
@click.option("--engine", "name", default="cpu", show_default=True, help="cpu, gpu, opencl:1")
def main(name: str) -> None:
    """Run a convolution and a pooling in the formats that the convolution chose."""
    try:
        engine = dnn.engine(name)
    except (dnn.BackendNotFound, dnn.EngineUnavailable) as error:
        raise click.ClickException(str(error)) from None
    stream = engine.stream()
    rng = np.random.default_rng(0)
    # Small integers, so every order of summation gives exactly the same result.
    image = rng.integers(-3, 4, (BATCH, IN_CHANNELS, SIZE, SIZE)).astype(np.float32)
    filters = rng.integers(-3, 4, (OUT_CHANNELS, IN_CHANNELS, 3, 3)).astype(np.float32)

    # In tags, a, b, c, d are the dims N, C, H, W. The outermost dim in memory is first. A capital
    # letter marks a dim that also has an inner block, such as in aBcd16b.
    conv = convolution(engine)
    print(f"convolution by {conv.impl_name}")
    src = argument(conv, "src", dnn.Memory.from_numpy(image, engine=engine), stream)
    weights = argument(conv, "weights", dnn.Memory.from_numpy(filters, engine=engine), stream)
    features = dnn.Memory(conv.dst_desc, engine)
    print(f"  dst: {features.desc.tag}")
    conv.primitive().execute(stream, src=src, weights=weights, dst=features)

    pool = pooling(features.desc, engine)
    print(f"pooling by {pool.impl_name}")
    src = argument(pool, "src", features, stream)
    pooled = dnn.Memory(pool.dst_desc, engine)
    print(f"  dst: {pooled.desc.tag}")
    pool.primitive().execute(stream, src=src, dst=pooled)

    # Back to the user's format. reorder() returns the memory itself if it has this format.
    result = dnn.reorder(pooled, pooled.desc.with_format("nchw"), stream=stream)
    print(f"result: {result.desc.tag}")

    plain = dnn.functional.conv2d(image, filters, padding=1, activation="relu", engine=engine)
    if not np.array_equal(result.numpy(stream), dnn.functional.max_pool2d(plain, 2)):
        raise click.ClickException("the result must not depend on the formats")
    print("equal to the result in nchw")


if __name__ == "__main__":
    main()
