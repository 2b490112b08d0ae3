"""Comparison of two arrays, and of an implementation with the reference.

All checks of results use this module. The backend with role "reference" defines correct results;
`dnncore.comparison.error_bounds` defines the allowed errors of elements.
`dnncore.comparison.statistics` defines the allowed errors of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import finfo

from dnncore.algorithms.rounding import LEAST_NORMAL, Noise
from dnncore.attributes import Attributes
from dnncore.comparison.error_bounds import believed_factor, error_factor, noise
from dnncore.comparison.fills import Fill, fill_inputs, reads
from dnncore.comparison.statistics import Errors, judge
from dnncore.engines.memory import Memory
from dnncore.errors import BackendNotFound, DescriptorError
from dnncore.ops import Operation
from dnncore.ops.types import HALF_TYPES
from dnncore.post_op import PostOp
from dnncore.problem import driver_of
from dnncore.problem.drivers.driver import Evaluate
from dnncore.selection.plugins import engine, registry
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.datatypes import data_type, from_numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.engines.stream import Stream

__all__ = [
    "Comparison",
    "Expected",
    "against_reference",
    "compare",
    "consistent_inputs",
    "correct_values",
    "expected_outputs",
]

Array = np.ndarray[Any, Any]

F64_OF_F32 = 2.0**-28
"""The errors of arithmetic in f64 as a share of errors in f32; the reference also rounds in f64."""


# -- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The difference between an array and the expected array. `str` returns one line about it.

    ok: every element is within its bound, and NaN and inf are where they are expected.
    error: norm-wise, ||got - expected|| / ||expected||, over the finite elements.
    max_error: the largest absolute difference.
    index: the worst element. This is the element that exceeds its bound most or, if all are within
        their bounds, the element with the largest `of_bound`. None without elements.
    got, expected, bound: values of that element.
    misplaced: the number of elements that are NaN or inf in one array and have another value in the
        other array. If there are any, `index` is the first of them.
    of_bound: the error of the worst element divided by its bound; inf if the bound is 0, and 0 if
        an element is NaN or inf.
    wrong: the number of wrong elements.
    share: the share of wrong elements among all elements, 0 to 1.
    place: the places of the wrong elements as text, with dims named as in format tags: "only in the
        last 3 of 19 along c".
    lost: text about errors of the tensor that show lost precision; "" if there are none.
    error_factor: the factor by which bounds are multiplied. The implementation claims it and the
        algorithm permits it.
    beside: the number of changed bytes that belong to no element, if such bytes were compared.
    """

    ok: bool
    error: float
    max_error: float
    index: tuple[int, ...] | None
    got: float
    expected: float
    bound: float
    misplaced: int = 0
    of_bound: float = 0.0
    wrong: int = 0
    share: float = 0.0
    place: str = ""
    lost: str = ""
    error_factor: float = 1.0
    beside: int = 0

    @property
    def distance(self) -> str:
        """Describe the error of the worst element in words; "" if an element is NaN or inf."""
        if not self.of_bound:
            return ""
        off = f"off by {abs(self.got - self.expected):.3g}"
        if math.isinf(self.of_bound):
            return f"{off} where no error is allowed"
        return f"{off}, {self.of_bound:.3g} times the bound"

    def __str__(self) -> str:
        if self.index is None:
            return "ok: no elements"
        text = "ok: " if self.ok else "WRONG: "
        if self.misplaced:
            text += f"NaN or inf differ in {self.misplaced} place(s); "
        if self.max_error or not self.misplaced:
            text += f"norm-wise error {self.error:.2g}, largest {self.max_error:.2g}; "
        text += f"worst at {list(self.index)}: got {self.got:.9g}, expected {self.expected:.9g}"
        if not self.misplaced:
            text += f", bound {self.bound:.2g}"
        if not self.ok:
            text += f", {self.distance}" if self.distance else ""
        if self.wrong:
            text += f"; {self.wrong} wrong, {self.share:.1%}, {self.place}"
        if self.error_factor != 1.0:
            text += f"; error factor {self.error_factor:.3g}"
        if self.lost:
            text += f"; lost precision: {self.lost}"
        if self.beside:
            text += f"; {self.beside} bytes beside the elements changed"
        return text


