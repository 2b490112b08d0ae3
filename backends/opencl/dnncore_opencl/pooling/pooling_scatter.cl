// The gradient of pooling on CPUs without vectors. A work-item computes whole planes (n, c) of
// diff_src and adds each diff_dst in turn, so sums have a fixed order and need no atomics. Windows
// are defined in pooling_window.cl.

#define OVER(at, size) for (INDEX at = 0; at < size; ++at)

__kernel void pooling_scatter($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            OVER(z, PADDED_D) OVER(y, PADDED_H) OVER(x, PADDED_W)
                STORE_DIFF_SRC(n, c, z, y, x, 0.0f);
            if (!inside) continue;
            OVER(z, DST_D) OVER(y, DST_H) OVER(x, DST_W) {
                const INDEX front = z * STRIDE_D - LEFT_D;
                const INDEX top = y * STRIDE_H - LEFT_H;
                const INDEX left = x * STRIDE_W - LEFT_W;
                const float diff = LOAD_DIFF_DST(n, c, z, y, x);
#ifdef MAX
                const INDEX place = LOAD_WORKSPACE(n, c, z, y, x);
                const INDEX at_d = front + place / (TAPS_H * TAPS_W) * STEP_D;
                const INDEX at_h = top + place / TAPS_W % TAPS_H * STEP_H;
                const INDEX at_w = left + place % TAPS_W * STEP_W;
                const int exists = at_d >= 0 && at_d < SRC_D && at_h >= 0 && at_h < SRC_H
                                   && at_w >= 0 && at_w < SRC_W;
                if (exists) diff_src[DIFF_SRC_AT(n, c, at_d, at_h, at_w)] += diff;
#else
                const float share = diff * SHARE(z, y, x);
                for (INDEX i = FIRST_TAP_D(front); i < END_TAP_D(front); ++i)
                for (INDEX j = FIRST_TAP_H(top); j < END_TAP_H(top); ++j)
                for (INDEX k = FIRST_TAP_W(left); k < END_TAP_W(left); ++k) {
                    const INDEX at_d = front + i * STEP_D, at_h = top + j * STEP_H;
                    diff_src[DIFF_SRC_AT(n, c, at_d, at_h, left + k * STEP_W)] += share;
                }
#endif
            }
        }
    }
}
