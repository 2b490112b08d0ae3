// Resampling, forward or BACKWARD, with few taps (held_taps.cl). A work-item holds the offsets and
// weights of the taps of one pixel and computes this pixel of several images or channels, the loop
// `t`. With STEP 1 there is no such loop.

__kernel void resampling_held($parameters)
{
    BOXES {
        BOX
        for (INDEX r = r_begin; r < r_end; ++r)
        for (INDEX start = t_begin; start < t_end; start += STEP) {
            const INDEX t = start;
            COORDINATES
            TABLE(D, d, planes, weights_d)
            TABLE(H, h, rows, weights_h)
            TABLE(W, w, columns, weights_w)
            UNROLLED
            for (INDEX t = start; t < min(start + STEP, t_end); ++t) {
                PLACE
                const INDEX image = IMAGE(n, c);
                FLOATS x = (FLOATS)(0);
                if (inside) {
                    OVER(i, TAPS_D)
                    OVER(j, TAPS_H) {
                        FLOATS sum = (FLOATS)(0);
                        const INDEX row = image + planes[i] + rows[j];
                        OVER(k, TAPS_W) {
                            const FLOATS value = READ(row + columns[k]);
                            sum = TERM(sum, weights_w[k], value);
                        }
                        x = TERM(x, weights_d[i] * weights_h[j], sum);
                    }
                    POST_OPS
                }
                x = inside ? x : (FLOATS)(0);
                STORE(n, c, d, h, w, x);
            }
        }
    }
}
