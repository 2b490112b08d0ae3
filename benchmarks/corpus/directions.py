"""Layers in a direction: forward, or a gradient."""

from __future__ import annotations

from benchmarks.corpus.layers import Layer

__all__ = ["DIRECTIONS", "directed"]

DIRECTIONS = ("FWD_D", "FWD_I", "BWD_D", "BWD_W")

PASSES = {
    **dict.fromkeys(("conv", "ip"), ("FWD", "BWD_D", "BWD_W")),
    **dict.fromkeys(
        ("bnorm", "eltwise", "gnorm", "lnorm", "lrn", "pool", "softmax"), ("FWD", "BWD_D")
    ),
}  # of other drivers forward alone
FLIPPED = {"ab": "ba", "abcd": "abdc", "abdc": "abcd"}  # tag of a matrix -> of its transpose


def directed(layer: Layer, direction: str, batch: int) -> str:
    """The text of a layer's problem in a direction, or "" if the layer lacks this direction.

    direction: one of `DIRECTIONS`. The gradients of a matrix product are matrix products
        of other shapes.
    """
    if direction == "BWD_D" and layer.inputs[0].source < 0:
        return ""  # training does not need the gradient of the network's input
    if layer.driver == "matmul" and direction.startswith("BWD"):
        return _gradient(layer, direction, batch)
    passes = PASSES.get(layer.driver, ("FWD",))
    return layer.text(batch, direction) if direction.startswith(passes) else ""


def _gradient(layer: Layer, direction: str, batch: int) -> str:
    """The matrix product that computes a gradient of a matrix product."""
    *words, last = layer.text(batch).split()
    options = dict(word.removeprefix("--").split("=") for word in words[1:])
    shape, _, name = last.partition("n")
    (*many, m, k), (*_, n) = ([*map(int, dims.split("x"))] for dims in shape.split(":"))
    plain = options["stag"]
    weights = options.get("wtag", plain)
    tags, dims = (plain, FLIPPED[weights], plain), ((m, n), (n, k))
    if direction == "BWD_W":
        tags, dims = (FLIPPED[plain], plain, weights), ((k, m), (m, n))
    words = [f"--{kind}tag={tag}" for kind, tag in zip("swd", tags, strict=True)]
    texts = ["x".join(map(str, (*many, *pair))) for pair in dims]
    return " ".join(["--matmul", *words, f"{':'.join(texts)}n{name}"])
