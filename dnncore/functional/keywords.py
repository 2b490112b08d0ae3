"""Suggestions for unknown keyword arguments, such as torch's names."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

__all__ = ["with_suggestions"]

# Name in other libraries -> names here; the first one that the function has is suggested.
NAMES = {
    "attn_mask": ("mask",),
    "beta": ("shift",),
    "bias": ("shift",),
    "count_include_pad": ("include_padding",),
    "dilation": ("dilations",),
    "dim": ("axis",),
    "eps": ("epsilon",),
    "exponent": ("beta",),
    "gamma": ("scale",),
    "hx": ("src_iter",),
    "input": ("src", "src0", "src_layer"),
    "is_causal": ("causal",),
    "keepdim": ("keepdims",),
    "kernel_size": ("kernel",),
    "key": ("keys",),
    "max": ("beta",),
    "min": ("alpha",),
    "mode": ("algorithm",),
    "momentum": ("average_factor",),
    "negative_slope": ("alpha",),
    "num_groups": ("groups",),
    "other": ("src1",),
    "query": ("queries",),
    "running_mean": ("mean",),
    "running_var": ("running_variance", "variance"),
    "scale_factor": ("factors",),
    "stride": ("strides",),
    "tensors": ("srcs",),
    "value": ("values",),
    "weight": ("weights", "scale"),
}
VALUES = {
    "dilation": "dilations=dilation - 1",
    "is_causal": "causal='top_left'",
}
ABSENT = {
    "align_corners": "positions are those of align_corners=False",
    "dropout_p": "there is no dropout",
    "dtype": "the types of the arrays determine that of the result",
    "enable_gqa": "heads share keys and values without an option",
    "inplace": "the result is a new array",
    "normalized_shape": "the last dim is normalized",
    "out": "the result is a new array",
    "output_padding": "pass padding=[(p, p - output_padding), ...], a pair for each spatial dim",
    "padding_mode": "padding is 0",
    "training": "batch_norm_training takes running statistics",
}


def with_suggestions(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Return the function as a member of a module, with a suggestion in the error for an unknown
    keyword argument.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # an error of the function's own code
                raise
            raise TypeError(f"{error}{_hint(function, str(error))}") from None

    call.__module__ = module  # pickles find it there
    return call


def _hint(function: Callable[..., Any], message: str) -> str:
    found = re.search(r"unexpected keyword argument '(\w+)'", message)
    if not found:
        return ""
    name, own = found[1], list(inspect.signature(function).parameters)
    for ours in NAMES.get(name, ()):
        if ours in own:
            return f"; here it is {VALUES.get(name, ours)}"
    if name in ABSENT:
        return f"; {ABSENT[name]}"
    if near := difflib.get_close_matches(name, own, 1):
        return f"; did you mean {near[0]}?"
    return f"; it takes {', '.join(own)}"
