"""Prints the page on problem texts.

    python -m dnncore.documents.problem_text > docs/problem_text.md

The page is written from the drivers, their default options and the docstrings of `dnncore.problem`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from dnncore import problem
from dnncore.attributes import Accumulation, FpMath
from dnncore.documents.docstrings import markdown
from dnncore.problem import DRIVERS, attributes, options, quantization, tensors, windows
from dnncore.problem.drivers.driver import Driver
from dnncore.problem.problem import DEFAULTS

__all__ = ["ABOUT", "SHAPES", "page"]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


INTRODUCTION = """# Problem text

The language of the problems of `dnncore check`, `dnncore impls`, the conformance kit and the
benchmarks. It is that of benchdnn, oneDNN's test program, so lists and command lines of benchdnn
can be used. `python -m dnncore.documents.problem_text > docs/problem_text.md` writes this page from
the drivers and docstrings.

    dnncore impls --matmul --dt=u8:s8:f32 --attr-scales=src:common+wei:per_oc 4x64:64x8
    dnncore check --engines=cpu --batch=FILE --match=ic64
"""

NAMES_OF_MASKS = """A mask of scales and zero points is a number or one of these words. Bit d stands
for dim d: `common` 0 (one value), `per_oc` the output channels (bit 0 of weights, bits 0 and 1 of
weights with groups, the last dim of a matmul's weights, bit 1 of other tensors), `per_ocic` output
and input channels (the last two dims of a matmul), `per_dim_0` to `per_dim_3` one dim, `per_dim_01`
the first two, `per_tensor` all dims. `--attr-scales=wei:per_ocic:f16:32x1` has one value for 32
rows of each column; `GROUPS` are the numbers of neighbouring elements along the last two dims. A
mask of a post-op's operand counts the dims of dst, where `per_oc` is bit 1."""

ABOUT: Mapping[str, str] = {
    "dir": "the direction",
    "dt": "the type of all tensors, or one for src, weights and dst, with colons between them",
    "sdt": "the type of src, or one per source",
    "wdt": "the type of the weights, or one per tensor",
    "ddt": "the type of dst",
    "bia-dt": "the type of the bias",
    "bia_mask": "the dims of the bias: if bit d is set, that of dst, else 1",
    "stag": "the format of src, or one per source",
    "wtag": "the format of the weights",
    "btag": "the format of the bias",
    "dtag": "the format of dst",
    "qtag": "the format of the queries",
    "ktag": "the format of the keys, with the dims of the shape",
    "vtag": "the format of the values",
    "mtag": "the format of the mask",
    "mdt": "the type of the mask",
    "mask_type": "`buffer`: a mask is added to the scores; `causal_top_left` or"
    " `causal_bottom_right`: the keys that each query sees; both, with a + between them; or `none`",
    "mask_bits": "the dims of the mask: if bit d is set, that of the scores, else 1",
    "scale": "the factor of the scores, or `default`",
    "tag": "the format of all tensors",
    "strides": "the strides of the tensors but the bias, with colons between them: `8x1::4x1`",
    "stat_tag": "the format of mean and variance",
    "ss_tag": "the format of scale and shift and of their gradients",
    "ss_dt": "the type of scale and shift and of their gradients",
    "flags": "`O`: the gradients overwrite the old values, as they always do; without effect",
    "alg": "the algorithm",
    "mb": "the size of the batch, instead of that of the shape; 0 keeps it",
    "alpha": "the parameter alpha of the algorithm",
    "beta": "the parameter beta of the algorithm",
    "prop": "the direction, as `dir`: benchdnn's name of it for recurrent cells",
    "direction": "the order of the steps: left2right, right2left, or both",
    "activation": "the function of VANILLA_RNN",
    "cfg": "benchdnn's types of recurrent cells: f32, bf16, f16; `bf16f32` has a bias of f32",
    "l": "the number of layers, instead of that of the shape; 0 keeps it",
    "t": "the number of steps, instead of that of the shape; 0 keeps it",
    "scaling": "how weights of integers are scaled",
    "scaling-proj": "how weights of projections of integers are scaled",
    "skip-nonlinear": "whether functions of gates are replaced by linear ones",
    "trivial-strides": "whether sizes are strides; without effect",
    "with-peephole": "`true`: the LSTM has peephole weights",
    "with-projection": "`true`: the LSTM has a projection",
    "without": "the names of absent tensors, with + between them: `src_iter+bias`",
    "scale_type": "whether the scale multiplies or divides",
    "kv_head_number": "the number of heads of keys and values",
    "lse": "the format of softmax's statistics; empty for none",
    "axis": "the dim of softmax, concat and shuffle, counted from 0",
    "scales": "the factor of all sources, or one per source",
    "group": "the elements of a group of shuffle",
    "p": "the exponent of norms",
    "eps": "the least sum of a norm (`..._max`), or a number added to the sum (`..._sum`)"
    " or to a variance",
    "inplace": "`true`: dst is the memory of src",
    "attr-post-ops": "a chain of further operations on each result, with + between them",
    "attr-scratchpad": "`user`: the program provides the scratchpad",
    "attr-scratchpad-limit": "the largest scratchpad in bytes",
    "attr-deterministic": "`true`: only implementations whose results are equal from run to run",
    "attr-fpmath": f"the permitted arithmetic: {_listed(get_args(FpMath))}",
    "attr-scales": f"scales: `{quantization.SYNTAX}`, with + between tensors",
    "attr-zero-points": f"zero points: `{quantization.SYNTAX}`, with + between tensors",
    "attr-acc-mode": f"the type of sums: {_listed(get_args(Accumulation))}",
    "attr-dropout": "dropout: `PROBABILITY[:SEED[:TAG[:OFFSET]]]`",
    "attr-rounding-mode": "stochastic rounding: `dst:stochastic`",
    "attr-rnn-data-qparams": "scale and shift of recurrent cells of integers: `SCALE[:SHIFT]`",
    "attr-rnn-weights-qparams": "scales of their weights: `MASK:SCALE[xSCALE...]`, repeated until"
    " each gate and channel has one",
    "attr-rnn-projection-qparams": "scales of their projection, likewise",
    "impl": "name patterns that implementations must match",
    "skip-impl": "name patterns that implementations must not match",
    "knobs": "parameters of implementations: `NAME:VALUE+NAME:VALUE`",
}
"""Option -> its meaning."""

FLAGS: Mapping[str, str] = {
    "G": "mean and variance are inputs",
    "C": "scale",
    "H": "shift",
    "M": "root mean square",
    "R": "fused relu",
    "A": "fused sum and relu",
}
"""Letter of a normalization's flags -> its meaning."""

DIRECTIONS: Mapping[str, str] = {
    "FWD_D": "forward, training",
    "FWD_I": "forward, inference",
    "FWD_B": "forward, training, with a bias",
    "FWD_IB": "forward, inference, with a bias",
    "BWD_D": "the gradient of src; of attention, of queries, keys and values",
    "BWD_DW": "the gradients of all inputs, such as src, scale and shift",
    "BWD_W": "the gradient of the weights",
    "BWD_WB": "the gradients of the weights and of the bias",
}

LETTERS = {
    "g": "groups",
    "mb": "size of the batch (2)",
    "ic": "channels of src, of all groups",
    "oc": "channels of dst, of all groups",
    "i*": "size of src along d, h or w: `ih5`",
    "o*": "size of dst",
    "k*": "size of the kernel",
    "s*": "stride (1)",
    "p*": "padding at the start; `pr*` at the end",
    "d*": "dilation, 0 is dense (0)",
    "l": "layers (1)",
    "t": "steps (1)",
    "slc": "channels of src_layer (dic)",
    "sic": "channels of src_iter, equal to dic",
    "dhc": "channels of the gates",
    "dic": "channels of the states (dhc)",
    "ls": "size of the window (5)",
    "alpha": "factor (1/8192)",
    "beta": "exponent (0.75)",
    "k": "constant (1)",
    "eps": "number added to a variance (1/16)",
}

SHAPES: Mapping[str, str] = {
    "matmul": "`MxK:KxN`, with batch dims before both, or a third part, the dims of dst.",
    "eltwise": "dims.",
    "softmax": "dims.",
    "lnorm": "dims, of which the last is normalized.",
    "sdpa": "`NxHxQxD:NxGxDxK:NxGxKxV`: queries, keys and values. As in benchdnn, the keys have D"
    " before K.",
    "prelu": "the dims of src and of the weights, which are broadcast.",
    "binary": "the dims of the sources, which are broadcast.",
    "sum": "dims.",
    "reduction": "dims.",
    "reorder": "dims.",
    "concat": "the dims of the sources, with colons between them.",
    "shuffle": "dims.",
}
"""Driver -> its shape in dims; the others have letters."""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield from markdown((problem.__doc__ or "").rpartition("\n\n")[0])  # without its importers
    yield from ("", "## Types and formats", "")
    yield from markdown(tensors.__doc__)
    yield from ("", "Directions:", "")
    yield from (f"- `{word}`: {about}" for word, about in DIRECTIONS.items())
    yield from ("", "## Shapes", "")
    yield from markdown(windows.__doc__)
    yield ""
    about_windows = inspect.cleandoc(windows.read_spatial.__doc__ or "").split("\n\n")[1]
    yield from markdown(about_windows.partition(" Raises ")[0])
    yield from ("", "| Letters | Number (default) |", "|---|---|")
    yield from (f"| `{letters}` | {about} |" for letters, about in LETTERS.items())
    yield from ("", "## Options of all operations", "")
    yield from _table(DEFAULTS)
    yield ""
    yield from markdown(NAMES_OF_MASKS)
    yield ""
    yield from markdown(attributes.__doc__)
    yield from ("", "The steps of `--attr-post-ops`:", "")
    yield from (f"- `{syntax}`" for syntax, _ in attributes.GRAMMAR.values())
    yield ""
    yield from markdown(quantization.__doc__)
    for driver in DRIVERS.values():
        yield from ("", f"## `--{driver.name}`", "")
        yield from _driver(driver)
    yield from ("", "## Options of benchdnn", "")
    yield from markdown(options.__doc__)
    yield ""
    yield from markdown(f"Ignored: {_listed(f'--{name}' for name in sorted(options.HARNESS))}.")
    yield ""
    lacking = [
        f"--{name}"
        for name in (*options.COMMON, *options.MATMUL, *options.REORDER, *options.SDPA)
        if options.feature_name(name) != "runtime dims"
    ]
    yield from markdown(f"Options for features that dnncore does not have: {_listed(lacking)}.")
    yield ""
    missing = _listed(f"--{name}" for name in options.MISSING_DRIVERS)
    yield from markdown(f"Operations that dnncore does not have: {missing}.")


def _driver(driver: Driver) -> Iterator[str]:
    """Yield the section of an operation."""
    module = sys.modules[driver.read.__module__]
    yield from markdown(module.__doc__)
    yield ""
    letters = driver.printed_shape.split()
    shape = SHAPES[driver.name] if not letters else f"letters, {_listed(letters)}."
    yield from markdown(f"Shape: {shape}{_about_reading(driver)}")
    for name, title in (("dir", "Directions"), ("alg", "Algorithms")):
        words = driver.options.get("dir", ()) if name == "dir" else _algorithms(driver)
        if name in driver.defaults:
            yield ""
            yield from markdown(f"{title}: {_listed(dict.fromkeys(words))}.")
    yield ""
    yield from _table(driver.defaults, _about_flags(driver))


def _about_reading(driver: Driver) -> str:
    """Return what the docstring of the reading function says after its first sentence."""
    text = " ".join(inspect.cleandoc(driver.read.__doc__ or "").split())
    rest = text.partition(". ")[2]
    return f" {rest}" if rest else ""


def _algorithms(driver: Driver) -> list[str]:
    return list(getattr(sys.modules[driver.read.__module__], "ALGORITHMS", ()))


def _about_flags(driver: Driver) -> str:
    """Return the meanings of the letters that the operation has; "" for other operations."""
    letters = getattr(sys.modules[driver.read.__module__], "FLAG_LETTERS", "")
    listed = ", ".join(f"`{letter}` {FLAGS[letter]}" for letter in letters)
    return f"{listed}; `CH` are two of them" if listed else ""


def _table(defaults: Mapping[str, str], flags: str = "") -> Iterator[str]:
    """Yield the rows of options that dnncore has. flags: the meaning of `--flags`, if not `O`."""
    about = {**ABOUT, "flags": flags or ABOUT["flags"]}
    yield from ("| Option | Default | Meaning |", "|---|---|---|")
    lacking = {**options.COMMON, **options.MATMUL, **options.REORDER, **options.SDPA}
    for name, default in defaults.items():
        if name not in lacking:
            yield f"| `--{name}` | {f'`{default}`' if default else ''} | {about[name]} |"


if __name__ == "__main__":
    print("\n".join(page()))
