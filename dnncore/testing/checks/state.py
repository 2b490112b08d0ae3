"""Checks of state: earlier requests, builds and executions do not change results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.attributes import Attributes
from dnncore.cache import primitives
from dnncore.comparison.fills import reads
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError
from dnncore.execution.primitive import Primitive
from dnncore.ops import Operation
from dnncore.post_op import PostOp
from dnncore.problem import driver_of, read
from dnncore.selection import ranking
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.checks.case import USUAL_FILLS, Arrays, Case, Trial, equal
from dnncore.testing.checks.guarded import GARBAGE, Arguments
from dnncore.testing.checks.results import CheckFailed

__all__ = ["independent", "many", "one_element", "streams"]

Array = np.ndarray[Any, Any]

MANY = (16, 300)  # the least and the largest number of calls
MANY_SECONDS = 0.15  # after this time, only the least number of calls is made
MOST_OTHERS = 8  # other problems between two calls
NEAR = 2.0**-19  # relative; 16 ulp of f32: more than the errors of most operations
SMALL = 2**16  # bytes of tensors; smaller other problems are compared with the reference


# -- the same call --------------------------------------------------------------------------------


def streams(trial: Trial) -> None:
    """Bound calls are correct on several streams in turn, with any contents of scratchpads."""
    given = [trial.arguments(trial.case.round(fill).inputs) for fill in USUAL_FILLS]
    first, second = (trial.primitive.bind(**arguments.memories) for arguments in given)
    one, other = trial.case.engine.stream(), trial.case.engine.stream()
    turns = [(first, one), (second, one), (first, one), (first, other), (second, one), (first, one)]
    for call, stream in turns:
        place = int(call is second)
        given[place].restore()
        spoil_scratchpad(trial, stream)
        call(stream).wait()
        what = "a bound call on two streams in turn, with garbage in the scratchpad"
        trial.verify(USUAL_FILLS[place], trial.finish(given[place]), what)


def spoil_scratchpad(trial: Trial, stream: Stream) -> None:
    """Fill the stream's scratchpad with garbage."""
    nbytes = trial.pd.scratchpad_bytes if trial.pd.scratchpad_desc is None else 0
    buffer = stream.reserve(nbytes)
    if nbytes and buffer is not None:
        garbage = np.full(nbytes, GARBAGE, np.uint8)
        stream.engine.copy_in(stream, garbage, buffer).wait()


def one_element(trial: Trial) -> None:
    """If one element of each input changes between two calls, the results change accordingly."""
    case = trial.case
    given = case.round("integers")
    inputs = {**given.inputs, **_with_one_changed(trial, given.inputs)}
    arguments = trial.arguments(given.inputs)
    stream, memories = case.engine.stream(), arguments.memories
    call = trial.primitive.bind(**memories)
    call(stream).wait()
    trial.primitive.execute(stream, **memories).wait()
    arguments.exchange(trial.arguments(inputs))
    changed = case.variation(given, inputs)
    for way, launch in (("a bound call", call), ("execute", _executing(trial.primitive, memories))):
        arguments.restore()
        launch(stream).wait()
        wrong = trial.wrong(changed, trial.finish(arguments))
        if wrong and not trial.wrong(given, trial.outputs("integers")):
            raise CheckFailed(f"{way} after one element of each input has changed: {wrong}")


def _executing(primitive: Primitive, memories: dict[str, Any]) -> Any:
    return lambda stream: primitive.execute(stream, **memories)


def _with_one_changed(trial: Trial, inputs: Arrays) -> dict[str, Array]:
    """Return copies of the inputs that may be changed separately, each with one changed element.

    A gradient may read results of its forward operation, which must belong to its inputs.
    """
    op = trial.case.op
    forward = op.forward_op
    fixed = {*reads(forward, Attributes()), *op.saved} if forward and op.saved else set()
    rng = np.random.default_rng(trial.case.seed)
    changed = {}
    for name in reads(op, trial.case.attr):
        if name in fixed or name not in inputs or not inputs[name].size:
            continue
        array = changed[name] = np.array(inputs[name])
        place = np.unravel_index(int(rng.integers(array.size)), array.shape)
        least = 0 if array.dtype.kind == "u" else -4
        array[place] = 4 if array[place] <= 0 else least
        if name == "dropout_probability":
            array[place] = 0.75 if array[place] == 0.5 else 0.5  # other numbers stay whole
    return changed


def many(trial: Trial) -> None:
    """Each of the first calls of a new primitive gives a correct result."""
    given = trial.case.round("integers")
    pd = _fresh(trial)
    with trial.case.clock("building"):
        primitive = pd.primitive()
    arguments = trial.arguments(given.inputs, pd=pd)
    stream, memories = trial.case.engine.stream(), arguments.memories
    first = trial.outputs("integers")
    calls = (primitive.bind(**memories), _executing(primitive, memories))
    end = time.perf_counter() + MANY_SECONDS
    least, most = MANY
    for number in range(most):
        for box in arguments.outputs.values():
            box.write(box.before)
        outputs = arguments.fetch(stream, calls[number % 2](stream))
        if not equal(first, outputs):
            trial.agree(given, outputs, first, f"call {number + 1} of a row")
        if number + 1 >= least and time.perf_counter() > end:
            break
    trial.finish(arguments)


# -- other problems -------------------------------------------------------------------------------