def compare(got: Array, expected: Array, bound: Array | float = 0.0) -> Comparison:
    """Compare two arrays of the same shape. `bound` is the allowed difference, per element or for
    all.

    NaN equals NaN, and inf equals inf of the same sign. Raises `DescriptorError` for different
    shapes.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    g, e, limits = _real("got", got), _real("expected", expected), _real("bound", bound)
    if got.shape != expected.shape:
        raise DescriptorError(
            f"compare: the arrays must have equal shapes; got {got.shape} and {expected.shape}"
        )
    if limits.ndim and limits.shape != got.shape:
        raise DescriptorError(
            f"compare: bound must be a number or have the arrays' shape {got.shape};"
            f" got {limits.shape}"
        )
    if got.size == 0:
        return Comparison(True, 0.0, 0.0, None, 0.0, 0.0, 0.0)
    finite = np.isfinite(g) & np.isfinite(e)
    misplaced = ~finite & (g != e) & ~(np.isnan(g) & np.isnan(e))
    difference = np.abs(np.subtract(g, e, out=np.zeros_like(g), where=finite))
    limits = np.broadcast_to(limits, g.shape)
    excess = np.where(misplaced, np.inf, np.where(finite, difference - limits, -np.inf))
    index = tuple(int(i) for i in np.unravel_index(np.argmax(excess), g.shape))
    wrong = excess > 0
    count = int(wrong.sum())
    if not count:  # the element with the largest ratio of error to bound
        shares = np.divide(difference, limits, out=np.zeros_like(g), where=limits > 0)
        index = tuple(int(i) for i in np.unravel_index(np.argmax(shares), g.shape))
    return Comparison(
        ok=not count,
        error=_ratio(_norm(difference), _norm(e[finite])),
        max_error=float(difference.max()),
        index=index,
        got=float(g[index]),
        expected=float(e[index]),
        bound=float(limits[index]),
        misplaced=int(misplaced.sum()),
        of_bound=_ratio(float(difference[index]), float(limits[index])),
        wrong=count,
        share=count / wrong.size,
        place=_place(wrong) if count else "",
    )


def _place(wrong: Array) -> str:
    """Describe the places of the true elements of an array."""
    if wrong.all():
        return "everywhere"
    if wrong.sum() == 1:
        return "only there"
    axes = range(wrong.ndim)
    hits = [np.any(wrong, axis=tuple(a for a in axes if a != axis)) for axis in axes]
    parts = [_along("abcdefghijkl"[axis], hit) for axis, hit in zip(axes, hits, strict=True)]
    known = [part for part in parts if part]
    return f"only {' and '.join(known)}" if known else "scattered over all dims"


def _along(letter: str, hit: Array) -> str:
    """Describe the indices of one dim where `hit` is true; "" if it is true everywhere."""
    indices = np.flatnonzero(hit)
    count, first, last, size = indices.size, int(indices[0]), int(indices[-1]), hit.size
    if count == size:
        return ""
    if count == 1:
        return f"at {letter} = {first}"
    step = int(indices[1] - indices[0])
    if not np.all(np.diff(indices) == step):
        return f"at {count} of {size} along {letter}"
    if step > 1:
        return f"at {letter} = {first} to {last} in steps of {step}"
    if last == size - 1:
        return f"in the last {count} of {size} along {letter}"
    which = f"{first} to {last}" if first else f"the first {count}"
    return f"in {which} of {size} along {letter}"


def _real(name: str, values: object) -> Array:
    """Return the values as float64."""
    try:
        with np.errstate(invalid="ignore"):  # also for signalling NaNs
            return np.asarray(values).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        raise DescriptorError(
            f"compare: {name} must be a number or an array of them; got {values!r}"
        ) from None


def _norm(values: Array) -> float:
    """Return the 2-norm. `numpy.linalg.norm` starts the threads of BLAS, which takes longer."""
    return math.sqrt(float(np.square(values).sum()))


def _ratio(difference: float, norm: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / norm if norm else math.inf


@dataclass(frozen=True)
class Expected:
    """An output of the reference.

    noise: the noise of the result before it is stored; None if the result is exact. For integer
        types, its limit is the allowed difference.
    judged: whether the errors of the whole tensor can be judged, because inputs are random.
    independent: the share of elements with independent errors.
    """

    values: Array
    noise: Noise | None = None
    judged: bool = False
    independent: float = 1.0

    def bound(self, error_factor: float = 1.0) -> Array | float:
        """Return the allowed absolute error per element of an implementation with this error
        factor.
        """
        if self.noise is None:
            return 0.0
        if not _is_float(self.values):
            return self.noise.limit
        eps, least = _precision(self.values.dtype)
        stored = eps * np.abs(self.values.astype(np.float64)) + least
        return np.nan_to_num(stored + error_factor * self.noise.limit, nan=np.inf, posinf=np.inf)

    def errors(self, got: Array, error_factor: float = 1.0) -> Errors | None:
        """Return the errors divided by the expected errors; None if the expected errors are not
        known.
        """
        if not self.judged or self.noise is None:
            return None
        eps, least = _precision(self.values.dtype)
        with np.errstate(all="ignore"):
            values, found = (array.astype(np.float64) for array in (self.values, got))
            ulp = np.ldexp(eps, np.frexp(values)[1] - 1)
            rms = np.sqrt((error_factor * self.noise.rms) ** 2 + ulp**2 / 12 + least**2)
            known = np.isfinite(values) & np.isfinite(found) & (self.noise.rms > 0)
            signs = np.where(values < 0, -1.0, 1.0)
            relative = np.where(known, signs * (found - values) / rms, np.nan)
        return Errors(relative, self.independent)

    def settled(self, got: Array, bound: Array | float) -> Array:
        """Return the output with the expected values at the elements where every result is
        accepted.
        """
        unknown = np.isinf(bound) & np.isfinite(self.values)
        if self.noise is not None:
            unknown |= self.noise.is_unknown
        return np.where(unknown, self.values, got)

    def check(self, got: Array, *, exact: bool = False, error_factor: float = 1.0) -> Comparison:
        """Compare an implementation's output. With `exact`, no difference is allowed.

        Statistics of the errors of all elements must not show lost precision. An infinite bound
        means that an intermediate result exceeds f32's range; every result is accepted there.
        """
        if exact:
            return compare(got, self.values)
        bound = self.bound(error_factor)
        got = self.settled(got, bound)
        result = compare(got, self.values, bound)
        errors = self.errors(np.asarray(got), error_factor) if result.ok else None
        lost = judge(errors) if errors is not None else ""
        return replace(result, ok=result.ok and not lost, lost=lost, error_factor=error_factor)


def _precision(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the distance from 1 to the next number, and the least error that is always allowed.

    The least error is the distance from 0 to the next number, but at least the smallest normal
    number of f32: devices compute in f32 and may replace smaller numbers by 0.
    """
    limits = finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    return float(limits.eps), max(float(limits.smallest_subnormal), LEAST_NORMAL)


