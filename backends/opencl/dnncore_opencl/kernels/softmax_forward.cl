// Softmax, or with LOG log-softmax, of rows (rows.cl): dst = exp(src - largest) / total.

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
            const WIDE value = READ_AGAIN(held, i, src + SRC_AT(j));
            STORE_WIDE(dst + DST_AT(j), value - largest - total);
        }
        REST STORE(dst + DST_AT(j), LOAD(src + SRC_AT(j)) - largest - total);
#else
        VECTORS {
            const WIDE value = exp(READ_AGAIN(held, i, src + SRC_AT(j)) - largest);
            wide += value;
            KEEP(held, i, dst + DST_AT(j), value);
        }
        REST {
            const ROW value = exp(LOAD(src + SRC_AT(j)) - largest);
            total += value;
            STORE(dst + DST_AT(j), value);
        }
        const ROW scale = 1.0f / sum_of(wide, total, worker, shared);
        VECTORS STORE_WIDE(dst + DST_AT(j), READ_AGAIN(held, i, dst + DST_AT(j)) * scale);
        REST STORE(dst + DST_AT(j), LOAD(dst + DST_AT(j)) * scale);
#endif
        PADDING STORE(dst + DST_AT(j), 0.0f);
    }
}
