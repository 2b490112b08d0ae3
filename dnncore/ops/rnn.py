"""Recurrent cells: sequences through layers of vanilla RNN, LSTM and GRU cells, and their gradient.

With x the input of a layer at a step, h and c the states of the step before, W = weights_layer,
U = weights_iter, b = bias, P = weights_peephole and s(z) = 1 / (1 + exp(-z)), the cells are

    vanilla_rnn    h' = activation(W x + U h + b)
    vanilla_lstm   i = s(W_i x + U_i h + P_i c + b_i)       f = s(W_f x + U_f h + P_f c + b_f)
                   g = tanh(W_g x + U_g h + b_g)            c' = f c + i g
                   o = s(W_o x + U_o h + P_o c' + b_o)      h' = weights_projection (o tanh(c'))
    vanilla_gru    u = s(W_u x + U_u h + b_u)               r = s(W_r x + U_r h + b_r)
                   o = tanh(W_o x + U_o (r h) + b_o)        h' = u h + (1 - u) o
    lbr_gru        q = U_o h + b_q                          o = tanh(W_o x + r q + b_o)
    vanilla_augru, lbr_augru   as these, with (1 - attention) u in place of u in h'

The formulas, the names and the orders of gates (i, f, g, o; u, r, o; biases of lbr u, r, o, q; P of
i, f, o) are oneDNN's. lbr means "linear before reset". LSTM: S. Hochreiter and J. Schmidhuber 1997;
GRU: K. Cho et al. 2014; AUGRU: G. Zhou et al. 2018.

Shapes, with T steps, batch N, L layers, D directions (1 or 2), G gates (1, 4, 3):

    src_layer (T, N, SLC)                    dst_layer (T, N, DIC); concatenated (T, N, 2 DIC)
    src_iter, dst_iter (L, D, N, DIC)        src_iter_c, dst_iter_c (L, D, N, DHC)
    weights_layer (L, D, SLC, G, DHC)        weights_iter (L, D, DIC, G, DHC)
    weights_peephole (L, D, 3, DHC)          weights_projection (L, D, DHC, DIC)
    bias (L, D, G, DHC), lbr (L, D, 4, DHC)  attention (T, N, 1)

An absent src_iter or src_iter_c is zero. Without projection, DIC is DHC. Direction right2left
begins at the last step. A layer reads the layer below in its own direction (SLC = DIC), or both
directions, if bidirectional_concat has layers with SLC = 2 DIC.

Cells of integers, in inference: src_layer is u8, or for vanilla_lstm s8, and weights are s8. With
the attributes rnn_data_qparams (scale, shift) and rnn_weights_qparams, integers q of src_layer,
src_iter, dst_layer and dst_iter represent (q - shift) / scale, and weights w represent w / scales.
The cells compute with these numbers. After each step h' is rounded to integers,

    q = saturate(round(h' scale + shift))

to nearest, ties to even, and the next step, the next layer and the results read q. So are r h of
vanilla_gru and o tanh(c') before the projection. src_iter and dst_iter are both f32 or both q; an
f32 src_iter is rounded first. dst_layer is q or the numbers of q in f32. Of bidirectional_sum, it
is the sum of both numbers, rounded once more to an integer. c and the bias are f32.

The workspace, written by forward_training and read by the gradient, is f32, row-major, of dims
(L, D, T, N, S). A row holds the gates after their functions (none for vanilla_rnn), then c' of LSTM
or q of lbr, then h'. The gradient overwrites its outputs, and does not add to their old values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from dnncore.algorithms.rules import check_algorithm, check_finite, check_word
from dnncore.ops.operation import Argument, Operation, PropKind, reads, writes
from dnncore.ops.types import HALF_TYPES, Rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["RNN", "RNNBackward", "RNNForward"]

ALGORITHMS = {
    "vanilla_rnn": "h", "vanilla_lstm": "ifgo", "vanilla_gru": "uro", "lbr_gru": "uro",
    "vanilla_augru": "uro", "lbr_augru": "uro",
}  # fmt: skip
"""Algorithm -> its gates in order."""

DIRECTIONS = {"left2right": 1, "right2left": 1, "bidirectional_concat": 2, "bidirectional_sum": 2}
"""Direction -> D."""

INTEGERS = {"u8": ("vanilla_lstm", "vanilla_gru"), "s8": ("vanilla_lstm",)}
"""Type of 8-bit integers -> the algorithms that have it."""

ACTIVATIONS = ("relu", "tanh", "logistic")
OF_LSTM = ("src_iter_c", "weights_peephole", "weights_projection", "dst_iter_c")
INPUTS = ("src_layer", "src_iter", "src_iter_c", "attention", "weights_layer", "weights_iter",
          "weights_peephole", "weights_projection", "bias")  # fmt: skip
STATES = ("dst_layer", "dst_iter", "dst_iter_c")


def _type_rows() -> Rows:
    """One type; the bias, the states c and the gradients of half types may also be f32."""
    rows: list[dict[str, tuple[str, ...]]] = []
    for own in ("f32", *HALF_TYPES):
        wide = tuple(dict.fromkeys((own, "f32")))
        forward = [*INPUTS, *STATES]
        names = dict.fromkeys((*forward, *(f"diff_{name}" for name in STATES)), (own,))
        mixed = ["src_iter_c", "bias", "dst_iter_c", *(f"diff_{name}" for name in INPUTS)]
        rows.append({**names, **dict.fromkeys(mixed, wide)})
    return tuple(rows)


def _integer_rows() -> Rows:
    """Integers, with weights of s8. States h may be f32, but both of them."""
    wide = ("src_iter_c", "weights_peephole", "bias", "dst_iter_c")
    weights = ("weights_layer", "weights_iter", "weights_projection")
    names = dict.fromkeys(wide, ("f32",)) | dict.fromkeys(weights, ("s8",))
    return tuple(
        {"src_layer": (own,), **names, "src_iter": (state,), "dst_iter": (state,),
         "dst_layer": (own, "f32")}
        for own in INTEGERS
        for state in (own, "f32")
    )  # fmt: skip


class Sizes(NamedTuple):
    """The sizes of an operation, by oneDNN's names. biases: rows of the bias."""

    layers: int
    directions: int
    steps: int
    batch: int
    slc: int
    dhc: int
    dic: int
    gates: int
    biases: int


