"""The cells of one step, forward and backward: element-wise functions of a batch of rows.

An item is a block of columns of one row. Sums with weights come from products: z is that of the
layer's input for this step, with rows of all gates, and zh that of the state. Absent biases,
peephole weights and states are zeros. Formulas: `dnncore.ops.rnn`.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import (
    load_f32,
    load_input,
    load_stream,
    store_f32,
    store_stream,
)
from dnncore_cpu_numba.codegen.task import exact, task
from dnncore_cpu_numba.codegen.vecmath import logistic, tanh

RELU, LOGISTIC = 0, 1  # kinds of activations; others are tanh
_ZERO, _ONE = np.float32(0), np.float32(1)

FORWARD = Record(
    "a step of cells",
    ("width block", "count", "columns of a gate, and of an item"),
    ("z zh zo", "address", "sums of the input, of the state, and of the state for the last gate"),
    ("bias peephole attention", "address"),
    ("h c rh", "address", "the states, replaced by those after the step, and r h"),
    ("row out", "address", "rows of the workspace and of the result"),
    ("h_step row_step out_step", "elements", "from row to row; of rh as of h"),
    ("hidden", "address", "of LSTM: where the row of the workspace keeps h'"),
    ("hidden_step", "elements"),
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
    ("z_step buffer_step last_step hp_step", "elements", "from row to row; of zq as of z"),
    ("dh own dc", "address", "slopes of the states: by products, the rest, of c"),
    ("z zq", "address", "slopes of the sums, for all gates; zq: of the state's sums"),
    ("buffer last", "address", "slopes for the next product: of all gates, or of the last gate"),
    ("hp more", "address", "copies of h; terms of peephole weights, or r h"),
    ("peephole attention d_attention", "address"),
    ("kind", "index", "of the activation"),
    ("attends", "flag"),
    ("keeps", "flag", "whether `more` is written"),
    ("projects", "flag", "whether hp receives o tanh(c'), which the projection multiplies"),
    ("alpha", "float32"),
)


@task(FORWARD)
def rnn(params, begin, end):
    """h' = activation(z + zh + bias)."""
    width, block, kind, alpha = params.width, params.block, params.kind, params.alpha
    blocks, bias = (width + block - 1) // block, params.bias
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh, h = (
            params.z + 4 * width * n,
            params.zh + 4 * width * n,
            params.h + 4 * params.h_step * n,
        )
        row, out = params.row + 4 * params.row_step * n, params.out + 4 * params.out_step * n
        for j in range(first, min(first + block, width)):
            x = load_input(z, j) + load_input(zh, j) + load_input(bias, j)
            if kind == RELU:
                y = x if x > _ZERO else x * alpha
            elif kind == LOGISTIC:
                y = logistic(x)
            else:
                y = tanh(x)
            store_stream(0, row, j, y)
            store_stream(1, out, j, y)
            store_stream(2, h, j, y)


@task(FORWARD)
def lstm(params, begin, end):
    """Gates i, f, g, o; then c' and h'."""
    width, block = params.width, params.block
    blocks, b, p = (width + block - 1) // block, params.bias, params.peephole
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 16 * width * n, params.zh + 16 * width * n
        h, c = params.h + 4 * params.h_step * n, params.c + 4 * width * n
        hidden = params.hidden + 4 * params.hidden_step * n
        row, out = params.row + 4 * params.row_step * n, params.out + 4 * params.out_step * n
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            old = load_stream(6, c, j)
            i = load_input(z, j) + load_input(zh, j) + load_input(b, j) + load_input(p, j) * old
            f = load_input(z, k1) + load_input(zh, k1) + load_input(b, k1) + load_input(p, k1) * old
            g = tanh(load_input(z, k2) + load_input(zh, k2) + load_input(b, k2))
            i, f = logistic(i), logistic(f)
            new = f * old + i * g
            o = load_input(z, k3) + load_input(zh, k3) + load_input(b, k3) + load_input(p, k2) * new
            o = logistic(o)
            y = o * tanh(new)
            store_stream(0, row, j, i)
            store_stream(1, row, k1, f)
            store_stream(2, row, k2, g)
            store_stream(3, row, k3, o)
            store_stream(4, row, j + 4 * width, new)
            store_stream(5, hidden, j, y)
            store_stream(6, c, j, new)
            store_stream(7, out, j, y)
            store_stream(8, h, j, y)


