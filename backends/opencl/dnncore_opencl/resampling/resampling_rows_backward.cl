// The gradient of linear resampling with at least as many rows in dst as in src (held_taps.cl). A
// work-item computes a column of rows `t` of diff_src. It reads each row of diff_dst once, and adds
// it to the one or two rows that depend on it.

#define POSITION(h) ((2 * (WIDE)(h) + 1) * INNER_H - OUTER_H)

#define WRITE(row)                                                                                 \
    if (row >= t_begin) {                                                                          \
        const INDEX t = row;                                                                       \
        COORDINATES                                                                                \
        FLOATS x = low;                                                                            \
        if (inside) { POST_OPS }                                                                   \
        x = inside ? x : (FLOATS)(0);                                                              \
        STORE(n, c, d, h, w, x);                                                                   \
    }

__kernel void resampling_rows_backward($parameters)
{
    BOXES {
        BOX
        for (INDEX r = r_begin; r < r_end; ++r) {
            const INDEX t = t_begin;
            PLACE
            TABLE(D, d, planes, weights_d)
            TABLE(W, w, columns, weights_w)
            const WIDE span = 2 * (WIDE)OUTER_H;
            const INDEX from = first_of(t_begin, INNER_H, OUTER_H);
            const INDEX to = end_of(t_end - 1, INNER_H, OUTER_H);
            WIDE row = max(POSITION(from), (WIDE)0) / span;
            FLOATS low = (FLOATS)(0), high = (FLOATS)(0);
            for (INDEX j = from; j < to; ++j) {
                if (POSITION(j) - row * span >= span) {
                    WRITE(row)
                    low = high;
                    high = (FLOATS)(0);
                    ++row;
                }
                const WIDE off = POSITION(j) - row * span;
                const int has_two = off > 0 && row < INNER_H - 1;
                const float share = (float)off / (float)span;
                const float other = has_two ? (float)(span - off) / (float)span : 1.0f;
                FLOATS x = (FLOATS)(0);
                if (inside) {
                    const INDEX at = IMAGE(n, c) + j * STEP_H;
                    OVER(i, TAPS_D) {
                        FLOATS sum = (FLOATS)(0);
                        OVER(k, TAPS_W) {
                            const FLOATS value = READ(at + planes[i] + columns[k]);
                            sum = TERM(sum, weights_w[k], value);
                        }
                        x = TERM(x, weights_d[i], sum);
                    }
                }
                low += other * x;
                if (has_two) high += share * x;
            }
            WRITE(row)
        }
    }
}
