"""Paragraphs of the pages: the ledger, random samples, and named lists of problems."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measuring.ledger import Ledger
from benchmarks.problems.lines import Line, sample_of
from benchmarks.problems.samples import command, skipped_text

__all__ = ["NAMED", "introduction", "source"]

SAMPLES = """\
The goals refer to random samples of the layers of {count} networks (`benchmarks/corpus`), with new
seeds for each run. Each network has the same weight. Each layer has its share of the network's
time, which is estimated from its operations and its bytes. Batch size and direction of a layer are
drawn, too. A row below the least ratio is measured again in three new processes. The process with
the median ratio counts. These commands measure the samples again. After each are the numbers of
drawn layers whose operations dnncore does not have. They were skipped.

"""
NO_SAMPLES = "The goals refer to random samples of layers. None has been measured yet."
SOURCE = """\
This page was made from the {count} lines of `benchmarks/ledgers/{name}`. Each line has a digest of
itself and of the digest of the line before. The digest of the last line is
`{last}`.
`python -m benchmarks.documents.check` makes the page again and compares it. So a change of the page
or of the ledger is found. Who changes figures on purpose can compute all digests again. Only a new
measurement refutes that: `python -m benchmarks.remeasure` measures random rows again. A goal "holds
so far" if some of its problems are not measured yet.
"""
NAMED = """\
These problems were the goals before there were samples. Their layers were known while the kernels
were developed, so other layers may be slower.
"""


def introduction(lines: Sequence[Line], engine: str, *, full: bool) -> str:
    """The paragraph about samples: how they were drawn, and which layers were skipped."""
    if not any(sample_of(line, full=full).problems for line in lines):
        return NO_SAMPLES
    commands = [
        f"- `{command(line, engine, line.peers, full=full)}`:"
        f" {skipped_text(sample_of(line, full=full).skipped)}"
        for line in lines
    ]
    count = sample_of(lines[0], full=full).networks
    return SAMPLES.format(count=count) + "\n".join(commands)


def source(ledger: Ledger) -> str:
    """The paragraph that names the ledger of a page."""
    assert ledger.path
    return SOURCE.format(count=ledger.count, name=ledger.path.name, last=ledger.last)
