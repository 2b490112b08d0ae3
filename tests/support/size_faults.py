"""Implementations of the reference that are wrong only for some sizes, values or addresses.

`FAULTS` lists for each fault the checks that may find it, and a pattern of problems in the list
"smoke" that show it. The module is a plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from dnncore_reference import binary, convolution, eltwise, matmul, pooling, reorder, softmax
from dnncore_reference.definition import Definition
from subtle_faults import Right, backend_of, output, scale, with_inputs

from dnncore import backend

KIND = "sizes"


class SizesEngine(backend.HostEngine):
    kind = KIND


class Sized(Right):
    kind = KIND


class When(Sized):
    """Halves the result of operations for which `condition(op, attr)` holds."""

    def __init__(self, name, definition, condition):
        super().__init__(name, definition)
        self.condition = condition

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if self.condition(op, attr):
            scale(output(op, memories), 0.5)


class Changed(Sized):
    """Replaces the inputs, or the result, by `change(values)`."""

    def __init__(self, name, definition, change, of="inputs"):
        super().__init__(name, definition)
        self.change = change
        self.of = of

    def run(self, op, attr, engine, right, *memories):
        if self.of == "inputs":
            with_inputs(right, memories, lambda x: self.change(x).astype(x.dtype))
            return
        right(*memories)
        dst = output(op, memories)
        dst.desc.pack(self.change(dst.numpy()).astype(dst.desc.dtype), dst.buffer)


class Aligned(Sized):
    """Right only if all addresses are multiples of `bytes_`."""

    def __init__(self, name, definition, bytes_):
        super().__init__(name, definition)
        self.bytes_ = bytes_

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if any(memory.address % self.bytes_ for memory in memories):
            scale(output(op, memories), 0.5)


class WrongInLines(Sized):
    """Wrong only if all addresses are starts of cache lines."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if not any(memory.address % 64 for memory in memories):
            scale(output(op, memories), 0.5)


class PlainSoftmax(Sized):
    """Does not subtract the maximum."""

    def run(self, op, attr, engine, right, *memories):
        src, dst = memories
        powers = np.exp(src.numpy())
        dst.desc.pack(powers / powers.sum(op.axis, keepdims=True), dst.buffer)


class PaddedByFormula(Sized):
    """Computes padding like elements. So the padding becomes f(0), which is 0.5 for logistic."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        dst = output(op, memories)
        if dst.desc.has_padding:
            marks = np.zeros(dst.desc.nbytes, np.uint8)
            dst.desc.pack(np.ones(dst.desc.dims, np.float32), marks)
            dst.buffer[: marks.size].view(np.float32)[marks.view(np.float32) == 0] = 0.5


class OneMemoryTwice(Sized):
    """Wrong if the same memory is passed for two inputs."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if memories[0].address == memories[1].address:
            scale(output(op, memories), 0.5)


class HalfAway(Sized):
    """Rounds halves away from zero when it converts f32 to f16."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        src, dst = memories
        x, y = src.numpy().astype(np.float64), dst.numpy()
        if dst.desc.data_type == "f16" and src.desc.data_type == "f32":
            away = np.nextafter(y, np.copysign(np.inf, x).astype(y.dtype))
            is_half = np.isfinite(away) & (np.abs(x - y) == np.abs(x - away))
            dst.desc.pack(np.where(is_half, away, y), dst.buffer)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A faulty implementation, checks of which at least one must fail, and a problem pattern."""

    implementation: Callable[[str, backend.Implementation], backend.Implementation]
    checks: str
    problems: str


def when(condition):
    return partial(When, condition=lambda op, _attr: condition(op))


def with_operand(ones):
    """A condition: an operand has size 1 along exactly these of its four dims."""

    def has_operand(_op, attr):
        masks = [tuple(d for d, n in enumerate(desc.dims) if n == 1) for _, desc in attr.operands()]
        return ones in masks

    return partial(When, condition=has_operand)


def rounded_to(digits):
    """A fault: alpha and beta are rounded to this many digits."""

    def make(name, definition):
        def formula(op, **inputs):
            short = {f: float(f"{getattr(op, f):.{digits}g}") for f in ("alpha", "beta")}
            return definition.formula(replace(op, **short), **inputs)

        return Sized(name, Definition(name, formula, definition.like, definition.has_formula))

    return make


def _has_uneven_groups(op):
    return op.grouped_weights[0] > 1 and len(set(op.strides)) > 1


def changed(change, of="inputs"):
    return partial(Changed, change=change, of=of)


