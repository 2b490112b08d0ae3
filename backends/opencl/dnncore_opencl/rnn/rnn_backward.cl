// One step back: the slopes of the state by the step after it, and the cell.
// h, c: the states before the step. above: slopes of the layer's result. own: further slopes of h'.
// dc: slopes of c'. z, zq: slopes of the sums of all gates, and of their products with the state.
// old_h: copies of h. more: terms of the peephole weights, or r h of GRU. middle: LSTM's result before
// its projection. pulls: terms of the attention's slope.

#define SLOPE(y) ((y) * (1.0f - (y)))          // of logistic, by its result
#define STEEP(y) ((1.0f - (y)) * (1.0f + (y))) // of tanh
#define SAVED(place) AT(row, n)[(place)*width + unit]
#define STORE_GATE(name, place, value) STORE(name, n, (place)*width + unit, value)

__kernel GROUP_SIZE void rnn_backward($parameters)
{
    START
    OVER_STEPS {
        PRODUCTS
        OVER_CELLS {
            THIS_CELL
            const float before = READ(h, n, unit);
            if (cell == RESET_OF_GRU) {
                const float reset = SAVED(1);
                STORE_GATE(z, 1, total[0] * before * SLOPE(reset));
                STORE(more, n, unit, reset * before);
                STORE(new_own, n, unit, READ(own, n, unit) + total[0] * reset);
                continue;
            }
            const float d = READ(above, n, unit) + READ(own, n, unit) + total[0];
            STORE(old_h, n, unit, before);
            if (cell == STATE) {
                STORE(new_own, n, unit, d);
            } else if (cell == RNN) {
                const float y = SAVED(0);
                const float slope = kind == RELU ? (y > 0.0f ? 1.0f : alpha)
                                                 : (kind == LOGISTIC ? SLOPE(y) : STEEP(y));
                STORE_GATE(z, 0, d * slope);
            } else if (cell == LSTM) {
                const float i = SAVED(0), f = SAVED(1), g = SAVED(2), o = SAVED(3), after = SAVED(4);
                const float old_c = READ(c, n, unit), t = tanh(after);
                const float d_o = d * t * SLOPE(o);
                const float d_c = READ(dc, n, unit) + d * o * STEEP(t) + d_o * READ(peephole, 2, unit);
                const float d_i = d_c * g * SLOPE(i), d_f = d_c * old_c * SLOPE(f);
                STORE_GATE(z, 0, d_i);
                STORE_GATE(z, 1, d_f);
                STORE_GATE(z, 2, d_c * i * STEEP(g));
                STORE_GATE(z, 3, d_o);
                STORE_GATE(more, 0, d_i * old_c);
                STORE_GATE(more, 1, d_f * old_c);
                STORE_GATE(more, 2, d_o * after);
                STORE(middle, n, unit, o * t);
                STORE(new_dc, n, unit,
                      d_c * f + d_i * READ(peephole, 0, unit) + d_f * READ(peephole, 1, unit));
            } else { // GRU or LBR
                const float u = SAVED(0), reset = SAVED(1), o = SAVED(2);
                const float part = 1.0f - READ(attention, n, 0), v = part * u, d_v = d * (before - o);
                const float d_u = d_v * part * SLOPE(u), d_o = d * (1.0f - v) * STEEP(o);
                STORE(pulls, n, unit, -d_v * u);
                STORE(new_own, n, unit, d * v);
                STORE_GATE(z, 0, d_u);
                STORE_GATE(z, 2, d_o);
                if (cell == LBR) {
                    const float d_r = d_o * SAVED(3) * SLOPE(reset);
                    STORE_GATE(z, 1, d_r);
                    STORE_GATE(zq, 0, d_u);
                    STORE_GATE(zq, 1, d_r);
                    STORE_GATE(zq, 2, d_o * reset);
                }
            }
        }
    }
}
