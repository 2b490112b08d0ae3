"""Measures above which size results should be written with non-temporal stores.

    python -m benchmarks.streaming [--threads 2] [--samples 15] [--json figures.json]

Each row compares the same calls with non-temporal stores and with ordinary ones, sampled in turn:

* a call alone, repeated on the same tensors;
* the same call between a copy that writes its input and a copy that reads its result;
* AlexNet's training step of `benchmarks/training_step.py`, with results of this size.

A ratio is the time with ordinary stores divided by the time with non-temporal stores. One ratio is
of medians, another one of the shortest times. Above 1, non-temporal stores are faster. The
threshold is `STREAM_RESULT_BYTES` in `dnncore_cpu_numba/runtime/tensor.py`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from dnncore_cpu_numba.runtime import tensor

import dnncore as dnn
from benchmarks.measuring.cores import keep_to, thread_settings
from benchmarks.measuring.sampling import one_by_one, sampled
from benchmarks.training_step import DrawnNet
from dnncore.problem import read
from dnncore.selection import ranking

MEGABYTES = (2, 4, 8, 16, 24, 32, 64)
IMAGE = 96 * 55 * 55 * 4  # bytes of a result of one image in AlexNet's first layers
CALLS = {
    "relu": "--eltwise {n}x64x64x64",
    "exp": "--eltwise --alg=exp {n}x64x64x64",
    "add": "--binary --alg=ADD {n}x64x64x64:{n}x64x64x64",
    "LRN": "--lrn --dir=FWD_I --tag=aBx16b mb{n}ic64ih64",
    "max pooling": "--pool --dir=FWD_I --tag=aBx16b mb{n}ic64ih64oh64kh3sh1ph1",
}
Call = Callable[[], object]


def built(make: Callable[[], Call], *, streamed: bool) -> Call:
    """Make a call whose primitives always (`streamed`) or never use non-temporal stores."""
    known = tensor.STREAM_RESULT_BYTES
    tensor.STREAM_RESULT_BYTES = 0 if streamed else 1 << 60
    ranking.forget()
    dnn.cache.primitives.clear()
    try:
        return make()
    finally:
        tensor.STREAM_RESULT_BYTES = known
        ranking.forget()
        dnn.cache.primitives.clear()


def ratios(make: Callable[[], Call], samples: int) -> dict[str, float]:
    """The ratio of medians and the ratio of the shortest times, ordinary to non-temporal."""
    calls = [built(make, streamed=streamed) for streamed in (False, True)]
    ordinary, streamed = sampled([one_by_one(call) for call in calls], samples)
    return {
        "median": ordinary.median / streamed.median,
        "least": min(ordinary.many) / min(streamed.many),
    }


class Alone:
    """A primitive with its own tensors. All calls of one object share these tensors."""

    def __init__(self, text: str) -> None:
        (problem,) = read(text)
        self.engine = dnn.engine("cpu")
        self.stream = self.engine.stream()
        self.op = problem.op
        pd = dnn.PrimitiveDesc(self.op, self.engine)
        self.memories = {name: dnn.Memory(desc, self.engine) for name, desc in pd.descs.items()}
        for memory in self.memories.values():
            memory.fill(0.5)

    def call(self) -> Call:
        """Make a call of the primitive alone."""
        bound = self._bound(self.op, **self.memories)
        return lambda: bound(self.stream)

    def between(self) -> Call:
        """Make a sequence: a copy to the primitive's input, the primitive, a copy of its result."""
        name = next(name for name in self.memories if name.startswith("src"))
        src, dst = self.memories[name], self.memories["dst"]
        far, out = (dnn.Memory(memory.desc, self.engine) for memory in (src, dst))
        far.fill(0.5)
        calls = [
            self._copy(far, src),
            self._bound(self.op, **self.memories),
            self._copy(dst, out),
        ]
        run = dnn.Sequence(calls)
        return lambda: run(self.stream)

    def _copy(self, src: dnn.Memory, dst: dnn.Memory) -> Any:
        """A call that always has ordinary stores: an addition in place of dst."""
        op = dnn.Reorder(src=src.desc, dst=dst.desc)
        return self._bound(op, src=src, dst=dst)

    def _bound(self, op: dnn.Operation, **memories: dnn.Memory) -> Any:
        return dnn.PrimitiveDesc(op, self.engine).primitive().bind(**memories)


def step(batch: int) -> Call:
    """AlexNet's training step."""
    net = DrawnNet(dnn.engine("cpu"), batch)
    stream = net.engine.stream()
    return lambda: net.step(stream)


def rows(samples: int) -> Iterator[dict[str, Any]]:
    """A row for each call, place and size."""
    for megabytes in MEGABYTES:
        for name, text in CALLS.items():
            made = Alone(text.format(n=megabytes))  # an image has 1 MB
            for place, make in (("alone", made.call), ("between", made.between)):
                yield {"what": name, "place": place, "MB": megabytes, **ratios(make, samples)}
        batch = round(megabytes * 1e6 / IMAGE)
        make = functools.partial(step, batch)
        yield {"what": "AlexNet's step", "place": "", "MB": megabytes, **ratios(make, samples)}


@click.command(help=__doc__)
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--samples", default=15, show_default=True, type=click.IntRange(9))
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(threads: int, samples: int, path: Path | None) -> None:
    """Measure and print."""
    os.environ |= thread_settings(threads)
    keep_to(threads)
    found = []
    for row in rows(samples):
        found.append(row)
        click.echo(
            f"{row['MB']:3d} MB  {row['median']:.2f}  {row['least']:.2f}  {row['what']}"
            f" {row['place']}"
        )
        if path:
            path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
