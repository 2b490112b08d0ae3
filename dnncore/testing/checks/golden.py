"""Check of golden cases: small problems with results computed by hand."""

from __future__ import annotations

import numpy as np

from dnncore.comparison.compare import compare
from dnncore.problem import Problem, driver_of, read
from dnncore.problem.drivers.driver import Golden
from dnncore.testing.checks.case import Case, Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["ROUNDING", "golden"]


ROUNDING = 1e-5  # relative; golden results that are not integers have 7 digits


def golden(trial: Trial) -> None:
    """The implementation is correct in the golden cases of the operation that it accepts."""
    for case in driver_of(type(trial.pd.op)).golden:
        (problem,) = read(case.text)
        if type(problem.op) is type(trial.pd.op):
            _check(trial, case, problem)


def _check(trial: Trial, case: Golden, problem: Problem) -> None:
    own = Case(problem, trial.case.engine)
    pd = own.sibling(trial, problem.attr)
    if pd is None:
        return
    inputs = {name: np.array(v, pd.descs[name].dtype) for name, v in case.inputs.items()}
    outputs = trial.execute(inputs, pd=pd)
    for name in outputs.keys() & case.outputs.keys():  # omits a private workspace
        right = np.array(case.outputs[name], pd.descs[name].dtype)
        result = compare(outputs[name], right, ROUNDING * np.abs(right.astype(np.float64)))
        if not result.ok:
            raise CheckFailed(f"{case.text}: {name}: {result}")
