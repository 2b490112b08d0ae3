"""Run every implementation of a problem on guarded memories and compare the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import definitions
import numpy as np
import pytest
from instruction_sets import in_turn

import dnncore as dnn
from dnncore.algorithms.rounding import Noise
from dnncore.comparison.compare import Expected, expected_outputs
from dnncore.comparison.error_bounds import believed_factor
from dnncore.comparison.fills import Fill, fill_inputs, fill_integers, fill_normal, keeps_integers
from dnncore.testing.checks.guarded import SHIFT, Arguments

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, Array]
Oracle = Callable[[Any, dnn.Attributes, Outputs], Outputs]

NO_ATTRIBUTES = dnn.Attributes()
shift = SHIFT  # distance of tensors from an aligned address in bytes; tests of alignment change it


@dataclass(frozen=True)
class Target:
    """An engine and the implementations to test on it."""

    name: str
    engine_name: str
    impl: str = ""
    skip_impl: str = ""
    role: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def engine(self) -> dnn.Engine:
        return dnn.engine(self.engine_name)

    def primitive_descs(
        self,
        op: dnn.Operation,
        attr: dnn.Attributes = NO_ATTRIBUTES,
        *,
        may_refuse: bool = False,
        **wishes: Any,
    ) -> list[dnn.PrimitiveDesc]:
        """All implementations that accept. Without any, fail, or skip the test if `may_refuse`."""
        wishes = {"impl": self.impl, "skip_impl": self.skip_impl, **wishes}
        found = list(dnn.primitive_descs(op, self.engine, attr, **wishes))
        if not found and may_refuse:
            pytest.skip("the engine has no implementation that accepts the problem")
        if not found:
            pytest.fail(f"{op.KIND} is refused: {self._refusals(op, attr, wishes)}")
        return found

    def _refusals(self, op: dnn.Operation, attr: dnn.Attributes, wishes: dict[str, Any]) -> str:
        try:
            dnn.PrimitiveDesc(op, self.engine, attr, **wishes)
        except dnn.NoImplementation as error:
            reasons = [str(r) for r in error.refusals if r.kind != "filter"]
        return "; ".join(reasons) or "there is no implementation"


REFERENCE = Target("reference", "cpu", impl="reference:*", role="reference")


# -- running --------------------------------------------------------------------------------------


def run(
    pd: dnn.PrimitiveDesc, inputs: Outputs, in_place: tuple[str, str] | None = None
) -> dict[str, Array]:
    """Execute `pd` once. Returns its outputs. in_place: an input and the output that shares it."""
    arguments = Arguments(pd, inputs, in_place, (shift,))
    stream = pd.engine.stream()
    pd.primitive().execute(stream, **arguments.memories).wait()
    stream.wait()
    outputs, findings = arguments.outcome()
    assert not findings, f"{pd.impl_name}: {'; '.join(f.message for f in findings)}"
    return outputs


# -- checking -------------------------------------------------------------------------------------


def check(
    target: Target,
    op: dnn.Operation,
    attr: dnn.Attributes = NO_ATTRIBUTES,
    *,
    inputs: Outputs | None = None,
    in_place: tuple[str, str] | None = None,
    oracle: Oracle | None = None,
    **wishes: Any,
) -> None:
    """Compare every implementation that accepts with the reference, or with `oracle` if given.

    Instruction sets of one algorithm take turns: see `in_turn`. The reference itself is compared
    with the definitions, number by number.

    Without `inputs` there are two rounds of inputs: integers and random numbers. For integers, the
    results of an implementation that claims to be exact must be equal bit for bit. For random
    numbers, results must be within the error bound. wishes: keyword arguments of
    `Target.primitive_descs`.
    """
    pds = in_turn(target.primitive_descs(op, attr, **wishes))
    if target.role == "reference":
        oracle = oracle or definitions.outputs
    if inputs is not None:
        _check_round(pds, Round(op, attr, inputs, oracle), in_place)
        return
    for fill in (fill_integers, fill_normal):
        exact = fill is fill_integers and keeps_integers(op, attr)
        _check_round(pds, _filled(op, attr, fill, in_place, oracle), in_place, exact=exact)


def check_pooling_gradient(
    target: Target, op: dnn.PoolingBackward, attr: dnn.Attributes = NO_ATTRIBUTES
) -> None:
    """Call `check` on random numbers. If the gradient reads a workspace, forward computes it."""
    inputs = {"diff_dst": fill_normal(op.diff_dst, 1)}
    if op.algorithm == "max":
        src = {"src": fill_normal(op.diff_src, 2)}
        inputs["workspace"] = expected_outputs(op.forward_op, NO_ATTRIBUTES, src)[
            "workspace"
        ].values
    check(target, op, attr, inputs=inputs)


class Round:
    """Inputs of a problem, and the expected results by the reference or by `oracle`."""

    def __init__(
        self, op: dnn.Operation, attr: dnn.Attributes, inputs: Outputs, oracle: Oracle | None
    ) -> None:
        self.inputs = inputs
        self.expected = expected_outputs(op, attr, inputs)
        for name, values in oracle(op, attr, inputs).items() if oracle else ():
            noise = self.expected[name].noise
            if oracle is definitions.outputs and noise is not None:
                noise = _float64_noise(values)
            self.expected[name] = Expected(values, noise)


def _float64_noise(values: Array) -> Noise:
    """The allowed error of the reference's float64 computation, before its final rounding.

    Differences of equal numbers are 1e-14 at most, if the inputs are near 1.
    """
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return Noise.within(np.full(values.shape, 1e-14 + 1e-9 * finite.max(initial=0.0)))


@lru_cache(maxsize=4096)
def _filled(
    op: dnn.Operation,
    attr: dnn.Attributes,
    fill: Fill,
    in_place: tuple[str, str] | None,
    oracle: Oracle | None,
) -> Round:
    """A round with generated inputs. All targets share it."""
    inputs = fill_inputs(op, attr, fill)
    if in_place and in_place[1] in inputs:
        inputs[in_place[1]] = inputs[in_place[0]]
    return Round(op, attr, inputs, oracle)


def _check_round(
    pds: list[dnn.PrimitiveDesc],
    given: Round,
    in_place: tuple[str, str] | None,
    *,
    exact: bool = False,
) -> None:
    for pd in pds:
        agree(pd, run(pd, given.inputs, in_place), given.expected, exact=exact)


def agree(
    pd: dnn.PrimitiveDesc, got: Outputs, expected: Mapping[str, Expected], *, exact: bool = False
) -> None:
    """Fail if outputs differ from the expected ones. The message shows the worst element."""
    for name, right in expected.items():
        result = right.check(got[name], exact=exact and pd.exact, error_factor=believed_factor(pd))
        assert result.ok, f"{pd.impl_name}: {name}: {result}"


def reference_outputs(op: dnn.Operation, inputs: Outputs, **attributes: Any) -> dict[str, Array]:
    """The outputs of the reference, for tests of the reference itself."""
    expected = expected_outputs(op, dnn.Attributes(**attributes), inputs)
    return {name: right.values for name, right in expected.items()}