# -- the reference --------------------------------------------------------------------------------


def expected_outputs(
    op: Operation,
    attr: Attributes,
    inputs: Mapping[str, Array],
    workspace_error: Array | None = None,
    *,
    random_order: bool = False,
    judged: bool = False,
    values: Mapping[str, Array] | None = None,
) -> dict[str, Expected]:
    """Compute the correct outputs of `op`, by name, with the backend whose role is "reference".

    inputs: arrays with logical dims by argument name, with the operands of post-ops. If a post-op
        `sum` reads the old values of the result, they have the result's name.
    workspace_error: the largest difference per element between the workspace in `inputs` and the
        workspace that the implementation reads. The bounds include it.
    random_order: whether all values were drawn independently from one distribution. Bounds are then
        narrower. It is False for values of users.
    judged: whether the errors of a whole tensor are judged, too. This requires normally distributed
        values.
    values: the result of `correct_values`, if it is known already.

    The formats of `op` do not matter. Raises `BackendNotFound` if no reference is installed.
    """
    op, attr = _without_formats(op, attr)
    evaluate = Evaluate(_evaluate, random_order, _multiplies_halves(op), op.data_type)
    if values is None:
        values = evaluate(op, attr, inputs)
    else:
        evaluate.keep(op, attr, inputs, values)
    errors = noise(op, attr, inputs, values, evaluate, workspace_error)
    if op.data_type == "f64":
        errors = {name: own * F64_OF_F32 for name, own in errors.items()}
    independent = 0.25 if error_factor(op) > 1 else 1.0  # Winograd's tiles share errors
    judged = judged and op.flops > 0  # sums without terms are all the same number
    return {
        name: Expected(array, errors.get(name), judged and _is_float(array), independent)
        for name, array in values.items()
    }


