"""Getting started: one primitive, relu, sets the negative pixels of an image to 0.

    python examples/getting_started.py
    python examples/getting_started.py --engine opencl

Every dnncore program has these steps: open an engine and a stream, make memories, define an
operation, select an implementation, build the primitive, execute it.
"""

from __future__ import annotations

import click
import numpy as np

import dnncore as dnn


@click.command()
@click.option(
    "--engine", "name", default="cpu", show_default=True, help="Such as cpu, gpu or opencl:1."
)
def main(name: str) -> None:
    """Run relu on an image and check the result."""
    # An engine is an opened device. If the device cannot be opened, the error has the reason.
    try:
        engine = dnn.engine(name)
    except (dnn.BackendNotFound, dnn.EngineUnavailable) as error:
        raise click.ClickException(f"{error}\n`dnncore devices` lists the devices") from None
    print(f"engine: {engine.name}, {engine.device.name}")

    # A stream is a queue that executes primitives on the engine.
    stream = engine.stream()

    # The image is a numpy array: 1 image of 13 x 13 pixels with 3 channels. The channels of a pixel
    # are adjacent (NHWC).
    rng = np.random.default_rng(0)
    image = rng.uniform(-1, 1, (1, 13, 13, 3)).astype(np.float32)

    # A memory descriptor lists the dims in the order (N, C, H, W). The format tag "nhwc" states
    # their order in memory. The transposed view below has the dims of the descriptor and the same
    # order in memory. So on the CPU, nothing is copied.
    desc = dnn.MemoryDesc((1, 3, 13, 13), "f32", "nhwc")
    src = dnn.Memory.from_numpy(image.transpose(0, 3, 1, 2), desc, engine)
    dst = dnn.Memory(desc, engine)

    # The operation is relu: dst = max(src, 0). If the shapes do not match, this raises an error.
    op = dnn.EltwiseForward("forward_inference", "relu", src=src.desc, dst=dst.desc)

    # The primitive descriptor selects the implementation with the lowest estimated time on this
    # engine. explain() lists all implementations that accept, and the reasons of those that refuse.
    pd = dnn.PrimitiveDesc(op, engine)
    print(pd.explain())

    # The primitive is the compiled implementation. execute() launches it on the stream.
    relu = pd.primitive()
    relu.execute(stream, src=src, dst=dst)

    # numpy(stream) waits for the stream and returns the values, with dims (N, C, H, W).
    result = dst.numpy(stream)
    expected = np.maximum(image, 0).transpose(0, 3, 1, 2)
    if not np.array_equal(result, expected):
        raise click.ClickException("the result differs from max(src, 0)")
    print(f"relu: {np.count_nonzero(image < 0)} of {image.size} values were negative and are 0 now")


if __name__ == "__main__":
    main()
