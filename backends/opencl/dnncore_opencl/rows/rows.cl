// Definitions for kernels over rows. A row has the LENGTH elements along one axis, PADDED_LENGTH
// with padding. An item (groups.cl) is a row or, if rows are adjacent in memory, a vector of rows.
// Its workers process it in WIDE vectors, and the rest in single ROWs. A worker with at most HELD
// vectors keeps them between passes, unless HELD is 0. It keeps them as stored in memory, because
// halves need half the registers of their values.
//
// DECODE sets the tensors' offsets from `rest`. EXISTS: whether the result has the row. INSIDE:
// whether the row is not padding, which is zero.

#define ROW_PLACE                                                                                  \
    INDEX rest = item;                                                                             \
    DECODE                                                                                         \
    const int exists = item < ITEMS && EXISTS;                                                     \
    const INDEX padded_length = exists ? PADDED_LENGTH : 0;                                        \
    const INDEX length = exists && INSIDE ? LENGTH : 0;

#define REST for (INDEX j = length / LANES * LANES + worker; j < length; j += WORKERS)
#define PADDING for (INDEX j = length + worker; j < padded_length; j += WORKERS)

#if HELD > 0
#define VECTORS                                                                                    \
    _Pragma("unroll") for (int i = 0; i < HELD; ++i)                                               \
        for (INDEX j = (i * WORKERS + worker) * LANES; j + LANES <= length; j = length)
#define HOLD(NAME, held) NAME##_HELD held[HELD]
#define READ(NAME, held, i, j) NAME##_OF((held[i] = NAME##_BITS(j)))
#define READ_AGAIN(NAME, held, i, j) NAME##_OF(held[i])
#else
#define VECTORS for (INDEX j = worker * LANES; j + LANES <= length; j += WORKERS * LANES)
#define HOLD(NAME, held)
#define READ(NAME, held, i, j) NAME##_WIDE(j)
#define READ_AGAIN READ
#endif

// With RUN, a worker adds sums of runs of RUN vectors, because one running sum would lose digits.
#ifdef RUN
#define END_RUN(sum, run, j)                                                                       \
    if ((j) / (WORKERS * LANES) % RUN == RUN - 1) {                                                \
        sum += run;                                                                                \
        run = 0.0f;                                                                                \
    }
#else
#define END_RUN(sum, run, j)
#endif

#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a)) // ignores NaN, which the sum of exponentials contains

REDUCTION(sum_of, ADD)
REDUCTION(max_of, LARGER)
