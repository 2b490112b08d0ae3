"""dnncore beside a peer, problem by problem, interleaved in one process: time and ratio.

python -m benchmarks.compare --peer=onednn --set=resnet_50 --dir=FWD_I --mb=4 [PROBLEM...]
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from pathlib import Path

import click
import numpy as np

THREADS = 2


def problems(names, words, options):
    from dnncore.problem import read, read_files
    from dnncore.testing import cases

    inputs = Path(cases.__file__).parent / "inputs" / "networks"
    found = {}
    texts = [
        str(p)
        for name in names
        for p in read_files(
            next(
                p
                for p in (Path(__file__).parent / "sets" / f"{name}.txt", inputs / f"{name}.txt")
                if p.is_file()
            )
        )
    ]
    texts += [str(p) for p in read(words)]
    for text in texts:
        driver, *rest = text.split()
        if driver != "--conv" and "dir" in options and "FWD_I" not in options["dir"]:
            pass
        kept = [w for w in rest if not (w.startswith("--") and w[2:].partition("=")[0] in options)]
        try:
            for p in read([driver, *[f"--{k}={v}" for k, v in options.items()], *kept]):
                found.setdefault((p.op, p.attr), p)
        except Exception as e:
            print("left out", text, e, file=sys.stderr)
    return list(found.values())


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--peer", "peers", default="onednn")
@click.option("--set", "sets", multiple=True)
@click.option("--match", default="")
@click.option("--dir", "direction")
@click.option("--mb")
@click.option("--tags")
@click.option("--json", "path")
@click.option("--samples", default=9)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def main(peers, sets, match, direction, mb, tags, path, samples, words):
    for name in ("OMP_NUM_THREADS", "DNNCORE_NUM_THREADS"):
        os.environ.setdefault(name, str(THREADS))
    from benchmarks.contestants import PEERS, ours
    from benchmarks.sampling import in_turn

    options = {}
    if direction:
        options["dir"] = direction
    if mb:
        options["mb"] = mb
    if tags:
        options |= {"stag": tags, "dtag": tags}
    rows = []
    for p in problems(sets, words, options):
        if match and not re.search(match, str(p)):
            continue
        try:
            mine = next(ours(p))
            theirs = [c for peer in peers.split(",") for c in PEERS[peer](p)]
        except Exception as e:
            print(f"{p}: {e}", file=sys.stderr)
            continue
        if not theirs:
            continue
        mine.run()
        got = mine.outputs()
        error = 0.0
        for c in theirs:
            c.run()
            for n, v in c.outputs().items():
                scale = np.abs(v).max() or 1
                error = max(error, float(np.abs(got[n] - v).max() / scale))
        if len(theirs) > 1:
            times = in_turn([c.run for c in theirs], 3)
            theirs = [theirs[int(np.argmin(times))]]
        a, b = in_turn([mine.run, theirs[0].run], samples)
        row = dict(
            problem=str(p),
            impl=mine.name,
            peer_impl=theirs[0].name,
            ours_ms=a * 1e3,
            peer_ms=b * 1e3,
            ratio=b / a,
            gflops=p.op.flops / a / 1e9,
            peer_gflops=p.op.flops / b / 1e9,
            error=error,
            scratchpad=mine.scratchpad,
            peer_scratchpad=theirs[0].scratchpad,
        )
        rows.append(row)
        mark = "" if error < 1e-4 else " WRONG?"
        print(
            f"{row['ratio']:.2f} {row['ours_ms']:9.3f} {row['peer_ms']:9.3f} ms {row['gflops']:6.1f} {row['peer_gflops']:6.1f} GF/s {mine.name} | {theirs[0].name} | {p} err {error:.1e} sp {mine.scratchpad} {theirs[0].scratchpad}{mark}",
            flush=True,
        )
    if rows:
        print(
            "geomean",
            statistics.geometric_mean(r["ratio"] for r in rows),
            "min",
            min(r["ratio"] for r in rows),
        )
    if path:
        Path(path).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