@task(FORWARD)
def gru_gates(params, begin, end):
    """Gates u and r, and r h. zh has two gates."""
    width, block = params.width, params.block
    blocks, b = (width + block - 1) // block, params.bias
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 12 * width * n, params.zh + 8 * width * n
        h, rh = params.h + 4 * params.h_step * n, params.rh + 4 * params.h_step * n
        row = params.row + 4 * params.row_step * n
        for j in range(first, min(first + block, width)):
            k = j + width
            r = logistic(load_input(z, k) + load_input(zh, k) + load_input(b, k))
            store_stream(
                0, row, j, logistic(load_input(z, j) + load_input(zh, j) + load_input(b, j))
            )
            store_stream(1, row, k, r)
            store_stream(2, rh, j, r * load_input(h, j))


@task(FORWARD)
def gru_state(params, begin, end):
    """Gate o and h'."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, b, a = (width + block - 1) // block, params.bias, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zo = params.z + 12 * width * n, params.zo + 4 * width * n
        h, row = params.h + 4 * params.h_step * n, params.row + 4 * params.row_step * n
        out = params.out + 4 * params.out_step * n
        if attends:
            a = load_input(params.attention, n)
        for j in range(first, min(first + block, width)):
            k = j + 2 * width
            o = tanh(load_input(z, k) + load_input(zo, j) + load_input(b, k))
            v = (_ONE - a) * load_input(row, j)
            y = v * load_stream(3, h, j) + (_ONE - v) * o
            store_stream(0, row, k, o)
            store_stream(1, row, k + width, y)
            store_stream(2, out, j, y)
            store_stream(3, h, j, y)


@task(FORWARD)
def lbr(params, begin, end):
    """Gates u, r, o, then q and h'. zh has three gates."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, b, a = (width + block - 1) // block, params.bias, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        z, zh = params.z + 12 * width * n, params.zh + 12 * width * n
        h, row = params.h + 4 * params.h_step * n, params.row + 4 * params.row_step * n
        out = params.out + 4 * params.out_step * n
        if attends:
            a = load_input(params.attention, n)
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            u = logistic(load_input(z, j) + load_input(zh, j) + load_input(b, j))
            r = logistic(load_input(z, k1) + load_input(zh, k1) + load_input(b, k1))
            q = load_input(zh, k2) + load_input(b, k3)
            o = tanh(load_input(z, k2) + load_input(b, k2) + r * q)
            v = (_ONE - a) * u
            y = v * load_stream(6, h, j) + (_ONE - v) * o
            store_stream(0, row, j, u)
            store_stream(1, row, k1, r)
            store_stream(2, row, k2, o)
            store_stream(3, row, k3, q)
            store_stream(4, row, k3 + width, y)
            store_stream(5, out, j, y)
            store_stream(6, h, j, y)


# -- backward --------------------------------------------------------------------------------------


@exact
def _slope(y):
    """The derivative of logistic where its result is y."""
    return y * (_ONE - y)


@exact
def _steep(y):
    """The derivative of tanh where its result is y. 1 - y * y would be less exact near 1."""
    return (_ONE - y) * (_ONE + y)


