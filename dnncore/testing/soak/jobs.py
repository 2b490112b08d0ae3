"""The jobs of a soak: problems that a seed and a number determine, and ways to run them."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.execution.primitive import Primitive
from dnncore.execution.sequence import Sequence as Replayed
from dnncore.problem import read
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Job", "digest", "draw", "expected"]

WAYS = ("execute", "bound", "sequence", "out of order", "cached")
LEAST_INPUT, MOST_INPUT = -4, 5  # whole numbers, which all types hold
POST_OPS = ("", "relu", "sum:0.5+relu", "add:f32:per_oc", "tanh", "linear:2:1+mul:f32:per_tensor")


@dataclass(frozen=True)
class Job:
    """A problem on an engine. text: the problem in benchdnn's words."""

    seed: int
    number: int
    text: str
    engine_name: str

    def __str__(self) -> str:
        return f"job {self.number} on {self.engine_name}: {self.text}"


def draw(seed: int, number: int, engines: Sequence[str]) -> Job:
    """Return the job of a number. Each engine gets the same share of the numbers."""
    rng = random.Random(f"{seed} {number}")  # noqa: S311 - reproducible
    engine = engines[number % len(engines)]
    text = rng.choice(FORMS)(rng)
    if engine == "cpu" and "--reorder" not in text:  # the CPU has only the reference for halves
        text = text.replace("--dt=f16 ", "").replace("--dt=bf16 ", "")
    return Job(seed, number, " ".join(text.split()), engine)


# -- problems --------------------------------------------------------------------------------------


