"""The cells of one step, forward and backward: element-wise functions of a batch of rows.

An item is a block of columns of one row. Sums with weights come from products: z is that of the
layer's input for this step, with rows of all gates, and zh that of the state. Absent biases,
peephole weights and states are zeros. Formulas: `dnncore.ops.rnn`.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_f32, store_f32
from dnncore_cpu_numba.codegen.task import exact, task
from dnncore_cpu_numba.codegen.vecmath import logistic, tanh

RELU, LOGISTIC = 0, 1  # kinds of activations; others are tanh
_ZERO, _ONE = np.float32(0), np.float32(1)

FORWARD = Record(
    "a step of cells",
    ("width block", "count", "columns of a gate, and of an item"),
    ("z zh zo", "address", "sums of the input, of the state, and of the state for the last gate"),
    ("bias peephole attention", "address"),
    ("h c rh", "address", "dense rows: the states, replaced by those after the step, and r h"),
    ("row out", "address", "rows of the workspace and of the result"),
    ("row_step out_step", "elements", "from row to row"),
    ("kind", "index", "of the activation"),
    ("attends", "flag"),
    ("alpha", "float32"),
)

BACKWARD = Record(
    "a step back",
    ("width block", "count", "columns of a gate, and of an item"),
    ("row above", "address", "rows of the workspace, and slopes of the result"),
    ("h c", "address", "the states before the step"),
    ("row_step above_step h_step c_step", "elements", "from row to row"),
    ("dh own dc", "address", "slopes of the states: by products, the rest, of c"),
    ("z zq", "address", "slopes of the sums, for all gates; zq: of the state's sums"),
    ("buffer last", "address", "slopes for the next product: of all gates, or of the last gate"),
    ("hp more", "address", "copies of h; terms of peephole weights, or r h"),
    ("peephole attention d_attention", "address"),
    ("kind", "index", "of the activation"),
    ("attends", "flag"),
    ("keeps", "flag", "whether `more` is written"),
    ("alpha", "float32"),
)


@task(FORWARD)
def rnn(params, begin, end):
    """h' = activation(z + zh + bias)."""
    width, block, kind, alpha = params.width, params.block, params.kind, params.alpha
    blocks, bias = (width + block - 1) // block, params.bias
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh, h = (params.z + 4 * width * n, params.zh + 4 * width * n, params.h + 4 * width * n)
        row, out = params.row + 4 * params.row_step * n, params.out + 4 * params.out_step * n
        for j in range(first, min(first + block, width)):
            x = load_f32(z, j) + load_f32(zh, j) + load_f32(bias, j)
            if kind == RELU:
                y = x if x > _ZERO else x * alpha
            elif kind == LOGISTIC:
                y = logistic(x)
            else:
                y = tanh(x)
            store_f32(row, j, y)
            store_f32(out, j, y)
            store_f32(h, j, y)


@task(FORWARD)
def lstm(params, begin, end):
    """Gates i, f, g, o; then c' and h'."""
    width, block = params.width, params.block
    blocks, b, p = (width + block - 1) // block, params.bias, params.peephole
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 16 * width * n, params.zh + 16 * width * n
        h, c = params.h + 4 * width * n, params.c + 4 * width * n
        row, out = params.row + 4 * params.row_step * n, params.out + 4 * params.out_step * n
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            old = load_f32(c, j)
            i = load_f32(z, j) + load_f32(zh, j) + load_f32(b, j) + load_f32(p, j) * old
            f = load_f32(z, k1) + load_f32(zh, k1) + load_f32(b, k1) + load_f32(p, k1) * old
            g = tanh(load_f32(z, k2) + load_f32(zh, k2) + load_f32(b, k2))
            i, f = logistic(i), logistic(f)
            new = f * old + i * g
            o = load_f32(z, k3) + load_f32(zh, k3) + load_f32(b, k3) + load_f32(p, k2) * new
            o = logistic(o)
            y = o * tanh(new)
            store_f32(row, j, i)
            store_f32(row, k1, f)
            store_f32(row, k2, g)
            store_f32(row, k3, o)
            store_f32(row, j + 4 * width, new)
            store_f32(row, j + 5 * width, y)
            store_f32(c, j, new)
            store_f32(out, j, y)
            store_f32(h, j, y)


