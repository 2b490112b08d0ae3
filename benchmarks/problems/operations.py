"""The lines of normalizations, copies, deconvolution, recurrent cells and attention.

The shapes of operations that memory limits, and of deconvolutions, are drawn: their largest tensor
takes about a given number of bytes. The shapes of cells and of attention are those of the goals.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.contestants.contestant import CPU_PEERS
from benchmarks.corpus.sample import Sample
from benchmarks.problems.lines import Line
from dnncore.problem import Problem, read

__all__ = ["cpu_lines", "gpu_lines"]

CHANNELS, SIDES = (32, 48, 64, 96, 128, 192, 256), (14, 20, 28, 40, 56, 80)
ROWS = (384, 512, 768, 1024, 1536, 2048, 4096)
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def _line(title: str, goal: float | None, least: float | None, texts: Sequence[str],
          share: float | None = None, peers: tuple[str, ...] = CPU_PEERS) -> Line:  # fmt: skip
    """A line of problem texts, without repetitions."""
    found: dict[str, Problem] = {str(p): p for text in texts for p in read(text)}
    sample = Sample(list(found.values()), Counter(), 0)
    return Line(title, goal, least, (), share=share, peers=peers, sample=sample)


class Shapes:
    """Draws shapes.

    seed: of the generator. count: the number of elements of the largest tensor.
    """

    def __init__(self, seed: int, megabytes: float, data_type: str) -> None:
        self.chance = random.Random(f"{seed} {megabytes} {data_type}")
        self.count = megabytes * 1e6 / BYTES[data_type]
        self.type, self.size = data_type, f"{megabytes:g}MB"

    def image(self) -> tuple[int, int, int]:
        """The batch, the channels and the height of square images."""
        channels, side = self.chance.choice(CHANNELS), self.chance.choice(SIDES)
        while channels * side * side > self.count:
            channels, side = self.chance.choice(CHANNELS), self.chance.choice(SIDES)
        return max(1, round(self.count / (channels * side * side))), channels, side

    def rows(self) -> tuple[int, int]:
        """The number of rows, and their length."""
        length = self.chance.choice(ROWS)
        return max(1, round(self.count / length)), length

    def normalizations(self) -> Iterator[str]:
        """Batch, layer and group normalization, forward and backward."""
        dt = f"--dt={self.type}"
        for tag in ("abx", "axb"):
            n, c, side = self.image()
            shape = f"mb{n}ic{c}_ih{side}"
            yield f"--bnorm {dt} --dir=FWD_D,BWD_DW --flags=CH --tag={tag} {shape}"
            yield f"--bnorm {dt} --dir=FWD_I --flags=GCH --tag={tag} {shape}"
        rows, length = self.rows()
        yield f"--lnorm {dt} --dir=FWD_D,BWD_DW --flags=CH {rows}x{length}"
        n, c, side = self.image()
        yield f"--gnorm {dt} --dir=FWD_D,BWD_DW --flags=CH g{c // 8}mb{n}ic{c}_ih{side}"

    def fused(self) -> Iterator[str]:
        """Batch normalization with relu."""
        for tag in ("abx", "axb"):
            n, c, side = self.image()
            shape = f"mb{n}ic{c}_ih{side}"
            yield f"--bnorm --dt={self.type} --dir=FWD_D --flags=CHR --tag={tag} {shape}"
            yield f"--bnorm --dt={self.type} --dir=FWD_I --flags=GCHR --tag={tag} {shape}"

    def copies(self) -> Iterator[str]:
        """PReLU, concat, shuffle and resampling."""
        own = self.type
        n, c, side = self.image()
        yield (f"--prelu --dir=FWD_D,BWD_DW --sdt={own}:{own} {n}x{c}x{side}x{side}:1x{c}x1x1")
        for tag in ("abx", "axb"):
            n, c, side = self.image()
            first = 8 * self.chance.randint(1, c // 8 - 1)
            parts = ":".join(f"{n}x{part}x{side}x{side}" for part in (first, c - first))
            yield f"--concat --sdt={own}:{own} --ddt={own} --stag={tag} --axis=1 {parts}"
        n, c, side = self.image()
        group = self.chance.choice((2, 4, 8))
        shape = f"{n}x{c}x{side}x{side}"
        yield f"--shuffle --dt={own} --dir=FWD_D,BWD_D --axis=1 --group={group} {shape}"
        for tag in ("abx", "axb"):
            n, c, side = self.image()
            sizes = f"mb{n}ic{c}_ih{side // 2}oh{side}"
            yield (
                f"--resampling --sdt={own} --ddt={own} --dir=FWD_D,BWD_D --alg=nearest,linear"
                f" --tag={tag} {sizes}"
            )

    def deconvolutions(self, data_type: str = "f32") -> Iterator[str]:
        """Deconvolutions with strides of 2, as in decoders."""
        for _ in range(3):
            n, c, side = self.chance.choice((1, 4, 8)), self.chance.choice((64, 128, 256)), (
                self.chance.choice((14, 16, 28, 32)))  # fmt: skip
            outputs, taps = self.chance.choice((32, 64, 128)), self.chance.choice((2, 4))
            padding = (taps - 2) // 2
            yield (
                f"--deconv --dt={data_type} --dir=FWD_B,BWD_D,BWD_WB"
                f" mb{n}ic{c}oc{outputs}_ih{side}oh{2 * side}kh{taps}sh2ph{padding}"
            )


def _cells(data_type: str = "f32", batches: Sequence[int] = (1, 16, 64)) -> Iterator[str]:
    """LSTM and GRU of 50 steps."""
    types = "" if data_type == "f32" else "".join(
        f" --{name}={data_type}" for name in ("sdt", "wdt", "ddt"))  # fmt: skip
    for direction in ("FWD_I", "BWD_DW"):
        for hidden in (512, 1024):
            for batch in batches:
                for cell in ("VANILLA_LSTM", "LBR_GRU"):
                    yield (
                        f"--rnn{types} --dir={direction} --alg={cell}"
                        f" l1t50mb{batch}_sic{hidden}slc{hidden}dhc{hidden}dic{hidden}"
                    )


def _attention(direction: str, data_type: str, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Twelve heads of 64. sizes: batch and tokens."""
    for batch, tokens in sizes:
        queries, keys = f"{batch}x12x{tokens}x64", f"{batch}x12x64x{tokens}"
        for mask in ("none", "causal_top_left"):
            yield (
                f"--sdpa --dt={data_type} --dir={direction} --mask_type={mask}"
                f" {queries}:{keys}:{queries}"
            )


