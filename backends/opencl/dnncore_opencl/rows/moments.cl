// Average and sum of squared deviations of sets of elements (statistics.py). A work-item reads HELD
// vectors at once. Their average and deviations are exact up to rounding, because the vectors are
// held in registers. They are joined with those of the vectors before, per lane.

REDUCTION(sum_of, ADD)

__kernel GROUP_SIZE void moments($parameters)
{
    OVER_ITEMS {
        SET_PLACE
        float wide_count = 0.0f, row_count = 0.0f;
        WIDE wide_mean = 0.0f, wide_squares = 0.0f;
        ROW row_mean = 0.0f, row_squares = 0.0f;
        for (INDEX box = part * BOXES_PER_PART; box < end; ++box) {
            INDEX rest = box;
            BOX
            for (INDEX r = r_begin; r < r_end; ++r) {
                INDEX start = t_begin;
#ifdef HELD
                const INDEX span = WORKERS * LANES;
                for (; start + HELD * span <= t_end; start += HELD * span) {
                    WIDE held[HELD], m = 0.0f, s = 0.0f;
                    _Pragma("unroll") for (int i = 0; i < HELD; ++i) {
                        const INDEX t = start + worker * LANES + i * span;
                        held[i] = LOAD_WIDE;
                        m += held[i];
                    }
                    m *= 1.0f / HELD;
                    _Pragma("unroll") for (int i = 0; i < HELD; ++i)
                        s += (held[i] - m) * (held[i] - m);
                    JOIN(WIDE, wide_count, wide_mean, wide_squares, HELD, m, s)
                }
#endif
                OVER_TERMS(start, LANES) {
                    const WIDE x = LOAD_WIDE;
                    JOIN(WIDE, wide_count, wide_mean, wide_squares, 1.0f, x, 0.0f)
                }
                OVER_TERMS(t_end - (t_end - t_begin) % LANES, 1) {
                    const ROW x = LOAD_ROW;
                    JOIN(ROW, row_count, row_mean, row_squares, 1.0f, x, 0.0f)
                }
            }
        }
        JOIN_WORKERS
        if (worker > 0 || !exists) continue;
        KEEP
    }
}
