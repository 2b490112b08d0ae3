"""Checks of the plugin contract: `accept` is pure and quick, refusals are informative."""

from __future__ import annotations

import copy
import pickle
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, get_args

from dnncore import cache
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.attributes import Attributes
from dnncore.backend import Accepted, Implementation, RefusalKind, Refused
from dnncore.engines.device import LIMITS
from dnncore.engines.engine import Engine
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.testing.checks.case import Case
from dnncore.testing.checks.results import CheckFailed
from dnncore.testing.checks.surroundings import changed, world

__all__ = ["accept", "descriptors", "device", "refusals"]

QUICK_SECONDS = 0.02  # limit for the quickest of several calls; built-in ones take 20 us to 7 ms
ASKED, MOST_ASKED = 3, 30  # numbers of calls; the second applies to a machine with other work
OWN_KINDS = set(get_args(RefusalKind)) - {"filter", "failed"}  # only the core uses these two


def accept(case: Case, implementation: Implementation[Any]) -> None:
    """`accept` is quick, always gives the same answer, builds and allocates nothing, and changes no
    shared state.
    """
    answers: list[Any] = []
    seconds: list[float] = []
    _ = case.engine.peaks  # estimates use them, and measuring them builds kernels
    before, present = _built(), world(case.engine)
    with _counted_allocations(case.engine) as allocated:
        while len(seconds) < (ASKED if min(seconds, default=0) <= QUICK_SECONDS else MOST_ASKED):
            start = time.perf_counter()
            answers.append(_ask(case, implementation))
            seconds.append(time.perf_counter() - start)
    touched = changed(present, world(case.engine))
    if touched:
        raise CheckFailed(f"accept must be pure; it changed {', '.join(touched)}")
    if any(_content(answer) != _content(answers[0]) for answer in answers):
        raise CheckFailed(f"accept must always give one answer; two differ: {_different(answers)}")
    built = {name: n - before[name] for name, n in _built().items() if n != before[name]}
    if built:
        raise CheckFailed(f"accept must build nothing; cache counters grew by {built}")
    if allocated:
        raise CheckFailed(f"accept must allocate nothing; it allocated {allocated} bytes")
    if min(seconds) > QUICK_SECONDS:
        raise CheckFailed(
            f"accept must take less than {QUICK_SECONDS * 1e3:.0f} ms, since every implementation"
            f" is asked; the quickest of {MOST_ASKED} took {min(seconds) * 1e3:.1f} ms"
        )


def _ask(case: Case, implementation: Implementation[Any]) -> Any:
    answer = implementation.answer(case.op, case.attr, case.engine, None)
    if not isinstance(answer, Accepted | Refused):
        raise CheckFailed(
            f"accept must return Accepted or Refused; got {type(answer).__name__}: {answer!r}"
        )
    return answer


def _content(answer: Accepted | Refused) -> dict[str, Any]:
    """Return the fields of an answer except `build` and `tune`, which differ each time."""
    own = {f.name for f in fields(answer)} - {"build", "tune"}
    return {name: getattr(answer, name) for name in sorted(own)}


def _different(answers: list[Any]) -> str:
    kinds = {type(answer).__name__ for answer in answers}
    if len(kinds) > 1:
        return " and ".join(sorted(kinds))
    contents = [_content(answer) for answer in answers]
    names = [name for name in contents[0] if any(c[name] != contents[0][name] for c in contents)]
    return "; ".join(f"{name} {' and '.join(str(c[name]) for c in contents)}" for name in names)


def _built() -> dict[str, int]:
    counts = cache.stats()
    return {name: counts[name] for name in ("built", "compiled", "from_disk")}


@contextmanager
def _counted_allocations(engine: Engine) -> Iterator[list[int]]:
    """Record the sizes of all allocations of an engine during a block."""
    sizes: list[int] = []
    allocate = engine.allocate

    def counted(nbytes: int) -> Any:
        sizes.append(nbytes)
        return allocate(nbytes)

    engine.allocate = counted  # type: ignore[method-assign]  # restored below
    try:
        yield sizes
    finally:
        del engine.allocate


# -- refusals -------------------------------------------------------------------------------------

_WORDS = {
    *DATA_TYPES, *ELTWISE, *BINARY, *POST_OPS,
    *(f.name for f in fields(Attributes)), "post", "chain", "any", "format", "blocked", "plain",
    "one", "two", "three", "four", "zero",
    "dims", "groups", "channels", "strides", "dilations", "padding", "kernel", "window", "axis",
}  # fmt: skip


def refusals(case: Case, implementation: Implementation[Any]) -> None:
    """A refusal has a valid kind, and a reason that names its cause."""
    answer = _ask(case, implementation)
    if isinstance(answer, Accepted):
        return
    if answer.kind not in OWN_KINDS:
        raise CheckFailed(
            f"a refusal's kind must be one of {', '.join(sorted(OWN_KINDS))}; got {answer.kind!r}"
        )
    if not _is_informative(case, answer):
        raise CheckFailed(
            "a refusal's reason must name its cause in the problem: a number, a format, a type,"
            " an algorithm, an argument or an attribute, or else name the device;"
            f" got {answer.reason!r}"
        )


def _is_informative(case: Case, refused: Refused) -> bool:
    device, reason = case.engine.device.name, refused.reason
    if refused.kind == "device" and device and device in reason:
        return True
    names = {a.name for a in case.op.ARGUMENTS} | {f.name for f in fields(case.op)}
    names |= {desc.tag for _, desc in case.op.tensors() if desc.tag}
    values = {v for v in vars(case.op).values() if isinstance(v, str)}
    words = {word.lower().rstrip("s") for word in _WORDS | names | values}
    said = {word.lower().rstrip("s") for word in re.findall(r"\w+", reason)}
    return bool(said & words) or any(letter.isdigit() for letter in reason)


# -- descriptors ----------------------------------------------------------------------------------


def descriptors(case: Case) -> None:
    """Descriptors are values: hashed, compared, pickled, copied."""
    values = [case.op, case.attr, case.problem, *(desc for _, desc in case.op.tensors())]
    for value in values:
        copies = (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value))  # noqa: S301 - our own bytes
        if not all(one == value and hash(one) == hash(value) for one in copies):
            raise CheckFailed(
                f"a pickled or copied descriptor must be equal, with equal hash: {value}"
            )
    for pd in case.descs(case.attr):
        if pickle.loads(pickle.dumps(pd)) != pd:  # noqa: S301 - our own bytes
            raise CheckFailed(f"a pickled primitive descriptor must be equal: {pd}")
        again = case.descs(case.attr, pd.impl_name)[0]
        if again != pd or hash(again) != hash(pd):
            raise CheckFailed(f"two primitive descriptors of one problem must be equal: {pd}")


# -- devices --------------------------------------------------------------------------------------


def device(case: Case) -> None:
    """The device has a name, and the values of the standard keys of its limits have the right
    types.
    """
    own = case.engine.device
    if not own.name:
        raise CheckFailed("a device must have a name; got ''")
    for key in LIMITS.keys() & own.limits.keys():
        value: Any = own.limits[key]
        counts = LIMITS[key] is int
        valid = type(value) is int and value > 0 if counts else type(value) is bool
        if not valid:
            wanted = "a whole number above 0" if counts else "True or False"
            raise CheckFailed(f"limits[{key!r}] of the device must be {wanted}; got {value!r}")