@dataclass(frozen=True, eq=False, kw_only=True)
class _RNN(Operation):
    """The part common to both directions."""

    TYPES: ClassVar[Rows] = _type_rows()

    activation: str = "tanh"
    alpha: float = 0.0

    def _check(self) -> None:
        algorithm, direction = self._words
        check_algorithm(self.KIND, algorithm, ALGORITHMS)
        check_word(self.KIND, DIRECTIONS, direction=direction)
        check_word(self.KIND, ACTIVATIONS, activation=self.activation)
        check_finite(self.KIND, alpha=self.alpha)
        if self.alpha < 0:
            self._fail(f"alpha must be at least 0, as the gradient needs; got {self.alpha!r}")
        self._set(alpha=float(self.alpha))
        self._check_descs(concrete=("src_layer",))
        if self.is_integer:
            self._check_integers()
        self._check_types()
        self._check_presence()
        self._check_sizes()

    @property
    def _words(self) -> tuple[str, str]:
        return vars(self)["algorithm"], vars(self)["direction"]

    def _check_integers(self) -> None:
        own, algorithm = vars(self)["src_layer"].data_type, self._words[0]
        prop_kind = vars(self).get("prop_kind", "backward")
        if prop_kind != "forward_inference":
            self._fail(f"cells of {own} are for forward_inference; got {prop_kind}")
        if algorithm not in INTEGERS[own]:
            self._fail(f"cells of {own} are {', '.join(INTEGERS[own])}; got {algorithm}")
        if self._desc("weights_peephole") is not None:
            self._fail(f"cells of {own} have no weights_peephole; leave it out")

    def _check_presence(self) -> None:
        algorithm = self._words[0]
        for name in OF_LSTM:
            if not self.is_lstm and getattr(self, name, None) is not None:
                self._fail(f"{name} belongs to vanilla_lstm; leave it out for {algorithm}")
        if self.has_attention != (self._desc("attention") is not None):
            wanted = "needs" if self.has_attention else "has no"
            self._fail(f"{algorithm} {wanted} attention, of dims (T, N, 1)")
        for name in ("src_iter", "dst_iter", "diff_dst_iter", "diff_src_iter"):
            both = [getattr(self, own, None) is None for own in (name, f"{name}_c")]
            if self.is_lstm and both[0] != both[1]:
                there = f"{name}_c" if both[0] else name
                self._fail(
                    f"{name} and {name}_c must be given together or not at all; got only {there}"
                )

    def _check_sizes(self) -> None:
        algorithm, direction = self._words
        for name, count in (("src_layer", 3), ("weights_layer", 5), ("weights_iter", 5)):
            got = getattr(self, name)
            if got.ndims != count:
                self._fail(f"{name} must have {count} dims; got {got.dims}")
        sizes = self.sizes
        if sizes.layers < 1:
            self._fail(f"there must be at least one layer; got weights_layer {self._wide.dims}")
        if not self._desc("weights_projection") and sizes.dic != sizes.dhc:
            absent = " without weights_projection" if self.is_lstm else ""
            self._fail(
                f"DIC of weights_iter must be DHC of weights_layer{absent};"
                f" got {sizes.dic} and {sizes.dhc}"
            )
        joint = direction == "bidirectional_concat" and sizes.slc == 2 * sizes.dic
        if sizes.layers > 1 and sizes.slc != sizes.dic and not joint:
            self._fail(
                "SLC must be DIC if there are several layers, because each layer reads the layer"
                f" below, or 2 DIC for bidirectional_concat; got SLC {sizes.slc}, DIC {sizes.dic}"
            )
        if self.has_attention and (sizes.layers > 1 or direction != "left2right"):
            self._fail(f"{algorithm} must have one layer and direction left2right")
        expected = self.dims
        for argument, desc in self.tensors():
            name = argument.name.removeprefix("diff_")
            if desc.dims != expected[name]:
                self._fail(
                    f"{argument.name} must be {expected[name]}, that is"
                    f" {self._in_letters(name, desc.dims)}; got {desc.dims}"
                )

    def _in_letters(self, name: str, got: Sequence[int]) -> str:
        """Return the dims of a tensor as letters, with the origins of those that are not `got`."""
        concat = self._words[1] == "bidirectional_concat"
        letters, dims = LETTERS_OF[name], self.dims[name]
        if name == "dst_layer" and concat:
            letters = (*letters[:2], "2 DIC")
        text = f"({', '.join(letters)})"
        if len(got) != len(dims):
            return text
        algorithm, direction = self._words
        origins = {"G": algorithm, "B": algorithm, "D": direction} | ORIGINS
        wrong = [
            f"{letter} = {size}" + f" of {origins[letter]}" * (letter in origins)
            for letter, size, own in zip(letters, dims, got, strict=True)
            if size != own and not letter.isdecimal()
        ]
        return f"{text} with {' and '.join(wrong)}" if wrong else text

    def _desc(self, name: str) -> MemoryDesc | None:
        return getattr(self, name, None)

    @property
    def _wide(self) -> MemoryDesc:
        desc: MemoryDesc = vars(self)["weights_layer"]
        return desc

    # -- what implementations need to know -----------------------------------------------------

    @property
    def is_lstm(self) -> bool:
        """Whether the cells have a state c."""
        return self._words[0] == "vanilla_lstm"

    @property
    def is_integer(self) -> bool:
        """Whether states are 8-bit integers."""
        return vars(self)["src_layer"].data_type in INTEGERS

    @property
    def is_lbr(self) -> bool:
        """Whether r multiplies the product with U_o, not h."""
        return self._words[0].startswith("lbr")

    @property
    def is_gru(self) -> bool:
        """Whether the cell is one of the four GRU cells."""
        return "gru" in self._words[0]

    @property
    def has_attention(self) -> bool:
        """Whether attention scales the update gate."""
        return "augru" in self._words[0]

    @property
    def sizes(self) -> Sizes:
        """The sizes, from src_layer and the weights."""
        steps, batch, _ = vars(self)["src_layer"].dims
        layers, _, slc, _, dhc = self._wide.dims
        gates = len(ALGORITHMS[self._words[0]])
        dic = vars(self)["weights_iter"].dims[2]
        directions = DIRECTIONS[self._words[1]]
        biases = 4 if self.is_lbr else gates
        return Sizes(layers, directions, steps, batch, slc, dhc, dic, gates, biases)

    @property
    def dims(self) -> Mapping[str, tuple[int, ...]]:
        """The dims of each tensor of the forward operation, by name."""
        return dims_of(self.sizes, concat=self._words[1] == "bidirectional_concat")

    @property
    def has_stacks(self) -> bool:
        """Whether the directions are separate stacks of layers."""
        return self.sizes.layers == 1 or self.sizes.slc == self.sizes.dic

    def is_reversed(self, direction: int) -> bool:
        """Whether direction 0 or 1 begins at the last step."""
        return direction == 1 or self._words[1] == "right2left"

    @property
    def parts(self) -> Mapping[str, slice]:
        """The columns of a row of the workspace: each gate, c or q, and h."""
        sizes, names = self.sizes, list(ALGORITHMS[self._words[0]])
        names = [] if names == ["h"] else names
        names += ["c"] * self.is_lstm + ["q"] * self.is_lbr
        columns = {name: slice(i * sizes.dhc, (i + 1) * sizes.dhc) for i, name in enumerate(names)}
        start = len(names) * sizes.dhc
        return columns | {"h": slice(start, start + sizes.dic)}

    @property
    def _workspace(self) -> MemoryDesc:
        sizes = self.sizes
        row = self.parts["h"].stop
        dims = (sizes.layers, sizes.directions, sizes.steps, sizes.batch, row)
        return MemoryDesc(dims, "f32")

    @property
    def _products(self) -> float:
        """Multiply-adds of all products of one pass."""
        sizes = self.sizes
        rows = float(sizes.layers * sizes.directions * sizes.steps * sizes.batch)
        width = (sizes.slc + sizes.dic) * sizes.gates
        width += sizes.dic if self._desc("weights_projection") is not None else 0
        return rows * width * sizes.dhc


