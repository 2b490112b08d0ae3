"""Rates that an engine can reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dnncore.errors import DescriptorError

__all__ = ["Peaks"]


@dataclass(frozen=True)
class Peaks:
    """Rates that an engine can reach; estimates of seconds are relative to them.

    flops: multiply and add operations per second, by the type of the factors; for a type without an
        entry, f32's value applies.
    bandwidth: bytes per second, read and written.
    launch: seconds per primitive in addition to its work.
    """

    flops: Mapping[str, float]
    bandwidth: float
    launch: float

    def __post_init__(self) -> None:
        flops: object = self.flops
        if not isinstance(flops, Mapping) or "f32" not in flops:
            raise DescriptorError(
                f"peaks: flops must be a mapping with an entry for f32; got {self.flops!r}"
            )
        rates: dict[Any, object] = {**flops, "bandwidth": self.bandwidth}
        for name, rate in rates.items():
            if not (isinstance(rate, Real) and float(rate) > 0):
                raise DescriptorError(f"peaks: {name} must be a number above 0; got {rate!r}")
        launch: object = self.launch
        if not (isinstance(launch, Real) and 0 <= float(launch) < math.inf):
            raise DescriptorError(
                f"peaks: launch must be a finite number of seconds, at least 0; got {self.launch!r}"
            )

    def ideal_seconds(self, flops: float, nbytes: float, data_type: str = "f32") -> float:
        """Seconds of a perfect implementation: launch + the longer of arithmetic and transfers."""
        rate = self.flops.get(data_type) or self.flops["f32"]
        return max(flops / rate, nbytes / self.bandwidth) + self.launch
