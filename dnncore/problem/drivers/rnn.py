"""Recurrent cells: `--rnn --dir=FWD_D --alg=VANILLA_LSTM l1t5mb2_sic16slc16dhc16dic16`.

An LSTM of integers in inference; the last part of `--sdt` and `--ddt` is the type of the states c:

    --rnn --dir=FWD_I --alg=VANILLA_LSTM --sdt=u8:u8:f32 --wdt=s8 --ddt=u8:u8:f32
    --attr-rnn-data-qparams=100:128 --attr-rnn-weights-qparams=24:2000 l1t5mb2_dhc16

`--cfg` has no configurations of integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnncore.algorithms.rounding import Array
from dnncore.errors import DataTypeError
from dnncore.ops import Operation, RNNBackward, RNNForward, rnn
from dnncore.problem import options
from dnncore.problem.directions import Direction
from dnncore.problem.drivers import rnn_integer_errors, rnn_oracle
from dnncore.problem.drivers.draws import ANY_TAGS, Draws
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.rnn_errors import errors, gradient_errors
from dnncore.problem.settings import (
    Settings,
    Unsupported,
    algorithm_text,
    misread,
    number_text,
    read_algorithm,
    read_choice,
    read_integer,
    read_number,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import read_tensors, role_of, write_tensors
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["RNN"]

ALGORITHMS = {name.upper(): name for name in rnn.ALGORITHMS}
DIRECTIONS = {
    "FWD_D": Direction(RNNForward, "forward_training"),
    "FWD_I": Direction(RNNForward, "forward_inference"),
    "BWD_DW": Direction(RNNBackward),
}
DEFAULTS = {
    "dir": "FWD_D", "prop": "", "dt": "", "sdt": "f32", "wdt": "f32", "ddt": "f32",
    "bia-dt": "f32", "stag": "abx", "wtag": "any",
    "btag": "abx", "dtag": "abx", "alg": "VANILLA_RNN", "direction": "left2right",
    "activation": "tanh", "alpha": "0", "with-peephole": "false", "with-projection": "false",
    "without": "", "mb": "0", **options.RNN,
}  # fmt: skip
OPTIONAL = ("src_iter", "src_iter_c", "bias", "dst_iter", "dst_iter_c", "diff_dst_iter",
            "diff_dst_iter_c", "diff_bias", "diff_src_layer", "diff_src_iter", "diff_src_iter_c",
            "diff_attention")  # fmt: skip
FLAGS = ("", "O")
EXAMPLE = "an LSTM of integers has --dir=FWD_I --sdt=u8:u8:f32 --wdt=s8 --ddt=u8:u8:f32"
LETTERS = "l t mb sic slc dhc dic"


def read(settings: Settings) -> Operation:
    """Make the operation. All optional tensors are present, except those of `without`."""
    settings = _of_benchdnn(settings)
    settings = {**settings, "dir": (settings["prop"] or settings["dir"]).upper()}
    direction: Direction = read_choice(settings, "dir", DIRECTIONS)
    algorithm = read_algorithm(settings, ALGORITHMS, "")
    side = settings["direction"].lower().removeprefix("unidirectional_")
    side = read_choice(
        {**settings, "direction": side}, "direction", dict(zip(*[rnn.DIRECTIONS] * 2, strict=True))
    )
    dims = rnn.dims_of(_sizes(settings, algorithm, side), concat=side == "bidirectional_concat")
    absent = _absent(settings, algorithm)
    names = [
        n for n in direction.names if n not in absent and n.removeprefix("diff_") not in absent
    ]
    settings = _with_tags(settings, names)
    tensors = read_tensors(settings, {n: dims[n.removeprefix("diff_")] for n in names})
    fields: dict[str, Any] = {"prop_kind": direction.prop_kind} if direction.prop_kind else {}
    kind: Any = direction.kind
    activation = settings["activation"].lower().removeprefix("eltwise_")
    try:
        operation: Operation = kind(
            **fields,
            **tensors,
            algorithm=algorithm,
            direction=side,
            activation="tanh" if activation == "undef" else activation,
            alpha=read_number(settings, "alpha"),
        )
    except DataTypeError as error:
        raise _with_example(error, tensors) from None
    return operation


def _with_example(error: DataTypeError, tensors: Mapping[str, MemoryDesc]) -> DataTypeError:
    """Return the error; if tensors are integers, with the types of a cell of integers."""
    if all(desc.data_type not in (*rnn.INTEGERS, "s32") for desc in tensors.values()):
        return error
    return DataTypeError(f"{error}; {EXAMPLE}", error.feature)


def _of_benchdnn(settings: Settings) -> Settings:
    """Return the settings with benchdnn's options for types and directions as dnncore's."""
    if settings["flags"].upper() not in FLAGS:
        misread(settings, "flags", "O, the gradients overwrite, or nothing")
    known: dict[str, str] = {}
    if own := settings["cfg"]:
        match = re.fullmatch(r"(f32|bf16|f16)(f32)?", own)
        if match is None:
            rule = f"write the types of tensors; {EXAMPLE}"
            raise Unsupported({f"benchdnn's configuration {own}": rule})
        known |= dict.fromkeys(("sdt", "wdt", "ddt"), match[1])
        known["bia-dt"] = match[2] or match[1]
    side = settings["direction"].lower()
    if side in ("concat", "sum"):
        known["direction"] = f"bidirectional_{side}"
    return {**settings, **known}


def _with_tags(settings: Settings, names: Sequence[str]) -> Settings:
    """Return the settings with benchdnn's --tag as dnncore's options: a format per tensor.

    It has the formats of the sequences and of the weights of gates. Others are row-major, also
    sequences of `any`.
    """
    tags = settings["tag"].split(":")
    if tags == [""]:
        return settings
    if len(tags) != 3:
        misread(settings, "tag", "the formats of src, weights and dst, with colons between them")
    of_gates = ("weights_layer", "weights_iter")
    players = {"src": ("src_layer",), "weights": of_gates, "dst": ("dst_layer",)}
    found = {}
    for tag, (role, own) in zip(tags, players.items(), strict=True):
        plain = tag == "any" and role != "weights"
        found[f"{role[0]}tag"] = ":".join(
            tag if not plain and name.removeprefix("diff_") in own else "abx"
            for name in names
            if role_of(name) == role
        )
    return {**settings, **found}


def _sizes(settings: Settings, algorithm: str, side: str) -> rnn.Sizes:
    letters = read_letters(settings, LETTERS, needed="")
    known = [letters[name] for name in ("dhc", "dic", "sic", "slc") if name in letters]
    if not known:
        misread(settings, "shape", "one of dhc, dic, sic, slc and a number")
    dhc = letters.get("dhc", known[0])
    dic = letters.get("dic", letters.get("sic", dhc))
    if letters.get("sic", dic) != dic:
        misread(settings, "shape", "sic equal to dic")
    gates = len(rnn.ALGORITHMS[algorithm])
    return rnn.Sizes(
        _given(settings, "l") or letters.get("l", 1), rnn.DIRECTIONS[side],
        _given(settings, "t") or letters.get("t", 1),
        read_batch(settings, letters), letters.get("slc", dic), dhc, dic, gates,
        4 if algorithm.startswith("lbr") else gates,
    )  # fmt: skip


def _given(settings: Settings, name: str) -> int:
    """Return the number of layers or steps that is given instead of that of the shape."""
    number = read_integer(settings, name)
    if number < 0:
        misread(settings, name, "a positive number, or 0 for that of the shape")
    return number


def _absent(settings: Settings, algorithm: str) -> set[str]:
    """Return the names of absent tensors; names without diff_ apply to gradients, too."""
    absent = set(filter(None, settings["without"].split("+")))
    if not absent <= set(OPTIONAL):
        misread(settings, "without", f"names among {', '.join(OPTIONAL)}, with + between them")
    if algorithm != "vanilla_lstm":
        absent |= set(rnn.OF_LSTM)
    if "augru" not in algorithm:
        absent.add("attention")
    for word in ("peephole", "projection"):
        flag = read_choice({**settings, f"with-{word}": settings[f"with-{word}"].lower()},
                           f"with-{word}", {"true": True, "false": False})  # fmt: skip
        if not flag:
            absent.add(f"weights_{word}")
    return absent


def write(op: rnn.RNN) -> Settings:
    """The inverse of `read`."""
    sizes = op.sizes
    shape = f"l{sizes.layers}t{sizes.steps}mb{sizes.batch}"
    shape += f"_sic{sizes.dic}slc{sizes.slc}dhc{sizes.dhc}dic{sizes.dic}"
    tensors = write_tensors(op, {n: t for n, t in DEFAULTS.items() if n not in ("dt", "tag")})
    kind = (type(op), getattr(op, "prop_kind", ""))
    return {
        "dir": next(w for w, row in DIRECTIONS.items() if (row.kind, row.prop_kind) == kind),
        **tensors,
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "direction": op.direction,
        "activation": op.activation,
        "alpha": number_text(op.alpha),
        "with-peephole": str(op.weights_peephole is not None).lower(),
        "with-projection": str(op.weights_projection is not None).lower(),
        "without": "+".join(_missing(op)),
        "shape": shape,
    }


def _missing(op: rnn.RNN) -> Iterator[str]:
    """Return the optional tensors that the operation could have and lacks."""
    present = {row.name for row, _ in op.tensors()}
    table = {row.name for row in op.ARGUMENTS}
    for name in OPTIONAL:
        bare = name.removeprefix("diff_")
        implied = bare != name and bare in table and bare not in present
        implied = implied or (not op.is_lstm and bare in rnn.OF_LSTM)
        implied = implied or (bare == "attention" and not op.has_attention)
        if name in table and name not in present and not implied:
            yield name


def _words(op: rnn.RNN) -> Iterator[str]:
    """Return words for what oneDNN's lines lack."""
    written = write(op)
    for name in ("alpha", "with-peephole", "with-projection", "without"):
        if written[name] != DEFAULTS[name]:
            yield f"{name}:{written[name]}"


