"""Small problems of all combinations of data types, from the tables `TYPES` of the operations.

A combination consists of an operation type, a prop kind, the types of the inputs except biases, and
the type of the result. The types of biases and of further inputs are drawn. Each combination gives
a problem without attributes, and one with drawn scales, zero points and the like if its tensors can
have them. A new row of a table needs no new line in the lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, TypeAlias

from dnncore.attributes import Attributes
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.ops.operation import FORWARD
from dnncore.ops.types import INTEGER_TYPES, Row
from dnncore.post_op import PostOp
from dnncore.problem import DRIVERS, Problem, read
from dnncore.problem.drivers.driver import Driver
from dnncore.quantization import Scales, ZeroPoints
from dnncore.tensors.datatypes import data_type
from dnncore.testing.problems.random_problems import draw_words
from dnncore.testing.problems.types_and_attributes import (
    direction_of,
    input_names,
    input_types,
    quantization,
    types_of,
    with_types,
)

__all__ = ["Group", "groups", "problems"]

BASES = 8
"""The number of f32 problems of each operation type and prop kind, which then get other types."""

MOST_BYTES = 12_000
MOST_FLOPS = 2e5
MOST_DIMS = 5
LEAST_ELEMENTS = 8  # elements of a result, at least
LEAST_TERMS = 8  # two per product
MOST_ROWS = 30  # of an operation type in "smoke", unless all inputs have new types
MOST_DRAWS = 40  # of attributes
DIGITS = (0.2345675, -1.2345675)
"""Parameters of post-ops that need all digits of f32, so that each wrong rounding is detected."""


@dataclass(frozen=True)
class _Combination:
    """inputs: the types of `input_names`."""

    kind: type[Operation]
    prop_kind: str
    inputs: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.prop_kind} {' '.join(self.inputs)} {self.result}"


def problems(size: str) -> list[Problem]:
    """Return the problems of a list. `types` contains all combinations. `smoke` contains one
    problem for each operation type and types of inputs; for binary, only enough problems that each
    input has each type. Other lists are empty.
    """
    if size == "types":
        return [problem for combination in _all() for problem in _problems(combination)]
    if size == "smoke":
        return list(_some())
    return []


def _some() -> Iterator[Problem]:
    """Yield problems, alternately with and without attributes, and with each type of result in
    turn.
    """
    rows: dict[type[Operation], dict[tuple[str, ...], list[_Combination]]] = {}
    for combination in _all():
        own = rows.setdefault(combination.kind, {})
        own.setdefault(combination.inputs, []).append(combination)
    for own in rows.values():
        few = own if len(own) <= MOST_ROWS else _cover(own)
        for number, inputs in enumerate(few):
            choices = own[inputs]
            yield _problems(choices[number % len(choices)])[-(number // 2 % 2)]


def _cover(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return types of inputs: each input has each of its types; few inputs have equal types."""
    found: dict[tuple[str, ...], None] = {}
    seen: set[tuple[int, str]] = set()
    for inputs in sorted(rows, key=lambda types: len(set(types)), reverse=True):
        new = set(enumerate(inputs))
        if not new & seen:
            seen |= new
            found[inputs] = None
    return list(found)


@dataclass(frozen=True)
class Group:
    """The combinations of an operation, a direction and types of inputs.

    inputs: the types of the inputs, as text of `input_types`.
    results: the types of the result.
    """

    operation: str
    inputs: str
    direction: str
    results: tuple[str, ...]


