"""The algorithm names that operations and post-ops share, and what their parameters mean."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Real

from dnncore.errors import DescriptorError

__all__ = [
    "BINARY_ALGORITHMS",
    "ELTWISE_ALGORITHMS",
    "check_algorithm",
    "check_eltwise",
    "check_finite",
]

ELTWISE_ALGORITHMS = {
    "relu": "s if s > 0 else alpha * s",
    "tanh": "tanh(s)",
    "logistic": "1 / (1 + exp(-s))",
    "linear": "alpha * s + beta",
}

BINARY_ALGORITHMS = {
    "add": "src0 + src1",
    "mul": "src0 * src1",
}


def check_algorithm(what: str, algorithm: object, known: Collection[str]) -> None:
    """Raise `DescriptorError` unless `algorithm` is one of `known`."""
    if not isinstance(algorithm, str) or algorithm not in known:
        raise DescriptorError(
            f"{what}: unknown algorithm {algorithm!r}; choose one of {', '.join(known)}"
        )


def check_eltwise(what: str, algorithm: object, alpha: object, beta: object) -> None:
    """Raise `DescriptorError` unless the algorithm exists and its parameters are finite numbers."""
    check_algorithm(what, algorithm, ELTWISE_ALGORITHMS)
    check_finite(what, alpha=alpha, beta=beta)


def check_finite(what: str, **values: object) -> None:
    """Raise `DescriptorError` unless each value, told by its name, is a finite number."""
    for name, value in values.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise DescriptorError(f"{what}: {name} must be a finite number; got {value!r}")
