"""The refusals in the message of `NoImplementation`: a line for each distinct reason."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.backend import Refusal
from dnncore.selection.host_fallback import ADVICE, PREFIX

__all__ = ["listed", "offers_host_fallback"]

MOST_NAMES = 3  # of implementations in a line
REST = (
    "the attribute `refusals` of this error lists each implementation; `dnncore impls -v` prints"
    " them for a problem text"
)


def offers_host_fallback(refusals: Sequence[Refusal]) -> bool:
    """Whether the CPU could compute the problem, but the user has not allowed it."""
    return any(refusal.reason == ADVICE for refusal in refusals)


def listed(refusals: Sequence[Refusal]) -> str:
    """Return lines with the implementations and the reason that they have in common.

    Host fallbacks are omitted if allowing them would help.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        if refusal.impl_name.startswith(PREFIX) and offers_host_fallback(refusals):
            continue
        names.setdefault((refusal.kind, refusal.reason), []).append(refusal.impl_name)
    lines = [f"{_few(group)}: {kind}: {reason}" for (kind, reason), group in names.items()]
    if any(len(group) > MOST_NAMES for group in names.values()):
        lines.append(REST)
    return "".join(f"\n  {line}" for line in lines)


def _few(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    few = names[: MOST_NAMES - 1]
    return f"{', '.join(few)} and {len(names) - len(few)} others"
