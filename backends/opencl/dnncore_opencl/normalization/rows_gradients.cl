// All gradients of normalization by rows (rows.cl), as in rows_backward.cl. src and diff_dst are
// read once. A group of workers computes COUNT rows, one of STREAMS after the other. Each worker
// adds the terms of the gradients of scale and shift that belong to its elements. Their sums over
// the rows of a group, SPAN at once, are left for a second stage: GROUPS times LENGTH for shift,
// then those for scale.

#if SPAN > 1
static inline WIDE of_group(const WIDE own, const int worker, __local WIDE *const all)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    all[get_local_id(0)] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    WIDE sum = 0.0f;
    for (int k = 0; k < SPAN; ++k) sum += all[k * WORKERS + worker];
    return sum;
}
#define ALL __local WIDE all[WORKERS * SPAN];
#else
#define of_group(own, worker, all) own
#define ALL
#endif

__kernel GROUP_SIZE void rows_gradients($parameters)
{
    SHARED
    ALL
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
        FILL(SRC, held_src)
        FILL(DIFF_DST, held_diff)
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
    _Pragma("unroll") for (int i = 0; i < HELD; ++i) {
        const WIDE shifts = of_group(of_shift[i], worker, all);
        const WIDE scales = of_group(of_scale[i], worker, all);
        const INDEX j = (i * WORKERS + worker) * LANES, group = stream / SPAN;
        const INDEX at = START + group * LENGTH + j;
        if (stream < STREAMS && stream % SPAN == 0 && j + LANES <= LENGTH) {
            LEAVE(at, shifts);
            LEAVE(at + GROUPS * LENGTH, scales);
        }
    }
}
