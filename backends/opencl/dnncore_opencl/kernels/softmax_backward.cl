// The gradient of softmax, or with LOG of log-softmax, of rows (rows.cl), with y the forward result:
// diff_src = y * (diff - total) or diff - exp(y) * total, where total is the sum of the TERMs.

#ifdef LOG
#define TERM(y, diff) (diff)
#define RESULT(y, diff) ((diff) - exp(y) * total)
#else
#define TERM(y, diff) ((diff) * (y))
#define RESULT(y, diff) ((y) * ((diff) - total))
#endif

__kernel void softmax_backward(BUFFERS PARAMETERS)
{
    ROWS {
        ROW_PLACE
        HOLD(held_y);
        HOLD(held_diff);
        WIDE wide = 0.0f;
        ROW total = 0.0f;
        VECTORS {
            const WIDE y = READ(held_y, i, dst + DST_AT(j));
            const WIDE diff = READ(held_diff, i, diff_dst + DIFF_DST_AT(j));
            wide += TERM(y, diff);
        }
        REST total += TERM(LOAD(dst + DST_AT(j)), LOAD(diff_dst + DIFF_DST_AT(j)));
        total = sum_of(wide, total, worker, shared);
        VECTORS {
            const WIDE y = READ_AGAIN(held_y, i, dst + DST_AT(j));
            const WIDE diff = READ_AGAIN(held_diff, i, diff_dst + DIFF_DST_AT(j));
            WIDE x = RESULT(y, diff);
            FINISH_WIDE
            STORE_WIDE(diff_src + DIFF_SRC_AT(j), x);
        }
        REST {
            const ROW y = LOAD(dst + DST_AT(j)), diff = LOAD(diff_dst + DIFF_DST_AT(j));
            ROW x = RESULT(y, diff);
            FINISH
            STORE(diff_src + DIFF_SRC_AT(j), x);
        }
        PADDING STORE(diff_src + DIFF_SRC_AT(j), 0.0f);
    }
}
