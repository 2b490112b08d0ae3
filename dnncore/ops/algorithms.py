"""The algorithm names that operations and post-ops share, and what their parameters mean."""

from __future__ import annotations

from collections.abc import Collection

from dnncore.errors import DescriptorError

__all__ = ["BINARY_ALGORITHMS", "ELTWISE_ALGORITHMS", "check_algorithm", "check_eltwise"]

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


def check_algorithm(what: str, algorithm: str, known: Collection[str]) -> None:
    """Raise `DescriptorError` unless `algorithm` is one of `known`."""
    if algorithm not in known:
        raise DescriptorError(
            f"{what}: unknown algorithm {algorithm!r}; choose one of {', '.join(known)}"
        )


def check_eltwise(what: str, algorithm: str, alpha: float, beta: float) -> None:
    """Raise `DescriptorError` unless the algorithm exists and its parameters are finite numbers."""
    check_algorithm(f"{what} eltwise", algorithm, ELTWISE_ALGORITHMS)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not -float("inf") < value < float("inf"):
            raise DescriptorError(f"{what} eltwise: {name} must be a finite number; got {value!r}")
