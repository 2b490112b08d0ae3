// Linear resampling with at least as many rows in dst as in src (held_taps.cl). A work-item computes
// a column of rows `t` of dst. It keeps the last two rows of src, interpolated along the other dims,
// because most rows of dst need the same ones as the row before.

// Interpolates a row of src along the other dims.
#define FETCH(x, row)                                                                              \
    {                                                                                              \
        const INDEX at = IMAGE(n, c) + (INDEX)(row) * STEP_H;                                      \
        x = (FLOATS)(0);                                                                           \
        OVER(i, TAPS_D)                                                                            \
        OVER(k, TAPS_W) x += weights_d[i] * weights_w[k] * READ(at + planes[i] + columns[k]);      \
    }

__kernel void resampling_rows($parameters)
{
    BOXES {
        BOX
        for (INDEX r = r_begin; r < r_end; ++r) {
            const INDEX t = t_begin;
            PLACE
            TABLE(D, d, planes, weights_d)
            TABLE(W, w, columns, weights_w)
            const WIDE span = 2 * (WIDE)OUTER_H;
            WIDE row = first_of(h, INNER_H, OUTER_H), low_row = -1, high_row = -1;
            FLOATS low = (FLOATS)(0), high = (FLOATS)(0);
            for (INDEX next = t_begin; next < t_end; ++next) {
                const INDEX t = next;
                COORDINATES
                const WIDE position = (2 * (WIDE)h + 1) * INNER_H - OUTER_H;
                if (position - row * span >= span) ++row;
                const WIDE off = position - row * span;
                const int has_two = off > 0 && row < INNER_H - 1;
                if (inside && row != low_row) {
                    if (row == high_row)
                        low = high;
                    else
                        FETCH(low, row)
                    low_row = row;
                }
                if (inside && has_two && row + 1 != high_row) {
                    FETCH(high, row + 1)
                    high_row = row + 1;
                }
                const float share = (float)off / (float)span;
                const float other = (float)(span - off) / (float)span;
                FLOATS x = has_two ? other * low + share * high : low;
                if (inside) { POST_OPS }
                x = inside ? x : (FLOATS)(0);
                STORE(n, c, d, h, w, x);
            }
        }
    }
}
