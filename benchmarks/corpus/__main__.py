"""Lists the networks of the corpus, or the layers of some of them.

    python -m benchmarks.corpus
    python -m benchmarks.corpus alexnet bert_base

The list shows the computed and the published figures of each network. The lines of a network are
problem texts, in which @3 means 3 times the batch size. Two numbers precede each text: the layer's
estimated share of the network's time, by which samples are drawn, and the number of times that the
network contains the layer.
"""

from __future__ import annotations

from collections import Counter

import click

from benchmarks.corpus.registry import Network, networks
from dnncore.problem import DRIVERS

__all__ = ["main"]


def _figures(network: Network) -> str:
    """One line: name, number of layers, number of different texts, and figures.

    Published figures follow the computed ones.
    """
    texts = {layer.key for layer in network.layers}
    figures = [
        f"{published.what} {network.figure(published.what):.4g}"
        f" ({published.value:.4g} in {published.source})"
        for published in network.figures
    ]
    counts = f"{len(network.layers):5} layers {len(texts):4} texts"
    return f"{network.name:20} {counts}  {'; '.join(figures)}"


def _lines(network: Network, batch: int) -> list[str]:
    """The layers, in the order of their first appearance."""
    costs: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for layer in network.layers:
        costs[layer.key] += layer.cost(batch)
        counts[layer.key] += 1
    missing = {layer.key for layer in network.layers if layer.driver not in DRIVERS}
    return [
        f"{cost / costs.total():7.2%} {counts[text]:4}  {text}"
        f"{'  (missing)' if text in missing else ''}"
        for text, cost in costs.items()
    ]


@click.command(help=__doc__)
@click.option("--mb", "batch", default=1, show_default=True, help="The batch size of the shares.")
@click.argument("names", nargs=-1, metavar="[NETWORK]...", type=click.Choice([*networks()]))
def main(names: tuple[str, ...], batch: int) -> None:
    """Print the networks or their layers."""
    found = networks()
    for name in names:
        click.echo(f"# {found[name].title} {found[name].paper}")
        click.echo("\n".join(_lines(found[name], batch)))
    if not names:
        click.echo("\n".join(map(_figures, found.values())))
        layers = [layer for network in found.values() for layer in network.layers]
        here = {layer.key for layer in layers if layer.driver in DRIVERS}
        click.echo(f"{len(found)} networks, {len({layer.key for layer in layers})} texts,"
                   f" {len(here)} of operations that dnncore has")  # fmt: skip


if __name__ == "__main__":
    main()