def _finite(x):
    return np.nan_to_num(x.astype(np.float32), nan=0.0, posinf=3e38, neginf=-3e38)


MATMUL = r"^--matmul .*257x263:263x269$"
FAULTS = {
    "batch_above_64": Fault(when(lambda op: op.dst.dims[0] > 64), "integers", r"^--conv mb67_ic3"),
    "images_above_64": Fault(
        when(lambda op: op.dst.dims[0] > 64), "integers", r"^--pool (?!--dir).*mb67_ic3"
    ),
    "m_from_64": Fault(when(lambda op: op.dst.dims[-2] >= 64), "integers", MATMUL),
    "k_from_64": Fault(when(lambda op: op.src.dims[-1] >= 64), "integers", MATMUL),
    "n_from_64": Fault(when(lambda op: op.dst.dims[-1] >= 64), "integers", MATMUL),
    "above_4096_elements": Fault(
        when(lambda op: op.dst.nelems > 4096), "integers random", r"^--eltwise 65537$"
    ),
    "plain_softmax": Fault(
        PlainSoftmax, "large cancellation ties", r"^--softmax --dtag=abx (5x17|2x9x4)$"
    ),
    "loses_nan_and_infinity": Fault(changed(_finite, "result"), "special", r"^--eltwise 300$"),
    "loses_nan_of_inputs": Fault(changed(_finite), "special", r"^--matmul .*7x9:9x17$"),
    "clips_inputs": Fault(
        changed(lambda x: np.clip(x, -60000, 60000)), "large", r"^--eltwise 300$"
    ),
    "addresses_of_16": Fault(partial(Aligned, bytes_=16), "shifted", r"^--eltwise 300$"),
    "addresses_of_4": Fault(partial(Aligned, bytes_=4), "shifted", r"^--eltwise 300$"),
    "addresses_of_lines": Fault(WrongInLines, "shifted", r"^--eltwise 300$"),
    # Faults for which the lists of the kit were extended.
    "infinity_becomes_finite": Fault(
        changed(lambda x: np.clip(x, -3.4e38, 3.4e38), "result"), "special", r"^--eltwise 300$"
    ),
    "columns_of_128": Fault(
        when(lambda op: op.dst.dims[-1] % 128 == 0), "integers", r"^--matmul .*256x512:512x256"
    ),
    "one_memory_twice": Fault(OneMemoryTwice, "shared", r"^--binary 2x17x3:2x17x3$"),
    "rounds_half_away": Fault(HalfAway, "ties", r"^--reorder --ddt=f16 (?!--attr)"),
    "loses_sign_of_zero": Fault(
        changed(lambda x: x + 0.0, "result"), "special", r"^--reorder --dtag=acb 2x17x3$"
    ),
    "stride_above_3": Fault(
        when(lambda op: max(op.strides) > 3), "integers", r"^--conv (?!--dir).*sh5"
    ),
    "padding_of_formula": Fault(
        PaddedByFormula, "padding", r"^--eltwise --tag=aBc8b --alg=logistic"
    ),
    # Faults that depend on one parameter.
    "four_digits": Fault(rounded_to(4), "random", r"^--eltwise --alg=linear .*567"),
    "six_digits": Fault(rounded_to(6), "random", r"^--eltwise --alg=linear .*567"),
    "one_stride_of_groups": Fault(when(_has_uneven_groups), "integers", r"^--conv --dir=FWD_D g19"),
    "operand_of_pixels": Fault(with_operand((0, 1)), "integers", r"^--softmax .*add:f32:12 "),
    "operand_of_images": Fault(with_operand((1, 2, 3)), "random", r"^--reorder .*add:f32:1\+"),
    "no_terms_no_bias": Fault(
        when(lambda op: op.bias and not op.src.dims[-1]), "integers", r"^--matmul .* 3x0:0x4$"
    ),
}

OPERATIONS = {
    backend.EltwiseForward: eltwise.FORWARD,
    backend.MatMul: matmul.TABLE,
    backend.PoolingForward: pooling.FORWARD,
    backend.SoftmaxForward: softmax.FORWARD,
    backend.ConvolutionForward: convolution.FORWARD,
    backend.Binary: binary.TABLE,
    backend.Reorder: reorder.TABLE,
}
TABLES = {
    operation.__name__: [
        make(name, definitions[0])
        for name, make in (("right", Sized), *((n, f.implementation) for n, f in FAULTS.items()))
    ]
    for operation, definitions in OPERATIONS.items()
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "sizes" and all implementations above."""
    return backend_of(__name__, SizesEngine, OPERATIONS)
