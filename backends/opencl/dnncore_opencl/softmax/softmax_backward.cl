// The gradient of softmax or, with LOG, of log-softmax, by rows (rows.cl). y is the result of
// forward. diff_src = y * (diff - total) or, with LOG, diff - exp(y) * total. total is the sum of
// the TERMs.

#ifdef LOG
#define TERM(y, diff) (diff)
#define RESULT(y, diff) ((diff) - exp(y) * total)
#else
#define TERM(y, diff) ((diff) * (y))
#define RESULT(y, diff) ((y) * ((diff) - total))
#endif

__kernel GROUP_SIZE void softmax_backward($parameters)
{
    OVER_ITEMS {
        ROW_PLACE
        HOLD(DST, held_y);
        HOLD(DIFF_DST, held_diff);
        WIDE wide = 0.0f, run = 0.0f;
        ROW total = 0.0f;
        VECTORS {
            const WIDE y = READ(DST, held_y, i, j);
            const WIDE diff = READ(DIFF_DST, held_diff, i, j);
            run += TERM(y, diff);
            END_RUN(wide, run, j)
        }
        wide += run;
        REST total += TERM(DST(j), DIFF_DST(j));
        total = sum_of(wide, total, worker, shared);
        VECTORS {
            const WIDE y = READ_AGAIN(DST, held_y, i, j);
            const WIDE diff = READ_AGAIN(DIFF_DST, held_diff, i, j);
            WIDE x = RESULT(y, diff);
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
        REST {
            const ROW y = DST(j), diff = DIFF_DST(j);
            ROW x = RESULT(y, diff);
            FINISH
            STORE(j, x);
        }
        PADDING { STORE_PADDING(j); }
    }
}