def _adapt(words: dict[str, str], tensors: list[str]) -> None:
    """Replace oneDNN's word `flags` by the words for tensors that are there or not.

    oneDNN lists no tensors of the state c: they are there if those of h are.
    """
    if words.pop("flags", None) is None:
        return
    words["with-peephole"] = str("wei_peephole" in tensors).lower()
    words["with-projection"] = str("wei_proj" in tensors).lower()
    absent = [name for name in ("src_iter", "bias", "dst_iter") if name not in tensors]
    words["without"] = "+".join(n for name in absent for n in (name, f"{name}_c") if n in OPTIONAL)


# -- correctness -----------------------------------------------------------------------------------


def _workspace_errors(op: RNNBackward, inputs: Inputs, error: Array, evaluate: Evaluate) -> Any:
    noise = gradient_errors(op, inputs, evaluate, error)
    return {name: own.limit for name, own in noise.items()}


def _draw_shape(draws: Draws) -> str:
    layers, size = draws.integer(1, 3), draws.channels()
    return f"l{layers}t{draws.integer(0, 4)}mb{draws.batch()}_dhc{size}"


GOLDEN = (
    Golden(  # 0.5 h + x, whose negative values are halved
        "--rnn --activation=relu --alpha=0.5 --without=dst_iter l1t2mb1_slc1dhc1",
        {"src_layer": [[[1]], [[-4]]], "src_iter": [[[[2]]]], "weights_layer": [[[[[1]]]]],
         "weights_iter": [[[[[0.5]]]]], "bias": [[[[0]]]]},
        {"dst_layer": [[[2]], [[-1.5]]], "workspace": [[[[[2]], [[-1.5]]]]]},
    ),
    Golden(  # z = 0: gates 1/2, c' = c / 2 = 0.6931472, h' = 0.5 tanh(log 2) = 0.5 * 0.6
        "--rnn --dir=FWD_I --alg=VANILLA_LSTM --without=bias l1t1mb1_slc1dhc1",
        {"src_layer": [[[5]]], "src_iter": [[[[7]]]], "src_iter_c": [[[[1.3862944]]]],
         "weights_layer": [[[[[0], [0], [0], [0]]]]], "weights_iter": [[[[[0], [0], [0], [0]]]]]},
        {"dst_layer": [[[0.3]]], "dst_iter": [[[[0.3]]]], "dst_iter_c": [[[[0.6931472]]]]},
    ),
    Golden(  # u = r = 1/2, o = tanh(log 2) = 0.6, h' = 0.5 * 2 + 0.5 * 0.6
        "--rnn --alg=VANILLA_GRU --without=bias+dst_iter l1t1mb1_slc1dhc1",
        {"src_layer": [[[0.6931472]]], "src_iter": [[[[2]]]],
         "weights_layer": [[[[[0], [0], [1]]]]], "weights_iter": [[[[[0], [0], [0]]]]]},
        {"dst_layer": [[[1.3]]], "workspace": [[[[[0.5, 0.5, 0.6, 1.3]]]]]},
    ),
    Golden(  # r q = 0.5 * (3 * 2 - 8) = -1, and q alone has the bias -8
        "--rnn --alg=LBR_GRU --without=dst_iter l1t1mb1_slc1dhc1",
        {"src_layer": [[[0]]], "src_iter": [[[[2]]]], "weights_layer": [[[[[0], [0], [0]]]]],
         "weights_iter": [[[[[0], [0], [3]]]]], "bias": [[[[0], [0], [1], [-8]]]]},
        {"dst_layer": [[[1]]], "workspace": [[[[[0.5, 0.5, 0, -2, 1]]]]]},
    ),
    Golden(  # v = (1 - 0.5) * 0.5: h' = 0.25 * 2 + 0.75 * 0.6
        "--rnn --alg=VANILLA_AUGRU --without=bias+dst_iter l1t1mb1_slc1dhc1",
        {"src_layer": [[[0.6931472]]], "src_iter": [[[[2]]]], "attention": [[[0.5]]],
         "weights_layer": [[[[[0], [0], [1]]]]], "weights_iter": [[[[[0], [0], [0]]]]]},
        {"dst_layer": [[[0.95]]], "workspace": [[[[[0.5, 0.5, 0.6, 0.95]]]]]},
    ),
    Golden(  # dz = (3, 4) at the two steps; 3 = 1 + 0.5 * 4, because the state goes on by U = 0.5
        "--rnn --dir=BWD_DW --activation=relu --without=diff_dst_iter l1t2mb1_slc1dhc1",
        {"src_layer": [[[1]], [[2]]], "src_iter": [[[[6]]]], "weights_layer": [[[[[2]]]]],
         "weights_iter": [[[[[0.5]]]]], "workspace": [[[[[5]], [[6.5]]]]],
         "diff_dst_layer": [[[1]], [[4]]]},
        {"diff_src_layer": [[[6]], [[8]]], "diff_src_iter": [[[[1.5]]]],
         "diff_weights_layer": [[[[[11]]]]], "diff_weights_iter": [[[[[38]]]]],
         "diff_bias": [[[[7]]]]},
    ),
)  # fmt: skip

