"""A complete backend for dnncore. Its engine "toy" computes eltwise operations.

After `pip install .`, `dnncore backends` lists the backend and `dnncore.engine("toy")` opens the
engine. The CPU can compute all other operations: `python train_digits.py --engine toy
--host-fallback`. To write your own backend, copy these two files, rename "toy", and add operations.
"""

from functools import partial

from numpy import cosh, errstate, exp, maximum, tanh, where

from dnncore import backend


@backend.hookimpl
def dnncore_backends():
    """Describe the backend. The modules in the strings are imported on first use."""
    tables = {("toy", operation): "dnncore_toy:TABLE" for operation in COMPUTE}
    return backend.Backend("toy", "1.0", None, {"toy": "dnncore_toy:Toy"}, tables)


class Toy(backend.HostEngine):
    """HostEngine provides host memory. A device needs its own allocate, copy_in and copy_out."""

    kind = "toy"


FORMULAS = {  # algorithm: f(s, alpha, beta) and its slope
    "relu": (lambda s, a, _: maximum(s, 0) if a == 0 else where(s > 0, s, a * s),
             lambda s, a, _: where(s > 0, 1, a)),
    "tanh": (lambda s, *_: tanh(s), lambda s, *_: 1 / cosh(s) ** 2),
    "logistic": (lambda s, *_: 1 / (1 + exp(-s)), lambda s, *_: 1 / (2 + exp(s) + exp(-s))),
    "linear": (lambda s, a, b: a * s + b, lambda _, a, __: a),
}  # fmt: skip


@errstate(all="ignore")
def forward(op, src, dst):
    """Compute dst. Memories have the order of the operation's argument table."""
    dst.desc.pack(FORMULAS[op.algorithm][0](src.numpy(), op.alpha, op.beta), dst.buffer)


@errstate(all="ignore")
def backward(op, src, diff_dst, diff_src):
    """Compute diff_src in f8, since cosh exceeds the range of f4."""
    slope = FORMULAS[op.algorithm][1](src.numpy().astype("f8"), op.alpha, op.beta)
    diff_src.desc.pack((diff_dst.numpy() * slope).astype("f4"), diff_src.buffer)


COMPUTE = {backend.EltwiseForward: forward, backend.EltwiseBackward: backward}


class Numpy(backend.Implementation):
    """An implementation of an operation. dnncore selects the fastest one that accepts."""

    name = "toy:numpy"

    def accept(self, op, attr, engine, hint):
        """Accept `op`, or refuse it with a reason. This is called often, so it must be fast."""
        if op.algorithm not in FORMULAS or attr.post_ops:
            return backend.Refused("attribute", f"only {', '.join(FORMULAS)}, without post-ops")
        op = op.resolve_any(**{argument.name: op.src for argument, _ in op.tensors()})
        build = partial(backend.HostFunction, partial(COMPUTE[type(op)], op))
        return backend.Accepted(op, build, efficiency=0.1)


TABLE = [Numpy()]