@task(FORWARD)
def gru_gates(params, begin, end):
    """Gates u and r, and r h. zh has two gates."""
    width, block = params.width, params.block
    blocks, b = (width + block - 1) // block, params.bias
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 12 * width * n, params.zh + 8 * width * n
        h, rh = params.h + 4 * width * n, params.rh + 4 * width * n
        row = params.row + 4 * params.row_step * n
        for j in range(first, min(first + block, width)):
            k = j + width
            r = logistic(load_f32(z, k) + load_f32(zh, k) + load_f32(b, k))
            store_f32(row, j, logistic(load_f32(z, j) + load_f32(zh, j) + load_f32(b, j)))
            store_f32(row, k, r)
            store_f32(rh, j, r * load_f32(h, j))


@task(FORWARD)
def gru_state(params, begin, end):
    """Gate o and h'."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, b, a = (width + block - 1) // block, params.bias, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zo = params.z + 12 * width * n, params.zo + 4 * width * n
        h, row = params.h + 4 * width * n, params.row + 4 * params.row_step * n
        out = params.out + 4 * params.out_step * n
        if attends:
            a = load_f32(params.attention, n)
        for j in range(first, min(first + block, width)):
            k = j + 2 * width
            o = tanh(load_f32(z, k) + load_f32(zo, j) + load_f32(b, k))
            v = (_ONE - a) * load_f32(row, j)
            y = v * load_f32(h, j) + (_ONE - v) * o
            store_f32(row, k, o)
            store_f32(row, k + width, y)
            store_f32(out, j, y)
            store_f32(h, j, y)


@task(FORWARD)
def lbr(params, begin, end):
    """Gates u, r, o, then q and h'. zh has three gates."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, b, a = (width + block - 1) // block, params.bias, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 12 * width * n, params.zh + 12 * width * n
        h, row = params.h + 4 * width * n, params.row + 4 * params.row_step * n
        out = params.out + 4 * params.out_step * n
        if attends:
            a = load_f32(params.attention, n)
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            u = logistic(load_f32(z, j) + load_f32(zh, j) + load_f32(b, j))
            r = logistic(load_f32(z, k1) + load_f32(zh, k1) + load_f32(b, k1))
            q = load_f32(zh, k2) + load_f32(b, k3)
            o = tanh(load_f32(z, k2) + load_f32(b, k2) + r * q)
            v = (_ONE - a) * u
            y = v * load_f32(h, j) + (_ONE - v) * o
            store_f32(row, j, u)
            store_f32(row, k1, r)
            store_f32(row, k2, o)
            store_f32(row, k3, q)
            store_f32(row, k3 + width, y)
            store_f32(out, j, y)
            store_f32(h, j, y)


# -- backward --------------------------------------------------------------------------------------


@exact
def _slope(y):
    """The derivative of logistic where its result is y."""
    return y * (_ONE - y)


@exact
def _steep(y):
    """The derivative of tanh where its result is y."""
    return _ONE - y * y


@task(BACKWARD)
def rnn_back(params, begin, end):
    """dz = dh activation'(z)."""
    width, block, kind, alpha = params.width, params.block, params.kind, params.alpha
    blocks = (width + block - 1) // block
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        dh, h, dense = params.dh, params.h + 4 * params.h_step * n, 4 * width * n
        for j in range(first, min(first + block, width)):
            y = load_f32(row, j)
            d = load_f32(above, j) + load_f32(dh + dense, j)
            if kind == RELU:
                d = d if y > _ZERO else d * alpha
            elif kind == LOGISTIC:
                d = d * _slope(y)
            else:
                d = d * _steep(y)
            store_f32(params.hp + dense, j, load_f32(h, j))
            store_f32(params.z + dense, j, d)
            store_f32(params.buffer + dense, j, d)


@task(BACKWARD)
def lstm_back(params, begin, end):
    """The slopes of gates i, f, g, o and of c."""
    width, block, keeps = params.width, params.block, params.keeps != 0
    blocks, p = (width + block - 1) // block, params.peephole
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, c = params.h + 4 * params.h_step * n, params.c + 4 * params.c_step * n
        dense = 4 * width * n
        dh, slopes, hp = params.dh + dense, params.dc + dense, params.hp + dense
        z, buffer, more = params.z + 4 * dense, params.buffer + 4 * dense, params.more + 3 * dense
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            i, f, g, o = load_f32(row, j), load_f32(row, k1), load_f32(row, k2), load_f32(row, k3)
            new, old = load_f32(row, j + 4 * width), load_f32(c, j)
            t, d = tanh(new), load_f32(above, j) + load_f32(dh, j)
            do = d * t * _slope(o)
            dc = load_f32(slopes, j) + d * o * _steep(t) + do * load_f32(p, k2)
            di, df, dg = dc * g * _slope(i), dc * old * _slope(f), dc * i * _steep(g)
            store_f32(slopes, j, dc * f + di * load_f32(p, j) + df * load_f32(p, k1))
            store_f32(hp, j, load_f32(h, j))
            store_f32(z, j, di)
            store_f32(z, k1, df)
            store_f32(z, k2, dg)
            store_f32(z, k3, do)
            store_f32(buffer, j, di)
            store_f32(buffer, k1, df)
            store_f32(buffer, k2, dg)
            store_f32(buffer, k3, do)
            if keeps:
                store_f32(more, j, di * old)
                store_f32(more, k1, df * old)
                store_f32(more, k2, do * new)


