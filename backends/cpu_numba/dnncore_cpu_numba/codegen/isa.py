"""The instruction sets that code is compiled for: features of the processor and register tiles.

A set of `ISAS` has vectors of its own. A set of `DOT_ISAS` adds instructions to one of them, which
multiply and add several bf16 or 8-bit integers at a time; only such products are compiled for it.

Tasks are compiled for `BEST`, microkernels for the set that they are written for. With
`DNNCORE_MAX_CPU_ISA` set to one of their names, or to oneDNN's word for a set beside them, `BEST`
is no better than that, and nothing in the process is compiled for a better one. The variable is
read once, when this backend is first used.
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
    """One way to use vector registers.

    lanes: floats in a vector.
    rows: vectors of a register tile -> the most rows that its registers hold beside one row of B
        and a broadcast of A; tiles need 8 or more accumulators to hide an FMA's latency.
    x86: the features that its code may use on an x86 processor, by LLVM's names.
    any_processor: whether it is for others too; there, code may use all that they have.
    products: the types of A, bf16 or u8, whose products have instructions of their own.
    """

    name: str
    lanes: int
    rows: Mapping[int, int] = field(hash=False)
    x86: frozenset[str] = field(repr=False)  # its order is another one in each process
    any_processor: bool = False
    products: frozenset[str] = frozenset()

    @property
    def has_tiles(self) -> bool:
        """Whether products are computed in tile registers."""
        return "amx-tile" in self.x86

    @property
    def most_vectors(self) -> int:
        """The number of vectors in the widest tile."""
        return max(self.rows)

    @functools.cached_property
    def obstacle(self) -> str:
        """The reason why its code cannot or may not run here; empty if it can."""
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
        """The features that code may use, as LLVM's list, for example "+avx2,-avx512f"."""
        host = host_features()
        if "sse2" in host:  # an x86 processor
            host = {name: name in self.x86 for name in host}
        return ",".join(f"{'+' if has else '-'}{name}" for name, has in sorted(host.items()))

    @property
    def converts_f16(self) -> bool:
        """Whether its code has instructions for f16; LLVM calls a library where x86 has none."""
        return "-f16c" not in self.features.split(",")


@functools.cache
def _tiles_are_permitted() -> bool:
    """Ask Linux for the tile registers, which a process may use only after it has asked."""
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
AVX2 = Isa("avx2", 8, {1: 12, 2: 6}, _AVX2)
SSE41 = Isa("sse41", 4, {1: 10, 2: 6}, _SSE41)
# The tiles are for 32 registers, as most other processors have them.
SIMD128 = Isa("simd128", 4, {1: 14, 2: 9, 3: 6, 4: 5}, _X86_64, any_processor=True)
ISAS = (AVX512_CORE, AVX2, SSE41, SIMD128)
"""The sets of vectors, best first; the last one can be used on every processor."""

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

# oneDNN's words for sets that come between two of these: the lower one.
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
    """The instruction set that the user's cap names. Raises `DescriptorError` for another word."""
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
    """The features that LLVM knows for this kind of processor, and whether this one has them."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not report features on some systems
        return {}


@functools.cache
def host_cpu() -> str:
    """LLVM's name of this processor's kind, such as znver4."""
    return str(llvm.get_host_cpu_name())


AVAILABLE = tuple(isa for isa in ISAS if not isa.obstacle)
"""The sets of vectors that this process may use, best first."""

BEST = AVAILABLE[0]