def independent(trial: Trial) -> None:
    """Other problems that are requested, built and executed in between do not change results.

    They differ from the trial's problem in one parameter, or are golden cases of the operation.
    """
    pd = _fresh(trial)
    others = list(_other_descs(trial))
    with trial.case.clock("building"):
        primitive = pd.primitive()
    arguments = trial.arguments(trial.case.round("random").inputs, pd=pd)
    stream = trial.case.engine.stream()
    call = primitive.bind(**arguments.memories)
    for between in (None, *others):
        if between is not None:
            _execute_other(trial, *between, stream)
        arguments.restore()
        call(stream).wait()
        what = "after other problems were asked"
        if between is not None:
            what = f"after the execution of {between[0].text}"
        trial.verify("random", trial.finish(arguments), what)
    trial.verify("random", trial.execute(trial.case.round("random").inputs, pd=pd), "then")


def _fresh(trial: Trial) -> PrimitiveDesc:
    """Return a descriptor of the trial's problem, for which no primitive has been built."""
    ranking.forget()
    primitives.clear()
    pd = trial.case.sibling(trial, trial.case.attr)
    if pd is None:
        raise CheckFailed("accepts the problem once, and refuses it later")
    return pd


def _other_descs(trial: Trial) -> Iterator[tuple[Case, PrimitiveDesc]]:
    """Yield cases of other problems that the implementation accepts, with their descriptors."""
    found = 0
    for case in _others(trial.case):
        with suppress(DescriptorError):  # the core refuses the problem
            pd = case.sibling(trial, case.attr)
            if pd is not None:
                yield case, pd
                found += 1
        if found == MOST_OTHERS:
            return


def _others(case: Case) -> Iterator[Case]:
    problem = case.problem
    for op in _variants(case.op):
        yield Case(replace(problem, op=op, inplace=False), case.engine)
    for attr in _other_attributes(case.attr):
        yield Case(replace(problem, attr=attr, inplace=False), case.engine)
    for golden in driver_of(type(case.op)).golden:
        (other,) = read(golden.text)
        if type(other.op) is type(case.op) and other.op != case.op:
            yield Case(other, case.engine)


def _variants(op: Operation) -> Iterator[Operation]:
    """Yield the operation with another value of one parameter."""
    for field in fields(op):
        value = getattr(op, field.name)
        others: list[Any] = []
        if isinstance(value, float):
            others = _other_numbers(value)
        elif field.name == "axis":
            others = [(value + 1) % op.result.ndims]
        elif type(value) is int:
            others = [value + 2]
        elif isinstance(value, tuple) and value and all(isinstance(v, float) for v in value):
            others = list(zip(*map(_other_numbers, value), strict=True))
        elif isinstance(value, MemoryDesc):
            others = [_in_other_format(value)]
        for other in others:
            if other != value:
                with suppress(DescriptorError):
                    yield replace(op, **{field.name: other})
    yield from _other_windows(op)


def _other_numbers(value: float) -> list[float]:
    """Return two other numbers of f32: a distant number, and one with the same first six digits.

    Both are rounded to f32, because a dst may have to equal the first number exactly.
    """
    return [float(np.float32(other)) for other in (0.5 * value + 0.75, value * (1 + NEAR))]


def _in_other_format(desc: MemoryDesc) -> MemoryDesc:
    """Return the descriptor in channels-last format, or a channels-last one in row-major format."""
    if desc.is_any or desc.ndims < 2:
        return desc
    last = MemoryDesc(desc.dims, desc.data_type, "axb" if desc.ndims > 2 else "ba")
    return last if desc != last else MemoryDesc(desc.dims, desc.data_type, "abx")


def _other_windows(op: Any) -> Iterator[Operation]:
    """Yield other windows on tensors of the same dims: moved, or with fewer elements and gaps."""
    if not hasattr(op, "padding_l"):
        return
    for step in (1, -1):
        left = tuple(p + step for p in op.padding_l)
        right = tuple(p - step for p in op.padding_r)
        with suppress(DescriptorError):
            yield replace(op, padding_l=left, padding_r=right)
    if "kernel" in {field.name for field in fields(op)}:  # every second element of odd windows
        apart = {
            "kernel": tuple((k + 1) // 2 for k in op.kernel),
            "dilations": tuple(1 for _ in op.kernel),
        }
        with suppress(DescriptorError):
            yield replace(op, **apart)


def _other_attributes(attr: Attributes) -> Iterator[Attributes]:
    """Yield attributes with another value of each post-op, and with one more post-op."""
    steps = attr.post_ops
    for place, step in enumerate(steps):
        if step.kind == "eltwise":
            for alpha in _other_numbers(step.alpha):
                with suppress(DescriptorError):
                    other = replace(step, alpha=alpha)
                    yield replace(attr, post_ops=(*steps[:place], other, *steps[place + 1 :]))
    if "eltwise" in POST_OPS:
        with suppress(DescriptorError):
            linear = PostOp("eltwise", algorithm="linear", alpha=2.0, beta=1.0)
            yield replace(attr, post_ops=(*steps, linear))


def _execute_other(trial: Trial, case: Case, pd: PrimitiveDesc, stream: Stream) -> None:
    """Execute another problem on the stream; compare the result if it is small."""
    given = case.round("integers")
    arguments = Arguments(pd, given.inputs)
    with trial.case.clock("building"):
        primitive = pd.primitive()
    primitive.execute(stream, **arguments.memories).wait()
    if case.op.bytes > SMALL or pd.is_reference:
        return
    other = Trial(case, pd)
    wrong = other.wrong(given, other.finish(arguments))
    if wrong and not trial.wrong(trial.case.round("integers"), trial.outputs("integers")):
        raise CheckFailed(f"{case.text}, built after another problem: {wrong}")
