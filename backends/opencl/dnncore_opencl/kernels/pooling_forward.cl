// Max pooling over 1 to 3 spatial dims. A work-item takes COUNT of the ITEMS, which are boxes of the
// two innermost loops over dst, with bounds that DECODE finds from `rest`; an iteration is LANES
// channels at one place, whose COORDINATES are n, c, d, h, w. INSIDE tells whether that is a place
// of elements or of padding, which is zero.
//
// A window along one dim, say H: tap r of output y looks at y * STRIDE_H - LEFT_H + r * STEP_H, and
// SEES_H tells whether the image has such a cell.

// Compilers unroll small windows to good effect, and large ones for minutes.
#if TAPS_D * TAPS_H * TAPS_W > 64
#define OVER_TAPS _Pragma("unroll 1") for
#else
#define OVER_TAPS for
#endif

__kernel void pooling_forward(
    __global const float *restrict src, __global float *restrict dst WORKSPACE PARAMETERS)
{
    const INDEX first = (INDEX)get_global_id(0) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        for (INDEX r = r_begin; r < r_end; ++r)
        for (INDEX t = t_begin; t < t_end; ++t) {
            COORDINATES
            const int inside = INSIDE;
            FLOATS best = -FLT_MAX;
            INTS place = -1;
            OVER_TAPS (int i = 0; i < TAPS_D; ++i) {
                const INDEX at_d = d * STRIDE_D - LEFT_D + i * STEP_D;
                if (!inside) continue;
                if (!SEES_D(at_d)) continue;
                OVER_TAPS (int j = 0; j < TAPS_H; ++j) {
                    const INDEX at_h = h * STRIDE_H - LEFT_H + j * STEP_H;
                    if (!SEES_H(at_h)) continue;
                    OVER_TAPS (int k = 0; k < TAPS_W; ++k) {
                        const INDEX at_w = w * STRIDE_W - LEFT_W + k * STEP_W;
                        if (!SEES_W(at_w)) continue;
                        const FLOATS cell = LOAD_FLOATS(src + SRC_AT(n, c, at_d, at_h, at_w));
                        // The first cell wins over none, NaN over all numbers.
                        const INTS wins =
                            (place < 0) | (cell > best) | ((cell != cell) & (best == best));
                        best = wins ? cell : best;
                        place = wins ? (INTS)((i * TAPS_H + j) * TAPS_W + k) : place;
                    }
                }
            }
            best = inside ? best : 0.0f;
            STORE_FLOATS(dst + DST_AT(n, c, d, h, w), best);
            STORE_PLACES(n, c, d, h, w, max(place, 0));
        }
    }
}