def groups() -> list[Group]:
    """Return all combinations, in the order of the tables."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for combination in _all():
        op = _problems(combination)[0].op
        place = (op.KIND.removesuffix(" backward"), input_types(op), direction_of(op))
        results = found.setdefault(place, [])
        if combination.result not in results:
            results.append(combination.result)
    return [Group(*place, tuple(results)) for place, results in found.items()]


# -- combinations ----------------------------------------------------------------------------------

_Sources: TypeAlias = list[tuple[Operation, Row]]
"""Operations with f32 that can have the types of a combination, with the row that permits them."""


@cache
def _all() -> Mapping[_Combination, _Sources]:
    """Return all combinations, in the order of the tables. Of inference, only combinations that
    training lacks are included, and one for each set of input types.
    """
    found: dict[_Combination, _Sources] = {}
    for driver in DRIVERS.values():
        bases = _bases(driver)
        for (_, prop_kind), ops in sorted(bases.items(), key=lambda pair: pair[0][1], reverse=True):
            own: dict[_Combination, _Sources] = {}
            for op in ops:
                for combination, row in _combinations(op, prop_kind):
                    own.setdefault(combination, []).append((op, row))
            inputs = set()
            for combination, sources in own.items():
                trained = replace(combination, prop_kind="forward_training")
                is_new = trained not in found or combination.inputs not in inputs
                if prop_kind != "forward_inference" or is_new:
                    found[combination] = sources
                inputs.add(combination.inputs)
    return found


def _combinations(op: Operation, prop_kind: str) -> Iterator[tuple[_Combination, Row]]:
    names = input_names(op)
    for row in op.type_rows:
        for inputs in itertools.product(*(row[name] for name in names)):
            for result in row[op.result_name]:
                yield _Combination(type(op), prop_kind, inputs, result), row


def _bases(driver: Driver) -> dict[tuple[type[Operation], str], list[Operation]]:
    """Return small f32 operations by type and prop kind, in formats of the driver's options."""
    rng = Random(f"types of {driver.name}")  # noqa: S311 - reproducible
    found: dict[tuple[type[Operation], str], list[Operation]] = {
        (kind, prop_kind): []
        for kind in driver.operations
        for prop_kind in (FORWARD if "prop_kind" in kind.__dataclass_fields__ else ("",))
    }
    complete = set()  # directions, as words, of which nothing is read any more
    while any(len(ops) < BASES for ops in found.values()):
        words = draw_words(rng.choice, driver.name)
        direction = next((word for word in words if word.startswith("--dir=")), "")
        if direction in complete:
            continue
        try:
            (problem,) = read(" ".join(words))
        except DescriptorError:
            continue
        op = problem.op
        ops = found[type(op), getattr(op, "prop_kind", "")]
        terms = LEAST_TERMS if driver.has_products else 0
        if len(ops) < BASES and _is_usual(op) and op.flops > terms * op.result.nelems:
            ops.append(op)
        if len(ops) == BASES:
            complete.add(direction)
    return found


def _is_usual(op: Operation) -> bool:
    """Whether the operation is small, not empty, and computed directly."""
    dims = [desc.dims for _, desc in op.tensors()]
    return (
        0 < op.flops < MOST_FLOPS
        and op.bytes < MOST_BYTES
        and op.result.nelems > LEAST_ELEMENTS
        and all(len(own) <= MOST_DIMS and min(own) > 0 for own in dims)
        and getattr(op, "algorithm", "") != "winograd"
    )


# -- problems --------------------------------------------------------------------------------------


@cache
def _problems(combination: _Combination) -> list[Problem]:
    """Yield a problem without attributes, then problems with attributes that depend on types."""
    rng = Random(str(combination))  # noqa: S311 - reproducible
    sources = _all()[combination]
    op = next(_typed(rng, combination, rng.sample(sources, len(sources))))
    attr = _attributes(rng, op)
    return [Problem(op), *([Problem(op, attr)] if attr else [])]


def _typed(rng: Random, combination: _Combination, sources: _Sources) -> Iterator[Operation]:
    """Yield operations with the types of a combination. Packed types do not permit all layouts."""
    for op, row in sources:
        types = {name: rng.choice(row[name]) for name in types_of(op)}
        types |= dict(zip(input_names(op), combination.inputs, strict=True))
        try:
            yield with_types(op, {**types, op.result_name: combination.result})
        except DescriptorError:
            continue


def _attributes(rng: Random, op: Operation) -> Attributes | None:
    """Return valid attributes that depend on types; None if the operation has none.

    Half of them also have post-ops. One in four has one scale and zero point for each tensor.
    """
    for _ in range(MOST_DRAWS):
        try:
            attr = Attributes(**quantization(rng.choice, op))
            attr.check(op)
        except DescriptorError:
            continue
        if attr.words:
            return _extended(Random(f"{rng.random()}"), op, attr)  # noqa: S311 - reproducible
    return None


def _extended(rng: Random, op: Operation, attr: Attributes) -> Attributes:
    if rng.randrange(4) == 0:
        attr = replace(attr, scales=_single(op, Scales), zero_points=_single(op, ZeroPoints))
    if rng.randrange(2) and op.result_name == "dst":
        zero_point = rng.choice((3, -100)) if op.result.data_type in INTEGER_TYPES else 0
        linear, sum_ = PostOp.eltwise("linear", *DIGITS), PostOp.sum(DIGITS[0], zero_point)
        chain = rng.choice(((linear, sum_), (sum_, linear), (linear,), (sum_,)))
        attr = replace(attr, post_ops=chain)
    return attr


def _single(op: Operation, kind: type[Any]) -> dict[str, Any]:
    """Return one value for each tensor that may have one."""
    masks = op.scale_masks if kind is Scales else op.zero_point_masks
    return {
        name: kind()
        for name, allowed in masks.items()
        if 0 in allowed and (kind is Scales or not data_type(getattr(op, name).data_type).is_float)
    }