@task(BACKWARD)
def gru_back(params, begin, end):
    """The slopes of gates u and o. An item is a whole row if there is attention."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, a = (width + block - 1) // block, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, dense, total = params.h + 4 * params.h_step * n, 4 * width * n, _ZERO
        dh, own, z = params.dh + dense, params.own + dense, params.z + 3 * dense
        if attends:
            a = load_f32(params.attention, n)
        for j in range(first, min(first + block, width)):
            u, o, old = load_f32(row, j), load_f32(row, j + 2 * width), load_f32(h, j)
            d = load_f32(above, j) + load_f32(dh, j) + load_f32(own, j)
            v, dv = (_ONE - a) * u, d * (old - o)
            do = d * (_ONE - v) * _steep(o)
            total += dv * u
            store_f32(params.hp + dense, j, old)
            store_f32(own, j, d * v)
            store_f32(z, j, dv * (_ONE - a) * _slope(u))
            store_f32(z, j + 2 * width, do)
            store_f32(params.last + dense, j, do)
        if params.d_attention != 0:
            store_f32(params.d_attention, n, -total)


@task(BACKWARD)
def gru_back_reset(params, begin, end):
    """The slope of gate r, from that of r h, and r h. dh: the slope of r h."""
    width, block = params.width, params.block
    blocks = (width + block - 1) // block
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, h = params.row + 4 * params.row_step * n, params.h + 4 * params.h_step * n
        dense = 4 * width * n
        by, own, z = params.dh + dense, params.own + dense, params.z + 3 * dense
        buffer = params.buffer + 2 * dense
        for j in range(first, min(first + block, width)):
            r, old, d = load_f32(row, j + width), load_f32(h, j), load_f32(by, j)
            dr = d * old * _slope(r)
            store_f32(own, j, load_f32(own, j) + d * r)
            store_f32(params.more + dense, j, r * old)
            store_f32(z, j + width, dr)
            store_f32(buffer, j, load_f32(z, j))
            store_f32(buffer, j + width, dr)


@task(BACKWARD)
def lbr_back(params, begin, end):
    """The slopes of gates u, r, o and q. An item is a whole row if there is attention."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, a = (width + block - 1) // block, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, dense, total = params.h + 4 * params.h_step * n, 4 * width * n, _ZERO
        dh, own, z = params.dh + dense, params.own + dense, params.z + 3 * dense
        zq, buffer = params.zq + 3 * dense, params.buffer + 3 * dense
        if attends:
            a = load_f32(params.attention, n)
        for j in range(first, min(first + block, width)):
            k1, k2 = j + width, j + 2 * width
            u, r, o = load_f32(row, j), load_f32(row, k1), load_f32(row, k2)
            q, old = load_f32(row, j + 3 * width), load_f32(h, j)
            d = load_f32(above, j) + load_f32(dh, j) + load_f32(own, j)
            v, dv = (_ONE - a) * u, d * (old - o)
            do = d * (_ONE - v) * _steep(o)
            du, dr, dq = dv * (_ONE - a) * _slope(u), do * q * _slope(r), do * r
            total += dv * u
            store_f32(params.hp + dense, j, old)
            store_f32(own, j, d * v)
            store_f32(z, j, du)
            store_f32(z, k1, dr)
            store_f32(z, k2, do)
            store_f32(zq, j, du)
            store_f32(zq, k1, dr)
            store_f32(zq, k2, dq)
            store_f32(buffer, j, du)
            store_f32(buffer, k1, dr)
            store_f32(buffer, k2, dq)
        if params.d_attention != 0:
            store_f32(params.d_attention, n, -total)


ADD = Record("sum of rows", ("dst a b", "address"))


@task(ADD)
def add(params, begin, end):
    """dst = a + b."""
    for i in range(begin, end):
        store_f32(params.dst, i, load_f32(params.a, i) + load_f32(params.b, i))
