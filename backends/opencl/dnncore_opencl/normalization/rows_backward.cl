// The gradient of normalization with respect to src (row_gradient.cl), by rows (rows.cl).
//
// With LEAVES, a row is a set whose channels are contiguous, LEAVES vectors of them. So each worker
// has elements of the same channels. Their sums are left for a second stage: those for shift of all
// CHANNELS of all images, then those for scale.

__kernel GROUP_SIZE void rows_backward($parameters)
{
#ifdef LEAVES
    __local WIDE of_shifts[WORKERS], of_scales[WORKERS];
#endif
    OVER_ITEMS {
        ROW_PLACE
        HOLD(SRC, held_src);
        HOLD(DIFF_DST, held_diff);
        ROW centre = 0.0f, spread = 0.0f;
        if (length > 0) {
#ifndef RMS
            centre = TAKE_MEAN;
#endif
            spread = TAKE_VARIANCE;
        }
#ifdef SAME
        WIDE own_scale = 1.0f;
#ifdef HAS_SCALE
        if (length > 0) own_scale = SCALE_WIDE(worker * LANES);
#endif
#endif
        const ROW factor = 1.0f / sqrt(spread + EPSILON);
        WIDE wide_g = 0.0f, run_g = 0.0f, wide_x = 0.0f, run_x = 0.0f;
        ROW total_g = 0.0f, total_x = 0.0f;
#ifdef LEAVES
        WIDE of_shift = 0.0f, of_scale = 0.0f;
#endif
        UP {
            FILL(SRC, held_src)
            FILL(DIFF_DST, held_diff)
            VECTORS {
                const WIDE diff = READ_AGAIN(DIFF_DST, held_diff, i, j);
                const WIDE g = GRADIENT(diff, j, _WIDE);
                const WIDE normalized = (READ_AGAIN(SRC, held_src, i, j) - centre) * factor;
#ifdef LEAVES
                of_shift += diff;
                of_scale += diff * normalized;
#else
                run_g += g;
                run_x += g * normalized;
                END_RUN(wide_g, run_g, j)
                END_RUN(wide_x, run_x, j)
#endif
            }
        }
#ifdef LEAVES
        run_g = GRADIENT(of_shift, 0, _WIDE);
        run_x = GRADIENT(of_scale, 0, _WIDE);
#endif
        wide_g += run_g;
        wide_x += run_x;
        REST {
            const ROW g = GRADIENT(DIFF_DST(j), j, );
            total_g += g;
            total_x += g * ((SRC(j) - centre) * factor);
        }
#ifndef RMS
        const ROW average = sum_of(wide_g, total_g, worker, shared) * SHARE;
#endif
        const ROW of_products = sum_of(wide_x, total_x, worker, shared) * SHARE;
        DOWN {
            REFILL(SRC, held_src, PARTS - 1)
            REFILL(DIFF_DST, held_diff, PARTS - 1)
            VECTORS {
                const WIDE g = GRADIENT(READ_AGAIN(DIFF_DST, held_diff, i, j), j, _WIDE);
                const WIDE normalized = (READ_AGAIN(SRC, held_src, i, j) - centre) * factor;
                WIDE x = (g - TAKEN(normalized)) * factor;
                FINISH_WIDE
                STORE_WIDE(j, x);
            }
        }
        REST {
            const ROW g = GRADIENT(DIFF_DST(j), j, );
            const ROW normalized = (SRC(j) - centre) * factor;
            ROW x = (g - TAKEN(normalized)) * factor;
            FINISH
            STORE(j, x);
        }
        PADDING { STORE_PADDING(j); }
#ifdef LEAVES
        of_shifts[worker] = of_shift;
        of_scales[worker] = of_scale;
        for (int i = WORKERS / 2; i >= LEAVES; i /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (worker < i) {
                of_shifts[worker] += of_shifts[worker + i];
                of_scales[worker] += of_scales[worker + i];
            }
        }
        if (worker < LEAVES && length > 0) {
            const INDEX at = START + (item * LEAVES + worker) * LANES;
            LEAVE(at, of_shifts[worker]);
            LEAVE(at + CHANNELS, of_scales[worker]);
        }
#endif
    }
}
