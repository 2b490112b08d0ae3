"""Rates that an engine can reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    def ideal_seconds(self, flops: float, nbytes: float, data_type: str = "f32") -> float:
        """Seconds of a perfect implementation: launch + the longer of arithmetic and transfers."""
        rate = self.flops.get(data_type) or self.flops["f32"]
        return max(flops / rate, nbytes / self.bandwidth) + self.launch