@task(BACKWARD)
def rnn_back(params, begin, end):
    """dz = dh activation'(z)."""
    width, block, kind, alpha = params.width, params.block, params.kind, params.alpha
    blocks = (width + block - 1) // block
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, dense = params.h + 4 * params.h_step * n, 4 * width * n
        dh, hp, z = (
            params.dh + dense,
            params.hp + 4 * params.hp_step * n,
            params.z + 4 * params.z_step * n,
        )
        buffer = params.buffer + 4 * params.buffer_step * n
        for j in range(first, min(first + block, width)):
            y = load_input(row, j)
            d = load_input(above, j) + load_input(dh, j)
            if kind == RELU:
                d = d if y > _ZERO else d * alpha
            elif kind == LOGISTIC:
                d = d * _slope(y)
            else:
                d = d * _steep(y)
            store_stream(0, hp, j, load_input(h, j))
            store_stream(1, z, j, d)
            store_stream(2, buffer, j, d)


@task(BACKWARD)
def lstm_back(params, begin, end):
    """The slopes of gates i, f, g, o and of c."""
    width, block, keeps = params.width, params.block, params.keeps != 0
    blocks, p, projects = (width + block - 1) // block, params.peephole, params.projects != 0
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, c = params.h + 4 * params.h_step * n, params.c + 4 * params.c_step * n
        dense = 4 * width * n
        dh, slopes, hp = params.dh + dense, params.dc + dense, params.hp + 4 * params.hp_step * n
        z, buffer = params.z + 4 * params.z_step * n, params.buffer + 4 * params.buffer_step * n
        more = params.more + 3 * dense
        for j in range(first, min(first + block, width)):
            k1, k2, k3 = j + width, j + 2 * width, j + 3 * width
            i, f, g, o = (
                load_input(row, j),
                load_input(row, k1),
                load_input(row, k2),
                load_input(row, k3),
            )
            new, old = load_input(row, j + 4 * width), load_input(c, j)
            t, d = tanh(new), load_input(above, j) + load_input(dh, j)
            do = d * t * _slope(o)
            dc = load_stream(0, slopes, j) + d * o * _steep(t) + do * load_input(p, k2)
            di, df, dg = dc * g * _slope(i), dc * old * _slope(f), dc * i * _steep(g)
            store_stream(0, slopes, j, dc * f + di * load_input(p, j) + df * load_input(p, k1))
            kept = load_input(h, j)
            store_stream(1, hp, j, o * t if projects else kept)
            store_stream(2, z, j, di)
            store_stream(3, z, k1, df)
            store_stream(4, z, k2, dg)
            store_stream(5, z, k3, do)
            store_stream(6, buffer, j, di)
            store_stream(7, buffer, k1, df)
            store_stream(8, buffer, k2, dg)
            store_stream(9, buffer, k3, do)
            if keeps:
                store_stream(10, more, j, di * old)
                store_stream(11, more, k1, df * old)
                store_stream(12, more, k2, do * new)


