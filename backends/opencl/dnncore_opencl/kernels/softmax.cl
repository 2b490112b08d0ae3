// Softmax and log-softmax along one axis, and their gradients. A row is what lies along the axis,
// LENGTH elements, with padding PADDED_LENGTH; an item is a row, or, where rows lie side by side, a
// vector of rows. WORKERS work-items share a row and go through it in vectors, WIDE of LANES ROWs;
// alone, a work-item takes COUNT of the ITEMS. DECODE sets the tensors' offsets from `rest`; EXISTS
// tells whether the result has such a row, INSIDE whether it is none of padding, which is zero.

#define VECTORS for (INDEX j = worker * LANES; j + LANES <= length; j += WORKERS * LANES)
#define REST for (INDEX j = length / LANES * LANES + worker; j < length; j += WORKERS)

#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a))  // ignores NaN, which the sum of exponentials meets

// A function that combines the lanes of `wide`, `rest`, and what the other workers have of them.
#define REDUCTION(NAME, COMBINE)                                                                   \
    static inline ROW NAME(const WIDE wide, ROW rest, const int worker, __local ROW *shared)       \
    {                                                                                              \
        const ROW *lanes = (const ROW *)&wide;                                                     \
        for (int i = 0; i < LANES; ++i) rest = COMBINE(rest, lanes[i]);                            \
        if (WORKERS == 1) return rest;                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        shared[worker] = rest;                                                                     \
        for (int i = WORKERS / 2; i > 0; i /= 2) {                                                 \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            if (worker < i) shared[worker] = COMBINE(shared[worker], shared[worker + i]);          \
        }                                                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        return shared[0];                                                                          \
    }

REDUCTION(sum_of, ADD)
REDUCTION(max_of, LARGER)

__kernel void softmax(BUFFERS PARAMETERS)
{
    __local ROW shared[WORKERS];
    const int worker = WORKERS == 1 ? 0 : (int)get_local_id(0);
    const INDEX first = (INDEX)(WORKERS == 1 ? get_global_id(0) : get_group_id(0)) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        const INDEX padded_length = EXISTS ? PADDED_LENGTH : 0;
        const INDEX length = EXISTS && INSIDE ? LENGTH : 0;
        WIDE wide = 0.0f;
        ROW total = 0.0f;
#if defined(FORWARD)
        wide = -INFINITY;
        ROW largest = -INFINITY;
        VECTORS {
            const WIDE value = LOAD_WIDE(src + SRC_AT(j));
            wide = LARGER(wide, value);
        }
        REST {
            const ROW value = LOAD(src + SRC_AT(j));
            largest = LARGER(largest, value);
        }
        largest = max_of(wide, largest, worker, shared);
        wide = 0.0f;
#if defined(LOG)
        VECTORS wide += exp(LOAD_WIDE(src + SRC_AT(j)) - largest);
        REST total += exp(LOAD(src + SRC_AT(j)) - largest);
        const ROW log_total = log(sum_of(wide, total, worker, shared));
        VECTORS STORE_WIDE(dst + DST_AT(j), LOAD_WIDE(src + SRC_AT(j)) - largest - log_total);
        REST STORE(dst + DST_AT(j), LOAD(src + SRC_AT(j)) - largest - log_total);
#else
        VECTORS {
            const WIDE value = exp(LOAD_WIDE(src + SRC_AT(j)) - largest);
            wide += value;
            STORE_WIDE(dst + DST_AT(j), value);
        }
        REST {
            const ROW value = exp(LOAD(src + SRC_AT(j)) - largest);
            total += value;
            STORE(dst + DST_AT(j), value);
        }
        const ROW scale = 1.0f / sum_of(wide, total, worker, shared);
        VECTORS STORE_WIDE(dst + DST_AT(j), LOAD_WIDE(dst + DST_AT(j)) * scale);
        REST STORE(dst + DST_AT(j), LOAD(dst + DST_AT(j)) * scale);
#endif
        for (INDEX j = length + worker; j < padded_length; j += WORKERS)
            STORE(dst + DST_AT(j), 0.0f);
#else
#if defined(LOG)
#define TERM(y, diff) (diff)
#define RESULT(y, diff) ((diff) - exp(y) * total)
#else
#define TERM(y, diff) ((diff) * (y))
#define RESULT(y, diff) ((y) * ((diff) - total))
#endif
        VECTORS wide += TERM(LOAD_WIDE(dst + DST_AT(j)), LOAD_WIDE(diff_dst + DIFF_DST_AT(j)));
        REST total += TERM(LOAD(dst + DST_AT(j)), LOAD(diff_dst + DIFF_DST_AT(j)));
        total = sum_of(wide, total, worker, shared);
        VECTORS {
            const WIDE y = LOAD_WIDE(dst + DST_AT(j)), diff = LOAD_WIDE(diff_dst + DIFF_DST_AT(j));
            STORE_WIDE(diff_src + DIFF_SRC_AT(j), RESULT(y, diff));
        }
        REST {
            const ROW y = LOAD(dst + DST_AT(j)), diff = LOAD(diff_dst + DIFF_DST_AT(j));
            STORE(diff_src + DIFF_SRC_AT(j), RESULT(y, diff));
        }
        for (INDEX j = length + worker; j < padded_length; j += WORKERS)
            STORE(diff_src + DIFF_SRC_AT(j), 0.0f);
#endif
    }
}
