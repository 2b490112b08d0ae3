"""Messages of operations, in the words of the function that was called."""

from __future__ import annotations

import re

from dnncore import ops

__all__ = ["in_words_of"]

_KINDS = {kind.KIND for kind in vars(ops).values() if hasattr(kind, "KIND")}
_SIDES = {"l": "before", "r": "after"}


def in_words_of(function: str, message: str) -> str:
    """Return a message with the function's name first, in place of the operation's name.

    padding_l and padding_r of the operation are the two sides of the function's padding. The sizes
    of recurrent cells have the letters of the function.
    """
    kind, _, rule = message.partition(": ")
    if kind not in _KINDS:
        return message if kind == function else f"{function}: {message}"
    rule = re.sub(
        r"padding_([lr])(\[\d\])?",
        lambda found: f"padding{found[2] or ''} {_SIDES[found[1]]}",
        rule,
    )
    if kind == "rnn":
        state = "P" if function == "lstm" else "H"
        for theirs, ours in (("SLC", "I"), ("DIC", state), ("DHC", "H"), ("L", "layers")):
            rule = re.sub(rf"\b{theirs}\b", ours, rule)
    return f"{function}: {rule}"
