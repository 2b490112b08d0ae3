"""The record of an operation: data for problem text, checks and the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnncore.algorithms.propagation import Approximate
from dnncore.algorithms.rounding import Array, Noise
from dnncore.attributes import Attributes
from dnncore.ops import Operation
from dnncore.problem.drivers.draws import Draws, Options
from dnncore.problem.settings import Settings

__all__ = ["Driver", "ErrorRule", "Evaluate", "Golden", "Inputs", "Oracle", "VerboseLine"]

Inputs = Mapping[str, Array]
"""Argument name -> values."""


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Computes the outputs of an operation as the reference does.

    function: computes them. Results for the same mapping of inputs are kept.
    random_order: whether the inputs were drawn independently from one distribution. Then the terms
        of every sum are in random order. Otherwise error bounds must hold for every order.
    cut_off: whether both factors of products have half types. Then tensor cores may cut off sums.
    data_type: the type of the first input, whatever the operation's descriptors state.
    """

    function: Callable[[Operation, Attributes, Inputs], dict[str, Array]]
    random_order: bool = False
    cut_off: bool = False
    data_type: str = "f32"
    _kept: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, op: Operation, attr: Attributes, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name."""
        key = op, attr, id(inputs)
        if key not in self._kept:
            self.keep(op, attr, inputs, self.function(op, attr, inputs))
        return dict(self._kept[key][1])

    def keep(self, op: Operation, attr: Attributes, inputs: Inputs, outputs: Inputs) -> None:
        """Return these outputs for the same arguments from now on."""
        self._kept[op, attr, id(inputs)] = inputs, outputs  # inputs are kept: their id stays unique


ErrorRule = Callable[[Any, Inputs, Evaluate], dict[str, Noise]]
"""Returns the noise of each output, from an operation and its inputs. Exact outputs are omitted."""

Oracle = Callable[[Any, Any, Mapping[str, Any]], dict[str, Any]]
"""oracle(torch, op, tensors) returns the outputs of an operation, computed by torch in float64."""


def _no_words(_op: Operation) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True)
class Golden:
    """A problem with results that were computed by hand.

    text: the problem text.
    inputs, outputs: the values by argument, as nested lists. An output that is not a whole number
        is checked to 5 digits.
    """

    text: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class VerboseLine:
    """The form of verbose lines about an operation.

    tensors: operation type -> the tensors of a line, WORD or WORD:ARGUMENT. A word without argument
        is an absent tensor. WORD? is omitted if the tensor is absent, WORD=OTHER if it equals the
        argument OTHER. For an operation type without an entry, the line lists all tensors in order.
    auxiliary: a format string of the operation's fields.
    words: further words.
    spelling: (dnncore's text, oneDNN's text), if oneDNN spells a part of the shape in another way.
    letters: a pattern of the shape's letters that oneDNN lacks. They become words.
    onednn: operation type -> the tensors of oneDNN's lines, if they differ: WORD or
        WORD:ARGUMENT+ARGUMENT, for one descriptor of several tensors. Each may be omitted.
    adapt: replaces the words of oneDNN's lines by those of the driver, in place. It also gets the
        words of the tensors.
    """

    tensors: Mapping[type[Operation], str] = field(default_factory=dict)
    auxiliary: str = ""
    words: Callable[[Any], Iterator[str]] = _no_words
    spelling: tuple[str, str] = ("", "")
    letters: str = "$"
    onednn: Mapping[type[Operation], str] = field(default_factory=dict)
    adapt: Callable[[dict[str, str], list[str]], None] = lambda _words, _tensors: None


def _no_integers(*_arguments: object) -> None:
    """Return None: the operation does not round between stages."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The record of the operations of one kind.

    Problem text:
        name: the name of the option that selects the driver.
        operations: the operation types of the driver.
        defaults: the options, with their default values.
        read: makes the operation of all options and the shape. Raises `Misread` if a text cannot
            be read, `DescriptorError` if the tensors do not fit together.
        write: the inverse of `read`; omitted options have their defaults.
        verbose: the fields of verbose lines.
        always_printed: the options that benchdnn prints even if they have their defaults.
        printed_shape: the letters of its shape in benchdnn's order, or "". A letter with * means
            all axes that are printed.
        is_transposed: whether the windows of its shape lie in dst, as in deconvolution.
    Correctness:
        golden: problems with results that were computed by hand; each operation needs one.
        oracles: operation type -> torch's results.
        errors: operation type -> error bound. The default bounds sums of products.
        workspace_errors: the errors of a gradient's outputs, by name, that errors of its workspace
            cause.
        integers: the outputs of operations of integers that round between their stages, by name,
            before they are rounded to their types; None for other operations. It takes the place of
            `errors`.
        integer_oracle: torch's results for these operations; None for other operations.
        error_factor: a function that returns the largest factor by which the errors of an
            operation's algorithm may exceed the errors of direct sums.
        has_products: whether the operation computes products, whose factors `fpmath` may round.
        special_inputs: the first of these inputs that an operation has is the only one with NaN and
            infinities in the kit. If it is empty, all inputs have them.
        keeps_integers: whether integer inputs give integer outputs.
        linear_in: the argument in which an operation is affine, or "". A gradient with such an
            argument is the adjoint of its forward operation.
        smooth: a function of an operation and src. It returns values at which the slope may be
            measured, or None for an operation without such values. None if no gradient is
            checked in this way.
    Random problems:
        options: option -> values to draw from; the first is the default.
        draw_shape: draws the words after the options: a shape, perhaps after further options.
    """

    name: str
    operations: tuple[type[Operation], ...]
    defaults: Settings
    read: Callable[[Settings], Operation]
    write: Callable[[Any], Settings]
    verbose: VerboseLine = VerboseLine()
    always_printed: tuple[str, ...] = ()
    printed_shape: str = ""
    is_transposed: bool = False

    golden: Sequence[Golden]
    oracles: Mapping[type[Operation], Oracle]
    errors: Mapping[type[Operation], ErrorRule] = field(default_factory=dict)
    workspace_errors: Callable[[Any, Inputs, Array, Evaluate], Inputs] | None = None
    integers: Callable[[Any, Attributes, Inputs], dict[str, Approximate] | None] = _no_integers
    integer_oracle: Callable[..., dict[str, Any] | None] = _no_integers
    error_factor: Callable[[Any], float] = lambda _op: 1.0
    has_products: bool = False
    special_inputs: Sequence[str] = ()
    keeps_integers: Callable[[Any], bool] = lambda _op: True
    linear_in: Callable[[Any], str] = lambda _op: ""
    smooth: Callable[[Any, Array], Array | None] | None = None

    options: Options
    draw_shape: Callable[[Draws], str]
