// Softmax, or with LOG log-softmax, of rows (rows.cl): dst = exp(src - largest) / total.
// FINISH_WIDE and FINISH are the steps that x goes through before it is stored.

#ifdef READS_DST // which cannot keep exponentials then
#define KEEP_EXP(held, i, pointer, value)
#define STORE_EXP(pointer, value)
#define EXP_AGAIN(held, i, j) exp(READ_AGAIN(held, i, src + SRC_AT(j)) - largest)
#define LOAD_EXP(j) exp(LOAD(src + SRC_AT(j)) - largest)
#else
#define KEEP_EXP KEEP
#define STORE_EXP STORE
#define EXP_AGAIN(held, i, j) READ_AGAIN(held, i, dst + DST_AT(j))
#define LOAD_EXP(j) LOAD(dst + DST_AT(j))
#endif

__kernel void softmax_forward(BUFFERS PARAMETERS)
{
    ROWS {
        ROW_PLACE
        HOLD(held);
        WIDE wide = -INFINITY;
        ROW largest = -INFINITY;
        VECTORS {
            const WIDE value = READ(held, i, src + SRC_AT(j));
            wide = LARGER(wide, value);
        }
        REST {
            const ROW value = LOAD(src + SRC_AT(j));
            largest = LARGER(largest, value);
        }
        largest = max_of(wide, largest, worker, shared);
        ROW total = 0.0f;
        wide = 0.0f;
#ifdef LOG
        VECTORS wide += exp(READ_AGAIN(held, i, src + SRC_AT(j)) - largest);
        REST total += exp(LOAD(src + SRC_AT(j)) - largest);
        total = log(sum_of(wide, total, worker, shared));
        VECTORS {
            WIDE x = READ_AGAIN(held, i, src + SRC_AT(j)) - largest - total;
            FINISH_WIDE
            STORE_WIDE(dst + DST_AT(j), x);
        }
        REST {
            ROW x = LOAD(src + SRC_AT(j)) - largest - total;
            FINISH
            STORE(dst + DST_AT(j), x);
        }
#else
        VECTORS {
            const WIDE value = exp(READ_AGAIN(held, i, src + SRC_AT(j)) - largest);
            wide += value;
            KEEP_EXP(held, i, dst + DST_AT(j), value);
        }
        REST {
            const ROW value = exp(LOAD(src + SRC_AT(j)) - largest);
            total += value;
            STORE_EXP(dst + DST_AT(j), value);
        }
        const ROW scale = 1.0f / sum_of(wide, total, worker, shared);
        VECTORS {
            WIDE x = EXP_AGAIN(held, i, j) * scale;
            FINISH_WIDE
            STORE_WIDE(dst + DST_AT(j), x);
        }
        REST {
            ROW x = LOAD_EXP(j) * scale;
            FINISH
            STORE(dst + DST_AT(j), x);
        }
#endif
        PADDING STORE(dst + DST_AT(j), 0.0f);
    }
}
