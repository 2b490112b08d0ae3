"""The instruction sets that microkernels are emitted for, and their register tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dnncore_cpu_numba.native import cpu_features

__all__ = ["AVX2", "AVX512_CORE", "BEST", "GENERIC", "ISAS", "Isa"]


@dataclass(frozen=True)
class Isa:
    """One way to use vector registers.

    lanes: floats in a vector.
    rows: vectors of a register tile -> the most rows that its registers hold beside one row of B
        and a broadcast of A; tiles need 8 or more accumulators to hide an FMA's latency.
    requires: LLVM features that the processor must have.
    target: LLVM's processor model to emit code for, "" for the processor that we run on.
    """

    name: str
    lanes: int
    rows: Mapping[int, int] = field(hash=False)
    requires: frozenset[str] = frozenset()
    target: str = ""

    @property
    def most_vectors(self) -> int:
        """The widest tile, in vectors."""
        return max(self.rows)

    @property
    def missing(self) -> list[str]:
        """What the processor lacks of this instruction set."""
        have = cpu_features().split(",")
        return sorted(feature for feature in self.requires if f"+{feature}" not in have)


AVX512_CORE = Isa(
    "avx512_core",
    lanes=16,
    rows={1: 24, 2: 14, 3: 8, 4: 6},
    requires=frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"}),
)
AVX2 = Isa(
    "avx2",
    lanes=8,
    rows={1: 12, 2: 6},
    requires=frozenset({"avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe"}),
    target="x86-64-v3",
)
GENERIC = Isa("generic", lanes=4, rows={1: 10, 2: 6})
ISAS = (AVX512_CORE, AVX2, GENERIC)
BEST = next(isa for isa in ISAS if not isa.missing)
