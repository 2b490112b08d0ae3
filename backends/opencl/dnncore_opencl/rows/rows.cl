// Definitions for kernels over rows. A row has the LENGTH elements along one axis, PADDED_LENGTH
// with padding. An item (groups.cl) is a row or, if rows are adjacent in memory, a vector of rows.
// Its workers process it in WIDE vectors, and the rest in single ROWs. Unless HELD is 0, a worker
// keeps HELD vectors between passes. It keeps them as stored in memory, because halves need half
// the registers of their values. If a row has PARTS of so many vectors, passes go UP and DOWN in
// turn: the last part of a pass is the first of the next one and need not be read again (REFILL).
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
        for (INDEX j = ((PART * HELD + i) * WORKERS + worker) * LANES; j + LANES <= length;        \
             j = length)
#define HOLD(NAME, held) NAME##_HELD held[HELD]
#define FILL(NAME, held) VECTORS held[i] = NAME##_BITS(j);
#define READ(NAME, held, i, j) NAME##_OF((held[i] = NAME##_BITS(j)))
#define READ_AGAIN(NAME, held, i, j) NAME##_OF(held[i])
#else
#define VECTORS for (INDEX j = worker * LANES; j + LANES <= length; j += WORKERS * LANES)
#define HOLD(NAME, held)
#define FILL(NAME, held)
#define PARTS 1
#define READ(NAME, held, i, j) NAME##_WIDE(j)
#define READ_AGAIN READ
#endif
#if PARTS > 1
#define PART part
#define UP _Pragma("unroll 1") for (int part = 0; part < PARTS; ++part)
#define DOWN _Pragma("unroll 1") for (int part = PARTS - 1; part >= 0; --part)
#define REFILL(NAME, held, kept) if (part != kept) FILL(NAME, held)
#else
#define PART 0
#define UP
#define DOWN
#define REFILL(NAME, held, kept)
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

// Adds the vectors of a part to a set (sets.cl). Their average and deviations are exact up to
// rounding.
#define JOIN_PART(NAME, held)                                                                      \
    {                                                                                              \
        float n = 0.0f;                                                                            \
        WIDE m = 0.0f, s = 0.0f;                                                                   \
        VECTORS {                                                                                  \
            m += READ_AGAIN(NAME, held, i, j);                                                     \
            n += 1.0f;                                                                             \
        }                                                                                          \
        m *= 1.0f / fmax(n, 1.0f);                                                                 \
        VECTORS {                                                                                  \
            const WIDE step = READ_AGAIN(NAME, held, i, j) - m;                                    \
            s += step * step;                                                                      \
        }                                                                                          \
        if (n > 0.0f) JOIN(WIDE, wide_count, wide_mean, wide_squares, n, m, s)                     \
    }

#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a)) // ignores NaN, which the sum of exponentials contains

REDUCTION(sum_of, ADD)
REDUCTION(max_of, LARGER)