RNN = Driver(
    name="rnn",
    operations=(RNNForward, RNNBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            RNNForward: "src_layer src_iter? src_iter_c? attention? wei_layer:weights_layer"
            " wei_iter:weights_iter wei_peephole?:weights_peephole"
            " wei_proj?:weights_projection bias? dst_layer dst_iter? dst_iter_c? workspace?",
            RNNBackward: "src_layer src_iter? src_iter_c? attention? wei_layer:weights_layer"
            " wei_iter:weights_iter wei_peephole?:weights_peephole"
            " wei_proj?:weights_projection diff_dst_layer diff_dst_iter? diff_dst_iter_c?"
            " workspace? diff_wei_layer:diff_weights_layer diff_wei_iter:diff_weights_iter"
            " diff_wei_peephole?:diff_weights_peephole diff_wei_proj?:diff_weights_projection"
            " diff_bias? diff_src_layer? diff_src_iter? diff_src_iter_c? diff_attention?",
        },
        auxiliary="alg:{algorithm} direction:{direction} activation:{activation}",
        words=_words,
        spelling=("_", ""),
        onednn={
            RNNForward: "src_layer:src_layer+attention src_iter:src_iter+src_iter_c"
            " wei_layer:weights_layer wei_iter:weights_iter wei_peephole:weights_peephole"
            " wei_proj:weights_projection bias dst_layer dst_iter:dst_iter+dst_iter_c",
            RNNBackward: "src_layer:src_layer+attention src_iter:src_iter+src_iter_c"
            " wei_layer:weights_layer wei_iter:weights_iter wei_peephole:weights_peephole"
            " wei_proj:weights_projection bias:none dst_layer:none dst_iter:none"
            " diff_src_layer:diff_src_layer+diff_attention"
            " diff_src_iter:diff_src_iter+diff_src_iter_c diff_wei_layer:diff_weights_layer"
            " diff_wei_iter:diff_weights_iter diff_wei_peephole:diff_weights_peephole"
            " diff_wei_proj:diff_weights_projection diff_bias diff_dst_layer"
            " diff_dst_iter:diff_dst_iter+diff_dst_iter_c",
        },
        adapt=_adapt,
    ),
    always_printed=("alg", "direction", "activation"),
    printed_shape="l t mb sic slc dhc dic",
    golden=GOLDEN,
    oracles={RNNForward: rnn_oracle.forward, RNNBackward: rnn_oracle.gradient},
    errors={RNNForward: errors, RNNBackward: gradient_errors},
    workspace_errors=_workspace_errors,
    integers=rnn_integer_errors.numbers,
    integer_oracle=rnn_oracle.integers,
    keeps_integers=lambda _op: False,
    options={
        "dir": ("FWD_D", "FWD_I", "BWD_DW"),
        "stag": ("abx", "xba"), "wtag": ANY_TAGS, "dtag": ("abx", "any", "xba"),
        "alg": ("VANILLA_RNN", "VANILLA_LSTM", "VANILLA_GRU", "LBR_GRU"),
        "direction": tuple(rnn.DIRECTIONS), "activation": ("tanh", "relu", "logistic"),
        "with-peephole": ("false", "true"),
        "without": ("", "src_iter+src_iter_c", "bias", "dst_iter+dst_iter_c"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
