// One step back: the slopes of the state by the step after it, and the cell.
// h, c: the states before the step. above: slopes of the layer's result. own: further slopes of h'.
// dc: slopes of c'. z, zq: slopes of the sums of all gates, and of their products with the state.
// old_h: copies of h. more: terms of the peephole weights, or r h of GRU. middle: LSTM's result before
// its projection. pulls: terms of the attention's slope.

#define SLOPE(y) ((y) * (1.0f - (y))) // of logistic, by its result
#define STEEP(y) (1.0f - (y) * (y))   // of tanh
#define SAVED(place) AT(row, n)[(place)*width + unit]
#define STORE_GATE(name, place, value) STORE(name, n, (place)*width + unit, value)

__kernel GROUP_SIZE void rnn_backward($parameters)
{
    PRODUCTS
    OVER_CELLS {
        THIS_CELL
#ifndef RESET_OF_GRU
        const float d = READ(above, n, unit) + READ(own, n, unit) + total[0];
        STORE(old_h, n, unit, READ(h, n, unit));
#endif
#if defined(RNN)
        const float y = SAVED(0);
        const float slope = kind == RELU ? (y > 0.0f ? 1.0f : alpha)
                                         : (kind == LOGISTIC ? SLOPE(y) : STEEP(y));
        STORE_GATE(z, 0, d * slope);
#elif defined(LSTM)
        const float i = SAVED(0), f = SAVED(1), g = SAVED(2), o = SAVED(3), after = SAVED(4);
        const float before = READ(c, n, unit), t = tanh(after);
        const float d_o = d * t * SLOPE(o);
        const float d_c = READ(dc, n, unit) + d * o * STEEP(t) + d_o * READ(peephole, 2, unit);
        const float d_i = d_c * g * SLOPE(i), d_f = d_c * before * SLOPE(f);
        STORE_GATE(z, 0, d_i);
        STORE_GATE(z, 1, d_f);
        STORE_GATE(z, 2, d_c * i * STEEP(g));
        STORE_GATE(z, 3, d_o);
        STORE_GATE(more, 0, d_i * before);
        STORE_GATE(more, 1, d_f * before);
        STORE_GATE(more, 2, d_o * after);
        STORE(middle, n, unit, o * t);
        STORE(new_dc, n, unit,
              d_c * f + d_i * READ(peephole, 0, unit) + d_f * READ(peephole, 1, unit));
#elif defined(GRU) || defined(LBR)
        const float u = SAVED(0), o = SAVED(2), part = 1.0f - READ(attention, n, 0), v = part * u;
        const float d_v = d * (READ(h, n, unit) - o), d_o = d * (1.0f - v) * STEEP(o);
        STORE(pulls, n, unit, -d_v * u);
        STORE(new_own, n, unit, d * v);
        STORE_GATE(z, 0, d_v * part * SLOPE(u));
        STORE_GATE(z, 2, d_o);
#ifdef LBR
        const float r_gate = SAVED(1), d_r = d_o * SAVED(3) * SLOPE(r_gate);
        STORE_GATE(z, 1, d_r);
        STORE_GATE(zq, 0, d_v * part * SLOPE(u));
        STORE_GATE(zq, 1, d_r);
        STORE_GATE(zq, 2, d_o * r_gate);
#endif
#elif defined(RESET_OF_GRU)
        const float r_gate = SAVED(1), before = READ(h, n, unit);
        STORE_GATE(z, 1, total[0] * before * SLOPE(r_gate));
        STORE(more, n, unit, r_gate * before);
        STORE(new_own, n, unit, READ(own, n, unit) + total[0] * r_gate);
#else // only the slope of the state
        STORE(new_own, n, unit, d);
#endif
    }
}
