// What kernels over rows share. A row is what lies along one axis, LENGTH elements, PADDED_LENGTH
// with padding; an item is a row or, where rows lie side by side, a vector of rows. WORKERS
// work-items share an item and go through it in vectors, WIDE of LANES ROWs, and single ROWs for the
// rest; alone, a work-item takes COUNT of the ITEMS. A worker that meets at most HELD vectors, if
// HELD is not 0, keeps them between its passes.
//
// DECODE sets the tensors' offsets from `rest`; EXISTS tells whether the result has such a row,
// INSIDE whether it is none of padding, which is zero.

#define ROWS                                                                                       \
    __local ROW shared[WORKERS];                                                                   \
    const int worker = WORKERS == 1 ? 0 : (int)get_local_id(0);                                    \
    const INDEX first = (INDEX)(WORKERS == 1 ? get_global_id(0) : get_group_id(0)) * COUNT;        \
    const INDEX last = min(first + COUNT, ITEMS);                                                  \
    for (INDEX item = first; item < last; ++item)

#define ROW_PLACE                                                                                  \
    INDEX rest = item;                                                                             \
    DECODE                                                                                         \
    const INDEX padded_length = EXISTS ? PADDED_LENGTH : 0;                                        \
    const INDEX length = EXISTS && INSIDE ? LENGTH : 0;

#define REST for (INDEX j = length / LANES * LANES + worker; j < length; j += WORKERS)
#define PADDING for (INDEX j = length + worker; j < padded_length; j += WORKERS)

#if HELD > 0
#define VECTORS                                                                                    \
    _Pragma("unroll") for (int i = 0; i < HELD; ++i)                                               \
        for (INDEX j = (i * WORKERS + worker) * LANES; j + LANES <= length; j = length)
#define HOLD(held) WIDE held[HELD]
#define READ(held, i, pointer) (held[i] = LOAD_WIDE(pointer))
#define READ_AGAIN(held, i, pointer) held[i]
#define KEEP(held, i, pointer, value) held[i] = value
#else
#define VECTORS for (INDEX j = worker * LANES; j + LANES <= length; j += WORKERS * LANES)
#define HOLD(held)
#define READ(held, i, pointer) LOAD_WIDE(pointer)
#define READ_AGAIN READ
#define KEEP(held, i, pointer, value) STORE_WIDE(pointer, value)
#endif

#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a)) // ignores NaN, which the sum of exponentials meets

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
