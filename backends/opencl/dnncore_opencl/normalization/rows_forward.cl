// Normalization by rows (rows.cl), with the average and the deviations of each row. dst = (src -
// mean) / sqrt(variance + EPSILON) * scale + shift. With RMS, mean is 0. FINISH_WIDE and FINISH are
// the steps from x to the stored value. With SAME, all vectors of a worker have the same scale and
// shift.

#ifdef SAME
#define SCALE_FOR_WIDE(j) own_scale
#define SHIFT_FOR_WIDE(j) own_shift
#else
#define SCALE_FOR_WIDE SCALE_WIDE
#define SHIFT_FOR_WIDE SHIFT_WIDE
#endif
#define SCALE_FOR SCALE
#define SHIFT_FOR SHIFT
#ifdef HAS_SCALE
#define SCALED(x, j, SUFFIX) ((x) * (factor * SCALE_FOR##SUFFIX(j)))
#else
#define SCALED(x, j, SUFFIX) ((x) * factor)
#endif
#ifdef HAS_SHIFT
#define SHIFTED(x, j, SUFFIX) (x + SHIFT_FOR##SUFFIX(j))
#else
#define SHIFTED(x, j, SUFFIX) x
#endif
__kernel GROUP_SIZE void rows_forward($parameters)
{
    OVER_ITEMS {
        ROW_PLACE
        HOLD(SRC, held);
#if PARTS > 1 && !defined(RMS)
        float wide_count = 0.0f, row_count = 0.0f;
        WIDE wide_mean = 0.0f, wide_squares = 0.0f;
        ROW row_mean = 0.0f, row_squares = 0.0f;
        UP {
            FILL(SRC, held)
            JOIN_PART(SRC, held)
        }
        REST {
            const ROW x = SRC(j);
            JOIN(ROW, row_count, row_mean, row_squares, 1.0f, x, 0.0f)
        }
        JOIN_WORKERS
        const ROW centre = average, spread = deviations * SHARE;
#else
        WIDE wide = 0.0f, run = 0.0f;
        ROW total = 0.0f, centre = 0.0f;
        UP {
            FILL(SRC, held)
#ifndef RMS
            VECTORS {
                run += READ_AGAIN(SRC, held, i, j);
                END_RUN(wide, run, j)
            }
        }
        wide += run;
        REST total += SRC(j);
        centre = sum_of(wide, total, worker, shared) * SHARE;
        wide = 0.0f;
        run = 0.0f;
        total = 0.0f;
        {
#endif
            VECTORS {
                const WIDE x = READ_AGAIN(SRC, held, i, j) - centre;
                run += x * x;
                END_RUN(wide, run, j)
            }
        }
        wide += run;
        REST {
            const ROW x = SRC(j) - centre;
            total += x * x;
        }
        const ROW spread = sum_of(wide, total, worker, shared) * SHARE;
#endif
#ifdef KEEPS
        if (worker == 0 && length > 0) {
#ifndef RMS
            KEEP_MEAN(centre)
#endif
            KEEP_VARIANCE(spread)
        }
#endif
        const ROW factor = 1.0f / sqrt(spread + EPSILON);
#ifdef SAME
        WIDE own_scale = 1.0f, own_shift = 0.0f;
        if (length > 0) {
#ifdef HAS_SCALE
            own_scale = SCALE_WIDE(worker * LANES);
#endif
#ifdef HAS_SHIFT
            own_shift = SHIFT_WIDE(worker * LANES);
#endif
        }
#endif
        DOWN {
            REFILL(SRC, held, PARTS - 1)
            VECTORS {
                WIDE x = SHIFTED(SCALED(READ_AGAIN(SRC, held, i, j) - centre, j, _WIDE), j, _WIDE);
                FINISH_WIDE
                STORE_WIDE(j, x);
            }
        }
        REST {
            ROW x = SHIFTED(SCALED(SRC(j) - centre, j, ), j, );
            FINISH
            STORE(j, x);
        }
        PADDING { STORE_PADDING(j); }
    }
}
