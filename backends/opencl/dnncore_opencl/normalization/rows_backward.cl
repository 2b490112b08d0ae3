// The gradient of normalization with respect to src (row_gradient.cl), by rows (rows.cl).

__kernel GROUP_SIZE void rows_backward($parameters)
{
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
        const ROW factor = 1.0f / sqrt(spread + EPSILON);
        WIDE wide_g = 0.0f, run_g = 0.0f, wide_x = 0.0f, run_x = 0.0f;
        ROW total_g = 0.0f, total_x = 0.0f;
        VECTORS {
            const WIDE g = GRADIENT(READ(DIFF_DST, held_diff, i, j), j, _WIDE);
            run_g += g;
            run_x += g * ((READ(SRC, held_src, i, j) - centre) * factor);
            END_RUN(wide_g, run_g, j)
            END_RUN(wide_x, run_x, j)
        }
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
        VECTORS {
            const WIDE g = GRADIENT(READ_AGAIN(DIFF_DST, held_diff, i, j), j, _WIDE);
            const WIDE normalized = (READ_AGAIN(SRC, held_src, i, j) - centre) * factor;
            WIDE x = (g - TAKEN(normalized)) * factor;
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
        REST {
            const ROW g = GRADIENT(DIFF_DST(j), j, );
            const ROW normalized = (SRC(j) - centre) * factor;
            ROW x = (g - TAKEN(normalized)) * factor;
            FINISH
            STORE(j, x);
        }
        PADDING { STORE_PADDING(j); }
    }
}