def _convolution(rng: random.Random) -> str:
    direction = rng.choice(("FWD_D", "FWD_B", "BWD_D", "BWD_W"))
    groups = rng.choice((1, 1, 1, 4))
    ic, oc = (groups * rng.choice((1, 2, 4, 5, 8)) for _ in range(2))
    kernel, size = rng.choice((1, 3, 3, 5)), rng.randint(5, 12)
    padding, stride = rng.randint(0, kernel // 2), rng.choice((1, 1, 2))
    shape = f"g{groups}mb{rng.randint(1, 3)}ic{ic}oc{oc}_ih{size}kh{kernel}ph{padding}sh{stride}"
    return f"--conv --dir={direction} {_type(rng)} --stag=any --wtag=any --dtag=any {shape}"


def _matmul(rng: random.Random) -> str:
    m, n, k = (rng.randint(1, 40) for _ in range(3))
    tag = rng.choice(("ab", "ba"))
    return f"--matmul {_type(rng)} --stag=ab --wtag={tag} {_post_ops(rng)} {m}x{k}:{k}x{n}"


def _inner_product(rng: random.Random) -> str:
    direction = rng.choice(("FWD_D", "FWD_B", "BWD_D", "BWD_W"))
    shape = f"mb{rng.randint(1, 9)}ic{rng.randint(1, 40)}oc{rng.randint(1, 40)}"
    return f"--ip --dir={direction} {_type(rng)} {shape}"


def _eltwise(rng: random.Random) -> str:
    algorithm = rng.choice(("relu", "tanh", "exp", "gelu_erf", "square", "abs", "logistic"))
    return f"--eltwise --dir=FWD_I --alg={algorithm} {_type(rng)} {_post_ops(rng)} {_dims(rng)}"


def _binary(rng: random.Random) -> str:
    dims = _dims(rng)
    return f"--binary --alg={rng.choice(('add', 'mul', 'max', 'sub'))} {dims}:{dims}"


def _softmax(rng: random.Random) -> str:
    algorithm = rng.choice(("SOFTMAX", "LOGSOFTMAX"))
    return f"--softmax --dir=FWD_I --alg={algorithm} --axis={rng.randint(0, 2)} {_dims(rng)}"


def _reduction(rng: random.Random) -> str:
    a, b, c = (rng.randint(2, 20) for _ in range(3))
    result = rng.choice((f"{a}x{b}x1", f"1x{b}x{c}", f"{a}x1x1"))
    return f"--reduction --alg={rng.choice(('sum', 'max', 'mean'))} {a}x{b}x{c}:{result}"


def _pooling(rng: random.Random) -> str:
    algorithm = rng.choice(("max", "avg_np", "avg_p"))
    shape = f"mb{rng.randint(1, 3)}ic{rng.randint(1, 20)}ih{rng.randint(5, 14)}kh3ph1"
    tag = rng.choice(("abx", "axb"))
    return f"--pool --dir=FWD_I --alg={algorithm} {_type(rng)} --tag={tag} {shape}"


def _lrn(rng: random.Random) -> str:
    algorithm = rng.choice(("ACROSS", "WITHIN"))
    return f"--lrn --dir=FWD_I --alg={algorithm} ic{rng.randint(3, 20)}ih{rng.randint(3, 9)}"


def _reorder(rng: random.Random) -> str:
    types = [rng.choice(("f32", "f32", "f16", "bf16")) for _ in range(2)]
    tags = [rng.choice(("abx", "axb", "aBx8b", "aBx16b")) for _ in range(2)]
    flags = f"--sdt={types[0]} --ddt={types[1]} --stag={tags[0]} --dtag={tags[1]}"
    return f"--reorder {flags} {_dims(rng)}"


FORMS = (
    _convolution, _convolution, _convolution, _matmul, _matmul, _inner_product, _eltwise, _binary,
    _softmax, _reduction, _pooling, _lrn, _reorder,
)  # fmt: skip


def _type(rng: random.Random) -> str:
    return f"--dt={rng.choice(('f32', 'f32', 'f32', 'f16', 'bf16'))}"


def _post_ops(rng: random.Random) -> str:
    chosen = rng.choice(POST_OPS)
    return f"--attr-post-ops={chosen}" if chosen else ""


def _dims(rng: random.Random) -> str:
    return f"{rng.randint(1, 6)}x{rng.randint(1, 40)}x{rng.randint(1, 20)}"


# -- runs ------------------------------------------------------------------------------------------


def expected(job: Job) -> str | None:
    """Return the digest of a job's results, computed here; None if the engine does not compute it.

    The reference is too slow, and without `deterministic` two results need not be equal.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dnn.ReferenceWarning)
            pd = _desc(job)
    except dnn.NoImplementation:
        return None
    if pd.is_reference or not pd.deterministic:
        return None
    return digest(job, "execute")


def _desc(job: Job) -> PrimitiveDesc:
    (problem,) = read(job.text)
    return PrimitiveDesc(problem.op, dnn.engine(job.engine_name), problem.attr)


def digest(job: Job, way: str) -> str:
    """Run a job in one of `WAYS`; return the digest of all outputs."""
    pd = _desc(job)
    memories = _memories(job, pd)
    primitive = pd.primitive()
    outputs = {a.name for a, _ in pd.arguments if a.direction == "out"}
    _launch(pd.engine, primitive, memories, way)
    total = hashlib.sha256()
    for name in sorted(outputs):
        total.update(np.ascontiguousarray(memories[name].numpy()).tobytes())
    return total.hexdigest()


def _launch(engine: Engine, primitive: Primitive, memories: dict[str, Any], way: str) -> None:
    is_out_of_order = way == "out of order" and not engine.is_host
    stream = engine.stream("out" if is_out_of_order else "in")
    if way == "sequence" and not primitive.pd.attr.reads_dst:
        event = Replayed([primitive.bind(**memories)] * 2)(stream)
    elif way == "bound":
        event = primitive.bind(**memories)(stream)
    else:
        event = primitive.execute(stream, **memories)
    event.wait()
    stream.wait()


def _memories(job: Job, pd: PrimitiveDesc) -> dict[str, Memory]:
    """Return memories of all arguments, filled with numbers that the job determines."""
    rng = np.random.default_rng((job.seed, job.number))
    memories = {}
    for argument, desc in pd.arguments:
        values = rng.integers(LEAST_INPUT, MOST_INPUT, desc.dims).astype(desc.dtype)
        if desc.format_kind == "opaque":
            plain = Memory.from_numpy(values, dnn.MemoryDesc(desc.dims, desc.data_type), pd.engine)
            memories[argument.name] = dnn.reorder(plain, desc, pd.engine)
        else:
            memories[argument.name] = Memory.from_numpy(values, desc, pd.engine)
    return memories
