"""A complete backend for dnncore. Its engine "toy" computes eltwise operations.

After `pip install .`, `dnncore backends` lists the backend and `dnncore.engine("toy")` opens the
engine. The CPU can compute all other operations: `python train_digits.py --engine toy
--host-fallback`. To write your own backend, copy these two files, rename "toy", and add operations.
"""

from functools import partial

from numpy import tanh, where

from dnncore import backend


@backend.hookimpl
def dnncore_backends():
    """Describe the backend. The modules in the strings are imported on first use."""
    tables = {("toy", operation): "dnncore_toy:TABLE" for operation in COMPUTE}
    return backend.Backend("toy", backend.API_VERSION, None, {"toy": "dnncore_toy:Toy"}, tables)


class Toy(backend.HostEngine):
    """HostEngine provides host memory. A device needs its own allocate, copy_in and copy_out."""

    kind = "toy"


FORMULAS = {  # algorithm: f(s, alpha, beta) and its slope
    "relu": (lambda s, a, _: where(s > 0, s, a * s), lambda s, a, _: where(s > 0, 1, a)),
    "tanh": (lambda s, *_: tanh(s), lambda s, *_: 1 - tanh(s) ** 2),
    "logistic": (lambda s, *_: tanh(s / 2) / 2 + 0.5, lambda s, *_: 0.25 - tanh(s / 2) ** 2 / 4),
    "linear": (lambda s, a, b: a * s + b, lambda _, a, __: a),
}


def forward(op, src, dst):
    """Compute dst. Memories have the order of the operation's argument table."""
    function, _ = FORMULAS[op.algorithm]
    dst.desc.pack(function(src.numpy(), op.alpha, op.beta), dst.buffer)


def backward(op, src, diff_dst, diff_src):
    """Compute diff_src."""
    _, slope = FORMULAS[op.algorithm]
    s = src.numpy().astype("f8")  # 1 - tanh^2 loses digits in f4
    values = diff_dst.numpy() * slope(s, op.alpha, op.beta)
    diff_src.desc.pack(values.astype("f4"), diff_src.buffer)


COMPUTE = {backend.EltwiseForward: forward, backend.EltwiseBackward: backward}


class Numpy(backend.Implementation):
    """One way to compute an operation. dnncore selects the fastest one that accepts."""

    name = "toy:numpy"

    def accept(self, op, attr, engine, hint):
        """Accept `op`, or refuse it with a reason. This is called often, so it must be fast."""
        if op.algorithm not in FORMULAS or attr.post_ops:
            return backend.Refused("attribute", f"only {', '.join(FORMULAS)}, without post-ops")
        op = op.resolve_any(**{argument.name: op.src for argument, _ in op.tensors()})
        build = partial(backend.HostFunction, partial(COMPUTE[type(op)], op))
        return backend.Accepted(op, build, efficiency=0.1)


TABLE = [Numpy()]
