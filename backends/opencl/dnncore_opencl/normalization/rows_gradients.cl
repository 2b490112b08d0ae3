// All gradients of normalization by rows (rows.cl), as in rows_backward.cl. src and diff_dst are read
// once. A group of workers computes COUNT rows, one of STREAMS after the other. Each worker adds the
// terms of the gradients of scale and shift that belong to its elements. Their sums over the rows of
// a group are left for a second stage: STREAMS times LENGTH for shift, then those for scale.

__kernel GROUP_SIZE void rows_gradients($parameters)
{
    SHARED
    const int worker = WORKER;
    const INDEX stream = ITEM;
    WIDE of_shift[HELD], of_scale[HELD];
    _Pragma("unroll") for (int i = 0; i < HELD; ++i) of_shift[i] = of_scale[i] = 0.0f;
    for (INDEX k = 0; k < COUNT; ++k) {
        const INDEX item = k * STREAMS + stream;
        ROW_PLACE
        HOLD(SRC, held_src);
        HOLD(DIFF_DST, held_diff);
        ROW centre = 0.0f, spread = 0.0f;
        VECTORS {
            held_src[i] = SRC_BITS(j);
            held_diff[i] = DIFF_DST_BITS(j);
        }
        if (length > 0) {
#ifndef RMS
            centre = TAKE_MEAN;
#endif
            spread = TAKE_VARIANCE;
        }
        const ROW factor = 1.0f / sqrt(spread + EPSILON);
        WIDE wide_g = 0.0f, wide_x = 0.0f;
        VECTORS {
            const WIDE diff = DIFF_DST_OF(held_diff[i]), g = GRADIENT(diff, j, _WIDE);
            const WIDE normalized = (SRC_OF(held_src[i]) - centre) * factor;
            wide_g += g;
            wide_x += g * normalized;
            of_shift[i] += diff;
            of_scale[i] += diff * normalized;
        }
#ifndef RMS
        const ROW average = sum_of(wide_g, 0.0f, worker, shared) * SHARE;
#endif
        const ROW of_products = sum_of(wide_x, 0.0f, worker, shared) * SHARE;
        VECTORS {
            const WIDE g = GRADIENT(DIFF_DST_OF(held_diff[i]), j, _WIDE);
            const WIDE normalized = (SRC_OF(held_src[i]) - centre) * factor;
            WIDE x = (g - TAKEN(normalized)) * factor;
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
    }
    if (stream < STREAMS)
        _Pragma("unroll") for (int i = 0; i < HELD; ++i) {
            const INDEX j = (i * WORKERS + worker) * LANES, at = START + stream * LENGTH + j;
            if (j + LANES <= LENGTH) {
                LEAVE(at, of_shift[i]);
                LEAVE(at + STREAMS * LENGTH, of_scale[i]);
            }
        }
}
