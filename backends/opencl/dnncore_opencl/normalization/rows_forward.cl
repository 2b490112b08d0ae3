// Normalization by rows (rows.cl), with the average and the deviations of each row.
// dst = (src - mean) / sqrt(variance + EPSILON) * scale + shift. With RMS, mean is 0. FINISH_WIDE and
// FINISH are the steps from x to the stored value.

#ifdef HAS_SCALE
#define SCALED(x, j, SUFFIX) ((x) * (factor * SCALE##SUFFIX(j)))
#else
#define SCALED(x, j, SUFFIX) ((x) * factor)
#endif
#ifdef HAS_SHIFT
#define SHIFTED(x, j, SUFFIX) (x + SHIFT##SUFFIX(j))
#else
#define SHIFTED(x, j, SUFFIX) x
#endif
#ifdef RMS
#define READ_FIRST READ
#else
#define READ_FIRST READ_AGAIN
#endif

__kernel GROUP_SIZE void rows_forward($parameters)
{
    OVER_ITEMS {
        ROW_PLACE
        HOLD(SRC, held);
        WIDE wide = 0.0f, run = 0.0f;
        ROW total = 0.0f, centre = 0.0f;
#ifndef RMS
        VECTORS {
            run += READ(SRC, held, i, j);
            END_RUN(wide, run, j)
        }
        wide += run;
        REST total += SRC(j);
        centre = sum_of(wide, total, worker, shared) * SHARE;
        wide = 0.0f;
        run = 0.0f;
        total = 0.0f;
#endif
        VECTORS {
            const WIDE x = READ_FIRST(SRC, held, i, j) - centre;
            run += x * x;
            END_RUN(wide, run, j)
        }
        wide += run;
        REST {
            const ROW x = SRC(j) - centre;
            total += x * x;
        }
        const ROW spread = sum_of(wide, total, worker, shared) * SHARE;
#ifdef KEEPS
        if (worker == 0 && length > 0) {
#ifndef RMS
            KEEP_MEAN(centre)
#endif
            KEEP_VARIANCE(spread)
        }
#endif
        const ROW factor = 1.0f / sqrt(spread + EPSILON);
        VECTORS {
            WIDE x = SHIFTED(SCALED(READ_AGAIN(SRC, held, i, j) - centre, j, _WIDE), j, _WIDE);
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
        REST {
            ROW x = SHIFTED(SCALED(SRC(j) - centre, j, ), j, );
            FINISH
            STORE(j, x);
        }
        PADDING { STORE_PADDING(j); }
    }
}
