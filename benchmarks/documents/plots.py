"""Draws measured figures: bars of ratios, and speeds below the roofline of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.documents.report import label
from benchmarks.measuring.contest import Outcome
from benchmarks.roofline import Roofline

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

__all__ = ["draw", "roofs", "speed_ups"]

AHEAD, BEHIND = "#2a7f62", "#c0504d"
SIDES = {"ours": ("o", "#1f5fa8", "dnncore"), "peer": ("x", "#d07b19", "the peer")}


def draw(rows: Sequence[Outcome], folder: Path, roofline: Roofline, title: str = "") -> list[Path]:
    """Write speed_ups.png and roofline.png into a folder. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "speed_ups.png", folder / "roofline.png"]
    speed_ups(rows, paths[0], title)
    roofs(rows, paths[1], roofline, title)
    return paths


def speed_ups(rows: Sequence[Outcome], path: Path, title: str = "") -> None:
    """Draw a bar for each row, in the order of the rows: the peer's time divided by ours.

    A row that summarises several problems has their least ratio as `least`, which is marked.
    """
    ratios = [row["ratio"] for row in rows]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.22 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.barh(places, ratios, color=[AHEAD if ratio >= 1 else BEHIND for ratio in ratios])
    for place, ratio in zip(places, ratios, strict=True):
        axes.annotate(f"{ratio:.2f}", (ratio, place), xytext=(3, 0), fontsize=7,
                      textcoords="offset points", va="center")  # fmt: skip
    least = [(row["least"], place) for place, row in enumerate(rows) if "least" in row]
    axes.scatter([x for x, _ in least], [y for _, y in least], s=24, c="black", marker="|")
    axes.set_yticks(places, [label(row) for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, max(ratios) * 1.08)
    axes.margins(y=0.01)
    axes.grid(axis="x", alpha=0.3)
    axes.set(xlabel="the peer's time / dnncore's", title=title or "Speed-up")
    _save(figure, path)


def roofs(rows: Sequence[Outcome], path: Path, roofline: Roofline, title: str = "") -> None:
    """Plot operations per second over operations per byte, for both sides and the roofline."""
    intensity = np.array([row["ours_gflops"] / row["ours_gbps"] for row in rows])
    ends = min(intensity.min(), 1) / 2, max(intensity.max(), 100) * 2
    xs = np.geomspace(*ends, 200)
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    axes.loglog(xs, [roofline.at(x) / 1e9 for x in xs], color="black", label=_roof_text(roofline))
    for side, (marker, colour, name) in SIDES.items():
        speeds = [row[f"{side}_gflops"] for row in rows]
        axes.scatter(intensity, speeds, s=28, c=colour, marker=marker, label=name, alpha=0.8)
    axes.set(xlabel="operations / byte that must move", ylabel="GF/s", title=title or "Roofline")
    axes.grid(which="both", alpha=0.2)
    axes.legend(loc="lower right")
    _save(figure, path)


def _roof_text(roofline: Roofline) -> str:
    return f"{roofline.flops / 1e9:.0f} GF/s, {roofline.bandwidth / 1e9:.0f} GB/s, as measured"


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