@task(BACKWARD)
def gru_back(params, begin, end):
    """The slopes of gates u and o. An item is a whole row if there is attention."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, a = (width + block - 1) // block, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, dense, total = params.h + 4 * params.h_step * n, 4 * width * n, _ZERO
        dh, own, z = params.dh + dense, params.own + dense, params.z + 4 * params.z_step * n
        hp, last = params.hp + 4 * params.hp_step * n, params.last + 4 * params.last_step * n
        if attends:
            a = load_input(params.attention, n)
        for j in range(first, min(first + block, width)):
            u, o, old = load_input(row, j), load_input(row, j + 2 * width), load_input(h, j)
            d = load_input(above, j) + load_input(dh, j) + load_stream(1, own, j)
            v, dv = (_ONE - a) * u, d * (old - o)
            do = d * (_ONE - v) * _steep(o)
            total += dv * u
            store_stream(0, hp, j, old)
            store_stream(1, own, j, d * v)
            store_stream(2, z, j, dv * (_ONE - a) * _slope(u))
            store_stream(3, z, j + 2 * width, do)
            store_stream(4, last, j, do)
        if params.d_attention != 0:
            store_stream(5, params.d_attention, n, -total)


@task(BACKWARD)
def gru_back_reset(params, begin, end):
    """The slope of gate r, from that of r h, and r h. dh: the slope of r h."""
    width, block = params.width, params.block
    blocks = (width + block - 1) // block
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, h = params.row + 4 * params.row_step * n, params.h + 4 * params.h_step * n
        dense = 4 * width * n
        by, own, z = params.dh + dense, params.own + dense, params.z + 4 * params.z_step * n
        buffer, more = (
            params.buffer + 4 * params.buffer_step * n,
            params.more + 4 * params.hp_step * n,
        )
        for j in range(first, min(first + block, width)):
            r, old, d = load_input(row, j + width), load_input(h, j), load_input(by, j)
            dr = d * old * _slope(r)
            store_stream(0, own, j, load_stream(0, own, j) + d * r)
            store_stream(1, more, j, r * old)
            store_stream(2, z, j + width, dr)
            store_stream(3, buffer, j, load_input(z, j))
            store_stream(4, buffer, j + width, dr)


@task(BACKWARD)
def lbr_back(params, begin, end):
    """The slopes of gates u, r, o and q. An item is a whole row if there is attention."""
    width, block, attends = params.width, params.block, params.attends != 0
    blocks, a = (width + block - 1) // block, _ZERO
    for item in range(begin, end):
        n, first = item // blocks, item % blocks * block
        row, above = params.row + 4 * params.row_step * n, params.above + 4 * params.above_step * n
        h, dense, total = params.h + 4 * params.h_step * n, 4 * width * n, _ZERO
        dh, own, z = params.dh + dense, params.own + dense, params.z + 4 * params.z_step * n
        zq, buffer = params.zq + 4 * params.z_step * n, params.buffer + 4 * params.buffer_step * n
        hp = params.hp + 4 * params.hp_step * n
        if attends:
            a = load_input(params.attention, n)
        for j in range(first, min(first + block, width)):
            k1, k2 = j + width, j + 2 * width
            u, r, o = load_input(row, j), load_input(row, k1), load_input(row, k2)
            q, old = load_input(row, j + 3 * width), load_input(h, j)
            d = load_input(above, j) + load_input(dh, j) + load_stream(1, own, j)
            v, dv = (_ONE - a) * u, d * (old - o)
            do = d * (_ONE - v) * _steep(o)
            du, dr, dq = dv * (_ONE - a) * _slope(u), do * q * _slope(r), do * r
            total += dv * u
            store_stream(0, hp, j, old)
            store_stream(1, own, j, d * v)
            store_stream(2, z, j, du)
            store_stream(3, z, k1, dr)
            store_stream(4, z, k2, do)
            store_stream(5, zq, j, du)
            store_stream(6, zq, k1, dr)
            store_stream(7, zq, k2, dq)
            store_stream(8, buffer, j, du)
            store_stream(9, buffer, k1, dr)
            store_stream(10, buffer, k2, dq)
        if params.d_attention != 0:
            store_stream(11, params.d_attention, n, -total)


PROJECTED = Record(
    "slopes of projected states",
    ("width", "count"),
    ("above dh h", "address", "slopes of the result, and of the state by products; the old state"),
    ("now kept hp", "address", "sums of slopes, for the next product and of all steps; the state"),
    ("above_step h_step now_step hp_step", "elements", "from row to row; of kept as of hp"),
)


@task(PROJECTED)
def projected_back(params, begin, end):
    """The slopes of h', and a copy of h."""
    width = params.width
    for n in range(begin, end):
        above, dh = params.above + 4 * params.above_step * n, params.dh + 4 * width * n
        h, now = params.h + 4 * params.h_step * n, params.now + 4 * params.now_step * n
        kept, hp = params.kept + 4 * params.hp_step * n, params.hp + 4 * params.hp_step * n
        for j in range(width):
            slope = load_input(above, j) + load_input(dh, j)
            store_stream(0, now, j, slope)
            store_stream(1, kept, j, slope)
            store_stream(2, hp, j, load_input(h, j))


ADD = Record("sum of rows", ("dst a b", "address"))


@task(ADD)
def add(params, begin, end):
    """dst = a + b."""
    for i in range(begin, end):
        store_f32(params.dst, i, load_f32(params.a, i) + load_f32(params.b, i))
