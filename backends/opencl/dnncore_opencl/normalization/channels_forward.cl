// Group normalization by channels (channels.cl). With HELD, src is held in registers. Otherwise, or
// if it has several parts, it is read twice, soon after each other, so that the second time it is
// in a cache.

#define BATCH 4 // vectors that are read at once

__kernel GROUP_SIZE void channels_forward($parameters)
{
    SETS
    OVER_ITEMS {
        ROW_PLACE
#if HELD > 0
        HOLD(SRC, held);
#endif
#if HELD > 0 && PARTS == 1
        FILL(SRC, held)
        WIDE wide = 0.0f;
        ROW rest_sum = 0.0f;
        VECTORS wide += READ_AGAIN(SRC, held, i, j);
        REST rest_sum += SRC(j);
        const ROW average = sum_of(wide, rest_sum, worker, shared) / LENGTH;
        wide = 0.0f;
        rest_sum = 0.0f;
        VECTORS {
            const WIDE x = READ_AGAIN(SRC, held, i, j) - average;
            wide += x * x;
        }
        REST {
            const ROW x = SRC(j) - average;
            rest_sum += x * x;
        }
        const ROW deviations = sum_of(wide, rest_sum, worker, shared);
#else
        float wide_count = 0.0f, row_count = 0.0f;
        WIDE wide_mean = 0.0f, wide_squares = 0.0f;
        ROW row_mean = 0.0f, row_squares = 0.0f;
#if HELD > 0
        UP {
            FILL(SRC, held)
            JOIN_PART(SRC, held)
        }
#else
        INDEX at = worker * LANES;
        for (; at + ((BATCH - 1) * WORKERS + 1) * LANES <= length; at += BATCH * WORKERS * LANES) {
            WIDE batch[BATCH], m = 0.0f, s = 0.0f;
            _Pragma("unroll") for (int i = 0; i < BATCH; ++i)
                batch[i] = SRC_WIDE(at + i * WORKERS * LANES);
            _Pragma("unroll") for (int i = 0; i < BATCH; ++i) m += batch[i];
            m *= 1.0f / BATCH;
            _Pragma("unroll") for (int i = 0; i < BATCH; ++i) s += (batch[i] - m) * (batch[i] - m);
            JOIN(WIDE, wide_count, wide_mean, wide_squares, BATCH, m, s)
        }
        for (; at + LANES <= length; at += WORKERS * LANES) {
            const WIDE x = SRC_WIDE(at);
            JOIN(WIDE, wide_count, wide_mean, wide_squares, 1.0f, x, 0.0f)
        }
#endif
        REST {
            const ROW x = SRC(j);
            JOIN(ROW, row_count, row_mean, row_squares, 1.0f, x, 0.0f)
        }
        JOIN_WORKERS
#endif
        share(average, deviations, worker, joined);
        float centre = 0.0f, spread = 0.0f;
        for (int k = 0; k < SPAN; ++k) centre += OF_CHANNEL(0, k, average);
        centre *= 1.0f / SPAN;
        for (int k = 0; k < SPAN; ++k) {
            const float step = OF_CHANNEL(0, k, average) - centre;
            spread += OF_CHANNEL(1, k, deviations) + step * step * LENGTH;
        }
        spread *= SHARE;
#ifdef KEEPS
        if (worker == 0 && CHANNEL == 0 && length > 0) {
            KEEP_MEAN(centre)
            KEEP_VARIANCE(spread)
        }
#endif
        float factor = 1.0f / sqrt(spread + EPSILON), own_shift = 0.0f;
        if (length > 0) {
#ifdef HAS_SCALE
            factor *= TAKE_SCALE;
#endif
#ifdef HAS_SHIFT
            own_shift = TAKE_SHIFT;
#endif
        }
        DOWN {
            REFILL(SRC, held, PARTS - 1)
            SEVERAL VECTORS {
                WIDE x = (READ_AGAIN(SRC, held, i, j) - centre) * factor + own_shift;
                FINISH_WIDE
                STORE_WIDE(j, x);
            }
        }
        REST {
            ROW x = (SRC(j) - centre) * factor + own_shift;
            FINISH
            STORE(j, x);
        }
    }
}