def dims_of(sizes: Sizes, *, concat: bool) -> dict[str, tuple[int, ...]]:
    """Return the dims of each tensor of the forward operation."""
    layers, directions, steps, batch, slc, dhc, dic, gates, biases = sizes
    both = layers, directions
    return {
        "src_layer": (steps, batch, slc),
        "src_iter": (*both, batch, dic),
        "src_iter_c": (*both, batch, dhc),
        "attention": (steps, batch, 1),
        "weights_layer": (*both, slc, gates, dhc),
        "weights_iter": (*both, dic, gates, dhc),
        "weights_peephole": (*both, 3, dhc),
        "weights_projection": (*both, dhc, dic),
        "bias": (*both, biases, dhc),
        "dst_layer": (steps, batch, 2 * dic if concat else dic),
        "dst_iter": (*both, batch, dic),
        "dst_iter_c": (*both, batch, dhc),
    }


LETTERS_OF = {
    "src_layer": ("T", "N", "SLC"),
    "src_iter": ("L", "D", "N", "DIC"),
    "src_iter_c": ("L", "D", "N", "DHC"),
    "attention": ("T", "N", "1"),
    "weights_layer": ("L", "D", "SLC", "G", "DHC"),
    "weights_iter": ("L", "D", "DIC", "G", "DHC"),
    "weights_peephole": ("L", "D", "3", "DHC"),
    "weights_projection": ("L", "D", "DHC", "DIC"),
    "bias": ("L", "D", "B", "DHC"),
    "dst_layer": ("T", "N", "DIC"),
    "dst_iter": ("L", "D", "N", "DIC"),
    "dst_iter_c": ("L", "D", "N", "DHC"),
}
"""The dims of `dims_of` as letters; B is the number of biases."""
ORIGINS = {
    "T": "src_layer", "N": "src_layer", "L": "weights_layer", "SLC": "weights_layer",
    "DHC": "weights_layer", "DIC": "weights_iter", "2 DIC": "weights_iter",
}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class RNNForward(_RNN):
    """Recurrent cells forward. `help(dnncore.ops.rnn)` shows the formulas and all shapes.

    prop_kind: "forward_training" or "forward_inference"; only training writes a workspace.
    algorithm: "vanilla_rnn", "vanilla_lstm", "vanilla_gru", "lbr_gru", "vanilla_augru" or
        "lbr_augru".
    direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum".
    src_layer, dst_layer: the sequence and its result.
    src_iter, src_iter_c, dst_iter, dst_iter_c: states before the first and after the last step;
        src_iter_c and dst_iter_c belong to LSTM.
    attention: of AUGRU.
    weights_layer, weights_iter, bias: of all layers and directions.
    weights_peephole, weights_projection: of LSTM.
    activation, alpha: of vanilla_rnn: "tanh", "logistic" or "relu", which multiplies negative
        numbers by alpha.
    workspace: gates and states, f32, which the gradient reads.

    src_layer must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "rnn"
    TYPES: ClassVar[Rows] = (*_type_rows(), *_integer_rows())
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads(*INPUTS) + writes(*STATES, "workspace")

    prop_kind: PropKind = field(kw_only=False)
    algorithm: str = field(kw_only=False)
    direction: str = field(kw_only=False)
    src_layer: MemoryDesc
    src_iter: MemoryDesc | None = None
    src_iter_c: MemoryDesc | None = None
    attention: MemoryDesc | None = None
    weights_layer: MemoryDesc
    weights_iter: MemoryDesc
    weights_peephole: MemoryDesc | None = None
    weights_projection: MemoryDesc | None = None
    bias: MemoryDesc | None = None
    dst_layer: MemoryDesc
    dst_iter: MemoryDesc | None = None
    dst_iter_c: MemoryDesc | None = None

    def __post_init__(self) -> None:
        self._check_prop_kind(self.prop_kind)
        self._check()

    @property
    def type_rows(self) -> Rows:
        """Integers only in inference, in vanilla_lstm without peephole; u8 also in vanilla_gru."""
        is_inference = self.prop_kind == "forward_inference" and self.weights_peephole is None
        own = [name for name, algorithms in INTEGERS.items() if self.algorithm in algorithms]
        allowed = set(own) if is_inference else set()
        return [
            r for r in self.TYPES if allowed & {*r["src_layer"]} or "s8" not in r["weights_layer"]
        ]

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The descriptor of gates and states; None except in training."""
        return None if self.prop_kind == "forward_inference" else self._workspace

    @property
    def flops(self) -> float:
        """Two per multiply-add of the products with weights."""
        return 2.0 * self._products