def correct_values(
    op: Operation, attr: Attributes, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Compute the outputs of `op` as `expected_outputs` does, without their bounds."""
    return _evaluate(*_without_formats(op, attr), inputs)


@lru_cache(maxsize=1024)
def _without_formats(op: Operation, attr: Attributes) -> tuple[Operation, Attributes]:
    """Return the operation on row-major tensors, with the attributes that affect values."""
    op = op.with_each(_plain)
    fpmath = attr.fpmath if op.data_type == "f32" else "strict"  # fpmath applies to f32 data
    steps = tuple(map(_plain_step, attr.post_ops))
    return op, replace(attr.of_values, post_ops=steps, fpmath=fpmath)


def _multiplies_halves(op: Operation) -> bool:
    """Whether both factors of the operation's products have half types."""
    inputs = [(a.name, desc) for a, desc in op.tensors() if a.direction == "in"]
    factors = {desc.data_type for name, desc in inputs if name != "bias"}
    return driver_of(type(op)).has_products and factors <= set(HALF_TYPES)


def consistent_inputs(
    op: Operation, attr: Attributes, fill: Fill, seed: int = 0
) -> dict[str, Array]:
    """Return arrays for all tensors that `op` reads, by argument name.

    If a gradient reads outputs of its forward operation, the reference computes them from the
    inputs of the forward operation, which are included in the result.
    """
    inputs = fill_inputs(op, attr, fill, seed)
    forward: Any = op.forward_op
    if op.saved:
        for place, (name, desc) in enumerate(reads(forward, Attributes()).items()):
            if name not in inputs:
                inputs[name] = fill(desc, (seed, place))
        outputs = _evaluate(forward.with_each(_plain), Attributes(), inputs)
        inputs |= {name: outputs[name] for name in op.saved}
    return inputs


def _is_float(array: Array) -> bool:
    return data_type(from_numpy_dtype(array.dtype)).is_float


def against_reference(
    pd: PrimitiveDesc,
    arguments: Mapping[str, Memory],
    stream: Stream,
    *,
    exact: bool = False,
) -> dict[str, Comparison]:
    """Execute `pd` on these memories, and the reference on copies of them. Compare the outputs.

    pd: a primitive descriptor of any engine.
    arguments: memories by name, as the keyword arguments of `Primitive.execute`.
    stream: a stream of the engine, on which `pd` is executed.
    exact: whether the outputs must be equal; an implementation may claim this for integers.

    Returns one comparison per output name. Outputs that only their implementation can read are
    omitted. Raises the errors of `Primitive.bind`, `DescriptorError` for inputs that only their
    implementation can read, and `BackendNotFound` if no reference is installed.
    """
    if not isinstance(pd, PrimitiveDesc):
        raise DescriptorError(
            f"comparison: pd must be a PrimitiveDesc; got {type(pd).__name__}; a primitive's is .pd"
        )
    call = pd.primitive().bind(**arguments)
    stream.wait()
    inputs = _inputs(pd, arguments)
    call(stream).wait()
    expected = expected_outputs(pd.op, pd.attr, inputs)
    factor = believed_factor(pd)
    return {
        name: right.check(arguments[name].numpy(), exact=exact, error_factor=factor)
        for name, right in expected.items()
        if pd.descs[name].format_kind == "blocked"
    }


def _inputs(pd: PrimitiveDesc, arguments: Mapping[str, Memory]) -> dict[str, Array]:
    """Return the values that a launch reads. A private workspace is replaced by the public one of
    src.
    """
    inputs, old = {}, _old_value(pd.op, pd.attr)
    replaced = "workspace" if "src" in pd.descs and pd.op.forward_op else ""
    for argument, desc in pd.arguments:
        name, is_read = argument.name, argument.direction == "in" or argument.name == old
        if is_read and desc.format_kind == "blocked":
            inputs[name] = np.array(arguments[name].numpy())
        elif is_read and name != replaced:
            raise DescriptorError(
                f"comparison: {name} must have a format that the reference can read; got {desc};"
                " compare the whole program with dnncore.crosscheck"
            )
    if "workspace" in pd.descs and "workspace" not in inputs and pd.op.forward_op:
        forward = correct_values(pd.op.forward_op, Attributes(), {"src": inputs["src"]})
        inputs["workspace"] = forward["workspace"]
    return inputs


def _old_value(op: Operation, attr: Attributes) -> str | None:
    """Return the name of the output whose old value a post-op reads, or None."""
    return op.result_name if attr.reads_dst else None


def _evaluate(op: Operation, attr: Attributes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the reference on the CPU engine with row-major formats. Observers are not notified."""
    cpu = engine("cpu")
    pd = _reference(op, attr)
    memories = {
        argument.name: Memory.from_numpy(np.array(inputs[argument.name], desc.dtype), desc, cpu)
        if argument.name in inputs or argument.direction == "in"
        else Memory(desc, cpu)
        for argument, desc in pd.arguments
    }
    stream = cpu.stream()
    pd.primitive().bind(**memories).launch_unobserved(stream).wait()
    return {a.name: memories[a.name].numpy() for a, _ in pd.arguments if a.direction == "out"}


def _reference(op: Operation, attr: Attributes) -> PrimitiveDesc:
    backend = registry.with_role("reference")
    names = f"{backend.name}:*" if backend else ""
    pd = next(primitive_descs(op, engine("cpu"), attr, impl=names, skip_impl=""), None)
    if pd is None or not pd.is_reference:
        raise BackendNotFound(
            f"{op.KIND}: a check needs a backend with role 'reference' that computes it on the CPU;"
            " there is none; `dnncore backends` lists the reasons"
        )
    return pd


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format(None)


def _plain_step(step: PostOp) -> PostOp:
    plain: dict[str, Any] = {name: _plain(desc) for name, desc in step.operands}
    return replace(step, **plain)
