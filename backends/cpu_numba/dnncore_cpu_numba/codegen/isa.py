"""The instruction sets that code is compiled for: features of the processor and register tiles.

The sets in `ISAS` differ in their vectors. A set in `DOT_ISAS` extends one of them by instructions
that multiply and add several bf16 or 8-bit integers at a time. Only such products are compiled for
it.

Tasks are compiled for `BEST`, and microkernels for the set of their implementation.
`DNNCORE_MAX_CPU_ISA` limits the sets that code is compiled for, including `BEST`. Its value is the
name of one of these sets, or oneDNN's name of another set. The variable is read once, when this
backend is first used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import llvmlite.binding as llvm

from dnncore.backend import DescriptorError

CAP = "DNNCORE_MAX_CPU_ISA"


@dataclass(frozen=True)
class Isa:
    """An instruction set and its register tiles.

    lanes: the number of f32 in a vector.
    rows: vectors of a register tile -> the most rows for which registers also hold one row of B and
        a broadcast of A. Tiles need 8 or more accumulators to hide the latency of an FMA.
    x86: the features that code may use on an x86 processor, by LLVM's names.
    any_processor: whether the set also serves other processors. There, code may use all features.
    products: the types of A whose products have special instructions: bf16, u8, s8.
    few: as rows, wider tiles for problems of at most this number of rows. Narrow tiles of few rows
        would have too few accumulators.
    """

    name: str
    lanes: int
    rows: Mapping[int, int] = field(hash=False)
    x86: frozenset[str] = field(repr=False)  # its order differs from process to process
    any_processor: bool = False
    products: frozenset[str] = frozenset()
    few: Mapping[int, int] = field(default_factory=dict, hash=False)

    def tiles_of(self, rows: int) -> dict[int, int]:
        """Return the tiles, as `rows`, for a problem with this number of rows."""
        return {**self.rows, **{n: most for n, most in self.few.items() if rows <= most}}

    @property
    def has_tiles(self) -> bool:
        """Whether products are computed in AMX tile registers."""
        return "amx-tile" in self.x86

    @property
    def most_vectors(self) -> int:
        """The number of vectors in the widest tile."""
        return max(self.rows)

    @functools.cached_property
    def obstacle(self) -> str:
        """The reason why code for this set cannot or must not run here; empty if it can run."""
        if not self.x86 <= (cap := highest_allowed()).x86:
            return f"{CAP}={os.environ[CAP]} allows {cap.name} and less"
        if self.any_processor:
            return ""
        missing = sorted(name for name in self.x86 if not host_features().get(name))
        if missing:
            return f"{self.name} needs {', '.join(missing)}, which the processor lacks"
        if self.has_tiles and not _tiles_are_permitted():
            return f"the system does not permit {self.name}"
        return ""

    @functools.cached_property
    def features(self) -> str:
        """The features that code may use, as a list for LLVM, such as "+avx2,-avx512f"."""
        host = host_features()
        if "sse2" in host:  # an x86 processor
            host = {name: name in self.x86 for name in host}
        return ",".join(f"{'+' if has else '-'}{name}" for name, has in sorted(host.items()))

    @property
    def converts_f16(self) -> bool:
        """Whether there are instructions that convert f16. Without them, LLVM calls a library."""
        return "-f16c" not in self.features.split(",")


@functools.cache
def _tiles_are_permitted() -> bool:
    """Request the tile registers from Linux. A process may use them only after this request."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).syscall(*REQUEST_TILES) == 0)


REQUEST_TILES = (158, 0x1023, 18)  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA

_X86_64 = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"})
_SSE41 = _X86_64 | {"cx16", "sahf", "sse3", "ssse3", "sse4.1"}
_AVX2 = _SSE41 | {
    "avx", "avx2", "bmi", "bmi2", "crc32", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2",
    "xsave",
}  # fmt: skip
_AVX512_CORE = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

AVX512_CORE = Isa("avx512_core", 16, {1: 20, 2: 14, 3: 9, 4: 6}, _AVX512_CORE)
_FEW = {3: 4, 4: 2, 8: 1}
AVX2 = Isa("avx2", 8, {1: 12, 2: 6}, _AVX2, few=_FEW)
SSE41 = Isa("sse41", 4, {1: 10, 2: 6}, _SSE41, few=_FEW)
# The tiles assume 32 registers, which most processors other than x86 have.
SIMD128 = Isa("simd128", 4, {1: 14, 2: 9, 3: 6, 4: 5}, _X86_64, any_processor=True)
ISAS = (AVX512_CORE, AVX2, SSE41, SIMD128)
"""The sets that differ in vectors, best first. The last one works on every processor."""

_VNNI = _AVX512_CORE | {"avx512vnni"}
_BF16 = _VNNI | {"avx512bf16"}
_AMX = _BF16 | {"amx-tile", "amx-int8", "amx-bf16", "avxvnni"}

_OF_BF16, _OF_INTEGERS = frozenset({"bf16"}), frozenset({"u8"})

AVX512_CORE_AMX = replace(
    AVX512_CORE, name="avx512_core_amx", rows={1: 32, 2: 32}, x86=_AMX,
    products=_OF_BF16 | _OF_INTEGERS | {"s8"},
)  # fmt: skip
AVX512_CORE_BF16 = replace(AVX512_CORE, name="avx512_core_bf16", x86=_BF16, products=_OF_BF16)
AVX512_CORE_VNNI = replace(AVX512_CORE, name="avx512_core_vnni", x86=_VNNI, products=_OF_INTEGERS)
AVX2_VNNI = replace(AVX2, name="avx2_vnni", x86=_AVX2 | {"avxvnni"}, products=_OF_INTEGERS)
DOT_ISAS = (AVX512_CORE_AMX, AVX512_CORE_BF16, AVX512_CORE_VNNI, AVX2_VNNI)
"""The sets with instructions for products of bf16 or integers, best first."""

# oneDNN's names. A set between two of these sets stands for the lower one.
_WORDS = {
    "default": AVX512_CORE_AMX,
    "avx": SSE41,
    "avx2_vnni_2": AVX2_VNNI,
    **dict.fromkeys(("avx512_core_fp16", "avx10_1_512"), AVX512_CORE_BF16),
    **dict.fromkeys(
        (
            "avx512_core_amx_fp16", "avx10_1_512_amx", "avx10_1_512_amx_fp16", "avx10_2_512",
            "avx10_2_amx_2",
        ),
        AVX512_CORE_AMX,
    ),
    **{isa.name: isa for isa in (*DOT_ISAS, *ISAS)},
}  # fmt: skip


@functools.cache
def highest_allowed() -> Isa:
    """Return the best set that the user allows. Raises `DescriptorError` for unknown names."""
    word = os.environ.get(CAP, "") or "default"
    isa = _WORDS.get(word.lower())
    if isa is None:
        raise DescriptorError(
            f"{CAP} must be one of {', '.join(isa.name for isa in (*DOT_ISAS, *ISAS))}, default,"
            f" or oneDNN's word for another instruction set; got {word!r}; unset it to use what the"
            " processor has"
        )
    return isa


@functools.cache
def host_features() -> Mapping[str, bool]:
    """Return the features that LLVM knows for this architecture, and whether they exist here."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not report features on some systems
        return {}


@functools.cache
def host_cpu() -> str:
    """Return LLVM's name of this processor model, such as znver4."""
    return str(llvm.get_host_cpu_name())


AVAILABLE = tuple(isa for isa in ISAS if not isa.obstacle)
"""The sets of `ISAS` that this process may use, best first."""

BEST = AVAILABLE[0]