SIZES = ((1, 128), (1, 512), (1, 2048), (8, 128), (8, 512), (1, 8192), (8, 2048))


def cpu_lines(seed: int) -> tuple[Line, ...]:
    """The lines of the CPU."""
    large, small = Shapes(seed, 51, "f32"), Shapes(seed, 1, "f32")
    half, little = Shapes(seed, 51, "bf16"), Shapes(seed, 1, "bf16")
    end = f", seed {seed}"
    return (
        _line(f"Normalizations, f32, 51 MB{end}", None, 1.3, [*large.normalizations()], 0.9),
        _line(f"Batch normalization with relu, f32, 51 MB{end}", 1.5, None, [*large.fused()]),
        _line(f"PReLU, concat, shuffle, resampling, f32, 51 MB{end}", None, 1.3,
              [*large.copies()], 0.9),
        _line(f"Deconvolution, f32{end}", 1.05, None, [*large.deconvolutions()]),
        _line("LSTM and GRU, f32, 50 steps", 1.1, None, [*_cells()]),
        _line("Attention forward, f32", 1.2, None, [*_attention("FWD_I", "f32", SIZES)]),
        _line("Attention backward, f32", 1.2, None, [*_attention("BWD_D", "f32", SIZES[:5])]),
        _line(f"Normalizations, f32, 1 MB{end}", 1.0, 0.8, [*small.normalizations()]),
        _line(f"PReLU, concat, shuffle, resampling, f32, 1 MB{end}", 1.0, 0.8,
              [*small.copies()]),
        _line(f"Normalizations, bf16, 51 MB{end}", None, 1.3, [*half.normalizations()], 0.9),
        _line(f"PReLU, concat, shuffle, resampling, bf16, 51 MB{end}", None, 1.3,
              [*half.copies()], 0.9),
        _line(f"Normalizations, bf16, 1 MB{end}", 1.0, 0.8, [*little.normalizations()]),
        _line(f"PReLU, concat, shuffle, resampling, bf16, 1 MB{end}", 1.0, 0.8,
              [*little.copies()]),
    )  # fmt: skip


def gpu_lines(seed: int, peers: tuple[str, ...]) -> tuple[Line, ...]:
    """The lines of a GPU."""
    large = Shapes(seed, 205, "f32")
    sizes = [size for size in SIZES if size[1] > 128]
    return (
        _line(f"Normalizations, f32, 205 MB, seed {seed}", None, None,
              [*large.normalizations(), *large.fused()], 0.9, peers),
        _line(f"PReLU, concat, shuffle, resampling, f32, 205 MB, seed {seed}", None, None,
              [*large.copies()], 0.9, peers),
        _line("LSTM and GRU, f32, 50 steps", 0.7, None, [*_cells()], None, peers),
        _line("Attention forward, f16, beside torch's flash backend", 0.5, None,
              [*_attention("FWD_I", "f16", sizes)], None, peers),
        _line("Attention backward, f16, beside torch's flash backend", 0.5, None,
              [*_attention("BWD_D", "f16", sizes[:4])], None, peers),
    )  # fmt: skip