@dataclass(frozen=True, eq=False, kw_only=True)
class RNNBackward(_RNN):
    """The gradient of recurrent cells. `help(dnncore.ops.rnn)` shows the formulas and all shapes.

    algorithm, direction, activation, alpha: as in `RNNForward`.
    src_layer, src_iter, src_iter_c, attention: as in the forward.
    weights_layer, weights_iter, weights_peephole, weights_projection: as in the forward.
    diff_dst_layer, diff_dst_iter, diff_dst_iter_c: the gradients of its results. Absent ones are
        zero.
    workspace: the workspace of the forward.
    diff_src_layer, diff_src_iter, diff_src_iter_c, diff_attention: results, each with the dims of
        its tensor; they may be omitted.
    diff_weights_layer, diff_weights_iter, diff_bias: as these; only diff_bias may be omitted.
    diff_weights_peephole, diff_weights_projection: as these; present if their weights are.

    src_layer must not have the format `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "rnn backward"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads(
        *INPUTS[:-1], "diff_dst_layer", "diff_dst_iter", "diff_dst_iter_c", "workspace"
    ) + writes("diff_weights_layer", "diff_weights_iter", "diff_weights_peephole",
               "diff_weights_projection", "diff_bias", "diff_src_layer", "diff_src_iter",
               "diff_src_iter_c", "diff_attention")  # fmt: skip

    algorithm: str = field(kw_only=False)
    direction: str = field(kw_only=False)
    src_layer: MemoryDesc
    src_iter: MemoryDesc | None = None
    src_iter_c: MemoryDesc | None = None
    attention: MemoryDesc | None = None
    weights_layer: MemoryDesc
    weights_iter: MemoryDesc
    weights_peephole: MemoryDesc | None = None
    weights_projection: MemoryDesc | None = None
    diff_dst_layer: MemoryDesc
    diff_dst_iter: MemoryDesc | None = None
    diff_dst_iter_c: MemoryDesc | None = None
    diff_weights_layer: MemoryDesc
    diff_weights_iter: MemoryDesc
    diff_weights_peephole: MemoryDesc | None = None
    diff_weights_projection: MemoryDesc | None = None
    diff_bias: MemoryDesc | None = None
    diff_src_layer: MemoryDesc | None = None
    diff_src_iter: MemoryDesc | None = None
    diff_src_iter_c: MemoryDesc | None = None
    diff_attention: MemoryDesc | None = None

    def __post_init__(self) -> None:
        self._check()
        for name in ("weights_peephole", "weights_projection"):
            if (self._desc(name) is None) != (self._desc(f"diff_{name}") is None):
                self._fail(f"{name} and diff_{name} must be given together or not at all")
        for name in ("src_iter", "src_iter_c", "attention"):
            if self._desc(name) is None and self._desc(f"diff_{name}") is not None:
                self._fail(f"diff_{name} needs {name}, which is absent")
        if self._desc("diff_dst_iter_c") is not None and not self.is_lstm:
            self._fail(
                f"diff_dst_iter_c belongs to vanilla_lstm; leave it out for {self.algorithm}"
            )

    @property
    def forward_op(self) -> Operation:
        """The forward operation that keeps the workspace."""
        dims, own = self.dims, self.src_layer.data_type
        states = {name: MemoryDesc(dims[name], own) for name in STATES}
        if not self.is_lstm:
            del states["dst_iter_c"]
        bias = None if self.diff_bias is None else MemoryDesc(dims["bias"], "f32")
        return self._as_forward(RNNForward, bias=bias, **states)

    def check_hint(self, hint: Any) -> None:
        """Check that the hint is a forward operation that keeps a workspace."""
        super().check_hint(hint)
        self._check_keeps_workspace(hint)

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """The hint's workspace, else gates and states."""
        if hint is not None:
            desc: MemoryDesc | None = hint.workspace_desc
            return desc
        return self._workspace

    @property
    def flops(self) -> float:
        """Four per multiply-add of the forward's products."""
        return 4.0 * self._products

    @property
    def bytes(self) -> float:
        """Every argument once, with the workspace."""
        return super().bytes + 4.0 * math.prod(self._workspace.dims)


RNN: TypeAlias = RNNForward | RNNBackward
