"""oneDNN's contestants: its first implementation, and matmul for inner products."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import dnncore as dnn
from benchmarks.contestants.contestant import (
    Array,
    Contestant,
    LeftOut,
    Terms,
    activations,
    values_of,
)
from benchmarks.contestants.libraries import NOT_A_NUMBER, between_reorders, contestant
from benchmarks.contestants.onednn import OneDnnError, Peer, PeerPrimitive
from benchmarks.contestants.onednn_packages import NEWEST, OPENMP, Package
from benchmarks.measuring.sampling import Repeat, one_by_one
from dnncore.problem import Problem

__all__ = ["newest", "openmp"]


class OneDnn:
    """oneDNN with the interface of `Library`. It allocates nothing during a run."""

    def __init__(self, package: Package) -> None:
        self.engine = dnn.engine("cpu")
        self.peer = Peer(package)

    def choose(self, op: dnn.Operation, attr: dnn.Attributes) -> PeerPrimitive:
        """oneDNN's first implementation. The user provides the scratchpad."""
        return self.peer.primitive(op, attr=replace(attr, scratchpad="user"))

    def fill(self, memory: dnn.Memory, period: Array) -> None:
        """Fill a memory. oneDNN's reorder is used for an opaque format."""
        values = np.resize(period, memory.desc.dims)
        if memory.desc.format_kind == "blocked":
            memory.desc.pack(values, memory.buffer)
        else:
            plain = dnn.Memory.from_numpy(values, engine=memory.engine)
            self.peer.reorder(plain, memory)

    def spoil(self, memory: dnn.Memory) -> None:
        """Fill with NaN. This also touches the pages: untouched pages are read too fast."""
        memory.buffer[:] = NOT_A_NUMBER

    def finish(self) -> None:
        """Do nothing: all calls of oneDNN have ended."""

    def values(self, memory: dnn.Memory) -> Array:
        """The values. oneDNN's reorder is used for an opaque format."""
        return self.peer.values(memory)

    def forward(self, pd: PeerPrimitive) -> PeerPrimitive:
        """The forward primitive that is the hint of the gradient."""
        assert pd.hint is not None
        return pd.hint

    def scratchpad(self, pd: PeerPrimitive) -> int:
        """Bytes of the argument `scratchpad`."""
        desc = pd.descs.get("scratchpad")
        return desc.nbytes if desc else 0

    def repeat(self, calls: list[Any]) -> Repeat:
        """Return a function that runs the calls in order. Waiting has no cost on the CPU."""
        if len(calls) == 1:
            return one_by_one(calls[0])

        def run() -> None:
            for call in calls:
                call()

        return one_by_one(run)


@functools.cache
def _library(package: Package) -> OneDnn:
    try:
        return OneDnn(package)
    except ModuleNotFoundError as error:
        raise LeftOut(str(error)) from None


def openmp(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """The contestants of oneDNN 3.2."""
    return contestants(problem, terms, OPENMP)


def newest(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """The contestants of the newest oneDNN."""
    return contestants(problem, terms, NEWEST)


def contestants(problem: Problem, terms: Terms, package: Package) -> Iterator[Contestant]:
    """oneDNN's first implementation. An inner product is also computed as matmul."""
    library, attr, reasons = _library(package), problem.attr, []
    for op in _algorithms(problem.op):
        try:
            yield contestant(library, library.choose(op, attr))
            moved = between_reorders(library, op, attr) if terms.reorders else None
        except OneDnnError as error:
            reasons.append(str(error))
            continue
        if moved:
            yield moved
        if type(op) in _PRODUCTS and attr == dnn.Attributes() and _is_product(op):
            yield _product(library, op)
    if len(reasons) == len(_algorithms(problem.op)):
        raise LeftOut("; ".join(reasons))


def _algorithms(op: Any) -> list[Any]:
    """The operation. For a convolution by another algorithm, also the direct convolution."""
    is_free = getattr(op, "algorithm", "") in ("winograd", "auto")
    return [op, replace(op, algorithm="direct")] if is_free else [op]


# -- inner products as matrix multiplication -------------------------------------------------------


def _is_product(op: Any) -> bool:
    """Whether matmul can compute an inner product.

    All tensors must be f32, activations must permit plain formats, and there must be no gradient of
    a bias.
    """
    if any(desc.data_type != "f32" for _, desc in op.tensors()):
        return False
    descs = [getattr(op, name) for name in activations(op)]
    plain = all(desc.is_any or desc == desc.with_format(None) for desc in descs)
    return plain and getattr(op, "diff_bias", None) is None


@dataclass(frozen=True)
class Matrices:
    """The operands of a product, as arguments of the inner product. ^T marks a transposed one."""

    src: str
    weights: str
    dst: str


_PRODUCTS = {
    dnn.InnerProductForward: Matrices("src", "weights^T", "dst"),
    dnn.InnerProductBackwardData: Matrices("diff_dst", "weights", "diff_src"),
    dnn.InnerProductBackwardWeights: Matrices("diff_dst^T", "src", "diff_weights"),
}


def _product(library: OneDnn, op: Any) -> Contestant:
    """The inner product as matmul. Weights may be packed; activations are plain."""
    names = vars(_PRODUCTS[type(op)])
    matrices = {name: _matrix(op, text) for name, text in names.items()}
    bias = getattr(op, "bias", None)
    row = dnn.MemoryDesc((1, *bias.dims)) if bias else None

    def periods(name: str, dims: tuple[int, ...], draw: int) -> Array:
        text = names.get(name, name)
        own = text.removesuffix("^T")
        found = values_of(own, getattr(op, own).dims if hasattr(op, own) else dims, draw)
        found = found.reshape(len(found), -1) if name != "bias" else found.reshape(dims)
        return (found.T if text.endswith("^T") else found).ravel()

    pd = library.choose(dnn.MatMul(bias=row, **matrices), dnn.Attributes())
    made = contestant(library, pd, f"matmul {pd.impl_name}", periods)
    result = getattr(op, names["dst"])
    return replace(made, outputs=lambda: {names["dst"]: made.outputs()["dst"].reshape(result.dims)})


def _matrix(op: Any, text: str) -> dnn.MemoryDesc:
    """The descriptor of an operand."""
    name = text.removesuffix("^T")
    rows, *rest = getattr(op, name).dims
    columns = math.prod(rest)
    if name == "weights":
        return dnn.MemoryDesc((columns, rows) if text != name else (rows, columns), "f32", "any")
    if text != name:
        return dnn.MemoryDesc((columns, rows), "f32", "ba")
    return dnn.MemoryDesc((rows, columns))
