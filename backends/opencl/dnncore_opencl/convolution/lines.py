"""Launches of the kernel `convolution_direct`, which computes lines of pixels of a convolution.

    dst[g, c, p] = sum over d and t of src[g, d, at + n * p + k * t] * weights[g, c, d, t]

for pixels p and taps t of up to three coordinates. Elements outside of src are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from dnncore.backend import PostOp, Refused
from dnncore_opencl.codegen.digits import INT4, int4
from dnncore_opencl.convolution.views import FLOAT, View, steps
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.strided import TASKS_PER_CORE
from dnncore_opencl.runtime.launch import Launch, Source, padded, template
from dnncore_opencl.runtime.schema import INT, Buffer, Schema, Scratch

RUNS = {16: (7, 6, 4, 2, 1), 8: (3, 2, 1), 4: (3, 2, 1)}  # pixels per run, by lanes of a vector
TILE_COST = 3  # overhead per tile, such as loads of weights, in pixels
DEEP_RUN = 4  # pixels; the lines of two such runs fit in one set of a first-level cache
MOST_PIXELS = 48  # pixels of a panel, which occupies 6 KB of a first-level cache
CHUNK_BYTES = 1 << 19

# x is src, u is the weights, y is dst.
SCHEMA = Schema(
    src=Buffer("const float"),
    weights=Buffer("const float"),
    dst=Buffer("float"),
    scratch=Buffer("float"),
    scratch_start=INT,  # elements
    runs=INT,  # per work-item
    chunk=INT,  # runs that are computed for all panels before the next runs
    panels=INT,  # per work-item
    columns=INT,  # channels of dst in a group
    depth=INT,  # channels of src in a group
    span=INT,  # channels of src computed at once
    out=INT4,  # images, then the pixels along three dims
    taps=INT4,  # along three dims, as are the next four; see `Lines`
    w_at=INT4,
    w_n=INT4,
    w_k=INT4,
    w_size=INT4,
    copied=INT,  # distance in src of consecutive copied pixels
    is_blocked=INT,
    x=INT4,  # strides of image, depth, height and width
    x_channels=INT4,  # first element; strides of a group, a channel block and a channel
    u=INT4,
    u_channels=INT4,
    y=INT4,
    y_channels=INT4,
)


@dataclass(frozen=True)
class Lines:
    """One sweep over pixels of dst.

    lanes: channels of a vector. channels: groups, channels of dst per group, channels of src per
    group. out: images, then the pixels along three dims. taps, at, n, k, size: along three dims, as
    in the formula above. is_blocked, src_is_blocked: whether dst, or src, has whole channel blocks.
    is_deep: whether all channels of src are contiguous, its pixels are far apart, and there is one
    tap.
    """

    lanes: int
    channels: tuple[int, int, int]
    out: tuple[int, ...]
    size: tuple[int, ...]
    src: View
    weights: View
    dst: View
    is_blocked: bool
    src_is_blocked: bool
    taps: tuple[int, ...] = (1, 1, 1)
    at: tuple[int, ...] = (0, 0, 0)
    n: tuple[int, ...] = (1, 1, 1)
    k: tuple[int, ...] = (1, 1, 1)
    post_ops: tuple[PostOp, ...] = ()
    operands: tuple[View, ...] = ()
    is_deep: bool = False

    def merged(self) -> Lines:
        """Return the sweep with longer lines if dst and src differ only in channels."""
        lines = self
        is_pointwise = self.taps == self.n == (1, 1, 1) and self.at == (0, 0, 0)
        if is_pointwise and self.out[1:] == self.size:
            for dim in (1, 0):
                lines = lines._joined(dim)
        return lines

    def _joined(self, dim: int) -> Lines:
        """Merge the spatial dim `dim` with the last dim if both are one dim in memory."""
        count, width = self.size[dim], self.size[2]
        views = (self.src, self.dst, *self.operands)
        if any(view.pixels[dim + 1] != view.pixels[3] * width for view in views):
            return self
        size = (*self.size[:dim], 1, *self.size[dim + 1 : 2], count * width)
        return replace(self, size=size, out=(self.out[0], *size))

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements."""
        return not math.prod(self.out)

    @cached_property
    def copied(self) -> int:
        """The distance in src of consecutive copied pixels of a line."""
        return math.gcd(self.n[2], self.k[2]) if self.taps[2] > 1 else self.n[2]

    @cached_property
    def run(self) -> int:
        """Pixels per run. Registers hold one tile: two runs of two vectors each."""
        lines = math.prod(self.out[:3])

        def cost(run: int) -> int:
            tiles = math.ceil(lines * math.ceil(self.out[3] / run) / 2)
            return tiles * (2 * run + TILE_COST)

        runs = [run for run in RUNS[self.lanes] if run <= DEEP_RUN or not self.is_deep]
        return min(runs, key=cost)

    @property
    def is_side_by_side(self) -> bool:
        """Whether src can be loaded in vectors. Then the padding of its blocks is zero."""
        _, _, depth = self.channels
        return self.src.channel == 1 and (depth % self.lanes == 0 or self.src_is_blocked)

    @property
    def refusal(self) -> Refused | None:
        """Return why the kernel cannot compute the sweep; None if it can."""
        reach = (self.run - 1) * self.n[2] + abs((self.taps[2] - 1) * self.k[2])
        pixels = reach // self.copied + 1
        if pixels > MOST_PIXELS:
            run = f"{self.run} pixels of a line"
            return Refused("shape", f"{run} must depend on {MOST_PIXELS} at most; got {pixels}")
        return None

    def plan(self, cpu: CpuFamily, scratch_start: int) -> Plan:
        """Plan for a device. `scratch_start` bytes of the scratchpad are already used."""
        groups, columns, depth = self.channels
        runs, chunk, panels = self._shares(cpu.units)
        span = depth if self.is_deep else self.lanes
        chain = steps(self.post_ops, self.operands)
        pixels = [(run, pixel) for run in range(2) for pixel in range(self.run)]
        defines: dict[str, str | int | float] = {
            "LANES": self.lanes,
            "RUN": self.run,
            "MOST_PIXELS": MOST_PIXELS,
            "EACH(DO)": " ".join(f"DO({run}, {pixel})" for run, pixel in pixels),
            **({"POST_STEPS": 1} if self.post_ops else {}),
            **({"HAS_FETCH": 1} if cpu.has_fetch else {}),
            **({"SIDE_BY_SIDE": 1} if self.is_side_by_side else {}),
        }
        arguments = {
            "src": self.src.buffer,
            "weights": self.weights.buffer,
            "dst": self.dst.buffer,
            "scratch": Scratch(),
            "scratch_start": scratch_start // FLOAT,
            "runs": runs,
            "chunk": chunk,
            "panels": panels,
            "columns": columns,
            "depth": depth,
            "span": span,
            "out": int4(self.out),
            "taps": int4(self.taps),
            "w_at": int4(self.at),
            "w_n": int4(self.n),
            "w_k": int4(self.k),
            "w_size": int4(self.size),
            "copied": self.copied,
            "is_blocked": self.is_blocked,
            **self.src.arguments("x"),
            **self.weights.arguments("u"),
            **self.dst.arguments("y"),
            **chain.arguments,
        }
        snippets = (chain.code, template("digits"), template("fetch"), template("floats"))
        source = Source("convolution_direct", SCHEMA | chain.schema, defines, snippets)
        items = (math.ceil(self.runs / runs), groups * math.ceil(self.panels / panels))
        launch = Launch(source, arguments, items, (1, 1))
        return Plan(lambda: (launch,), math.prod(items) * 2 * MOST_PIXELS * self.lanes * FLOAT)

    @property
    def runs(self) -> int:
        """The number of runs of all lines."""
        return math.prod(self.out[:3]) * math.ceil(self.out[3] / self.run)

    @property
    def panels(self) -> int:
        """The number of pairs of vectors of a group's channels."""
        return math.ceil(self.channels[1] / (2 * self.lanes))

    def _shares(self, units: int) -> tuple[int, int, int]:
        """Return the runs per work-item, the runs per chunk, and the panels per work-item.

        A work-item computes a chunk of runs in all its panels before the next chunk, so the pixels
        of a chunk remain in a second-level cache. The weights are read once per share of runs, and
        src once per share of panels.
        """
        groups, columns, depth = self.channels
        pixels = self.run * math.prod(self.n[1:])
        run_bytes = FLOAT * pixels * depth
        src_bytes = self.runs * run_bytes
        weights_bytes = FLOAT * math.prod(self.taps) * depth * columns
        wanted = TASKS_PER_CORE * units
        found = []
        for panels in range(1, self.panels + 1):
            shares = groups * math.ceil(self.panels / panels)
            runs = padded(math.ceil(self.runs * shares / wanted), 2)
            run_shares = math.ceil(self.runs / runs)
            missing = max(0, wanted // 2 - run_shares * shares)
            traffic = src_bytes * shares + weights_bytes * run_shares
            found.append((missing, traffic, runs, panels))
        _, _, runs, panels = min(found)
        chunk = max(2, CHUNK_BYTES // max(1, run_bytes) // 2 * 2)
        return runs, chunk, panels
