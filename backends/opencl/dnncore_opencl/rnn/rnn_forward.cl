// One step of cells: products of the state, and the cell. Formulas: dnncore.ops.rnn.
// z: the products of the step's input. h, c: the states before it. row: of the workspace.
// middle: r h of GRU, or the result of LSTM before its projection. With INTEGER, states are
// differences of integers and the shift. KEPT rounds a number to a difference. NUMBER converts a
// difference, and SCALED a sum of products, to the number that it represents.

#define GATE(g, sum) (SCALED(g, (sum) + AT(z, n)[(g)*width + unit]) + READ(bias, g, unit))
#define STORE_ROW(place, value) STORE(row, n, (place)*width + unit, value)
#define STORE_MIDDLE(value) STORE(middle, n, unit, KEPT(value));
#define STORE_STATE(value)                                                                         \
    {                                                                                              \
        const float kept = KEPT(value);                                                            \
        STORE(state, n, unit, kept);                                                               \
        AT_LAST STORE(last, n, unit, kept);                                                        \
        STORE(out, n, unit, adds ? AT(out, n)[unit] + kept : kept);                                \
    }

#ifdef INTEGER
static inline float difference(const float y, const float scale, const float shift)
{
    const float q = y * scale + shift;
    return convert_float(INTEGER(q == q ? q : 0.0f)) - shift;
}
#define KEPT(y) difference(y, scale, shift)
#define NUMBER(kept) ((kept) / scale)
#define SCALED(g, sum) ((sum)*AT(factors, g)[unit])
#else
#define KEPT(y) (y)
#define NUMBER(kept) (kept)
#define SCALED(g, sum) (sum)
#endif

__kernel GROUP_SIZE void rnn_forward($parameters)
{
    START
    OVER_STEPS {
        PRODUCTS
        OVER_CELLS {
            THIS_CELL
#if GATES == 4 // LSTM
            const float before = READ(c, n, unit);
            const float i = logistic(GATE(0, total[0]) + READ(peephole, 0, unit) * before);
            const float f = logistic(GATE(1, total[1]) + READ(peephole, 1, unit) * before);
            const float g = tanh(GATE(2, total[2]));
            const float after = f * before + i * g;
            const float o = logistic(GATE(3, total[3]) + READ(peephole, 2, unit) * after);
            const float y = o * tanh(after);
            STORE_ROW(0, i);
            STORE_ROW(1, f);
            STORE_ROW(2, g);
            STORE_ROW(3, o);
            STORE_ROW(4, after);
            STORE(new_c, n, unit, after);
            STORE_MIDDLE(y)
            STORE_STATE(y)
#elif GATES == 3 // LBR
            const float u = logistic(GATE(0, total[0])), reset = logistic(GATE(1, total[1]));
            const float q = total[2] + READ(bias, 3, unit);
            const float o = tanh(GATE(2, reset * q));
            const float v = (1.0f - READ(attention, n, 0)) * u;
            const float y = v * READ(h, n, unit) + (1.0f - v) * o;
            STORE_ROW(0, u);
            STORE_ROW(1, reset);
            STORE_ROW(2, o);
            STORE_ROW(3, q);
            STORE_STATE(y)
#elif GATES == 2 // the first two gates of GRU
            const float u = logistic(GATE(0, total[0])), reset = logistic(GATE(1, total[1]));
            STORE_ROW(0, u);
            STORE_ROW(1, reset);
            STORE_MIDDLE(reset * NUMBER(READ(h, n, unit)))
#else
            float y = total[0];
            if (cell == STATE_OF_GRU) {
                const float v = (1.0f - READ(attention, n, 0)) * AT(row, n)[unit];
                const float o = tanh(GATE(2, y));
                y = v * NUMBER(READ(h, n, unit)) + (1.0f - v) * o;
                STORE_ROW(2, o);
            } else if (cell == RNN) {
                const float x = GATE(0, y);
                y = kind == RELU ? (x > 0.0f ? x : x * alpha)
                                 : (kind == LOGISTIC ? logistic(x) : tanh(x));
            } else // the projection of LSTM
                y = SCALED(0, y);
            STORE_STATE(y)
#endif
        }
    }
}
