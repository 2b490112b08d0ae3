"""Merging of neighbouring loops that access memory like a single loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["is_one_loop", "merged"]

LoopT = TypeVar("LoopT")


def is_one_loop(outer: Sequence[int | None], inner: Sequence[int | None], extent: int) -> bool:
    """Return whether, in every tensor, one outer step equals `extent` steps of the inner loop.

    outer, inner: strides by tensor in elements; None if a loop has no constant stride.
    extent: the number of steps of the inner loop.
    """
    return all(
        step is not None and whole == step * extent
        for whole, step in zip(outer, inner, strict=True)
    )


def merged(
    loops: Iterable[LoopT], join: Callable[[LoopT, LoopT], LoopT | None]
) -> tuple[LoopT, ...]:
    """Return loops, outermost first, in which neighbours are merged as far as possible.

    join: returns the outer and the inner loop merged into one, or None if that is impossible.
    """
    result: list[LoopT] = []
    for loop in loops:
        joined = join(result[-1], loop) if result else None
        if joined is None:
            result.append(loop)
        else:
            result[-1] = joined
    return tuple(result)
