"""Getting started: negative pixels of an image become 0, by one primitive on an engine you name.

    python examples/getting_started.py
    python examples/getting_started.py --engine opencl

The steps are those of every dnncore program: an engine and a stream, memories, an operation, the
choice of an implementation, the primitive, its execution.
"""

from __future__ import annotations

import click
import numpy as np

import dnncore as dnn


@click.command()
@click.option("--engine", "name", default="cpu", show_default=True, help="cpu, gpu, opencl:1")
def main(name: str) -> None:
    """Run relu on an image and check the result."""
    # An engine is a device. You get the one you name, or an error that says why you cannot have it.
    try:
        engine = dnn.engine(name)
    except (dnn.BackendNotFound, dnn.EngineUnavailable) as error:
        raise click.ClickException(f"{error}\n`dnncore devices` lists what there is") from None
    print(f"engine: {engine.name}, {engine.device.name}")

    # A stream is a queue of work on the engine.
    stream = engine.stream()

    # The image is an ordinary array: 1 image of 13 x 13 pixels, 3 channels, with the channels of a
    # pixel side by side (NHWC).
    rng = np.random.default_rng(0)
    image = rng.uniform(-1, 1, (1, 13, 13, 3)).astype(np.float32)

    # A memory descriptor names dims in one fixed order, (N, C, H, W), whatever the order in memory;
    # the format tag "nhwc" tells that order. The transposed view below has the descriptor's dims
    # and still lies in memory as the image does: on the CPU nothing is copied.
    desc = dnn.MemoryDesc((1, 3, 13, 13), "f32", "nhwc")
    src = dnn.Memory.from_numpy(image.transpose(0, 3, 1, 2), desc, engine)
    dst = dnn.Memory(desc, engine)

    # What to compute: relu, dst = max(src, 0). A shape that does not fit would be refused here.
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=dst.desc)

    # How to compute it: of all implementations that accept the operation on this engine the one
    # that is estimated to be fastest. explain() tells the others, and who refused and why.
    pd = dnn.PrimitiveDesc(op, engine)
    print(pd.explain())

    # The primitive is that implementation, compiled; running it only launches it on the stream.
    relu = pd.primitive()
    relu.execute(stream, src=src, dst=dst)

    # numpy(stream) waits for the stream and gives the values, again as (N, C, H, W).
    result = dst.numpy(stream)
    expected = np.maximum(image, 0).transpose(0, 3, 1, 2)
    if not np.array_equal(result, expected):
        raise click.ClickException("relu must give max(src, 0), exactly")
    print(f"relu: {np.count_nonzero(image < 0)} of {image.size} values were negative and are 0 now")


if __name__ == "__main__":
    main()
