#define ELEMENTS p0
#define BOXES p1
#define BOXES_PER_PART p2
#define SET const INDEX vector = rest; const INDEX k0 = vector * 4; 
#define EXISTS 1
#define SHARED_VALUES const INDEX s0_at = 0 + k0; 
#define BOX const INDEX r_box = 0; const INDEX t_box = rest; const INDEX r_begin = r_box * p4; const INDEX r_end = min(r_begin + p4, p5); const INDEX t_begin = t_box * p6; const INDEX t_end = min(t_begin + p6, p7); const INDEX s0_box = s0_at; 
#define IS_TERM 1
#define LOAD_WIDE ((*(__global const float4 *)(s0 + s0_box + t * p8)))
#define LOAD_ROW ((*(__global const float4 *)(s0 + s0_box + t * p8)))
#define HELD 4
#define KEEP *(__global float4 *)(left + 0 + item * 4 + 0 * p3) = average; *(__global float4 *)(left + 0 + item * 4 + 1 * p3) = deviations; *(__global float4 *)(left + 0 + item * 4 + 2 * p3) = total;
#define LANES 1
#define ROW float4
#define WIDE float4
#define WORKERS 8
#define SPAN 32
#define ACROSS 
#define ITEMS p9
#define COUNT p10
#define INDEX int
#define UINDEX uint
// Items shared by work-items. WORKERS work-items share an item, and a work-group has SPAN items.
// Neighbouring work-items belong to one item. With ACROSS, they have the same share of neighbouring
// items. A single worker computes COUNT of the ITEMS. The result of an item is a ROW. WIDE has
// LANES ROWs.

#if WORKERS == 1
#define SHARED __local ROW *const shared = 0;
#define GROUP_SIZE
#define WORKER 0
#define ITEM get_global_id(0)
#else
#define SHARED __local ROW shared[WORKERS * SPAN];
#define GROUP_SIZE __attribute__((reqd_work_group_size(WORKERS * SPAN, 1, 1)))
#ifdef ACROSS
#define WORKER (int)get_local_id(0) / SPAN
#define ITEM (get_group_id(0) * SPAN + get_local_id(0) % SPAN)
#else
#define WORKER (int)get_local_id(0) % WORKERS
#define ITEM (get_group_id(0) * SPAN + get_local_id(0) / WORKERS)
#endif
#endif

// With several workers, all work-items execute the body, because it has barriers.
#define OVER_ITEMS                                                                                 \
    SHARED                                                                                         \
    const int worker = WORKER;                                                                     \
    const INDEX first = (INDEX)ITEM * COUNT;                                                       \
    const INDEX last = WORKERS == 1 ? min(first + COUNT, ITEMS) : first + COUNT;                   \
    for (INDEX item = first; item < last; ++item)

// A function that combines the lanes of `wide`, `rest`, and the values of the item's other workers.
// All workers get the result. With SHUFFLE, which reads a neighbour's float, steps within SUB_GROUP
// work-items need no barrier.
#define REDUCTION(NAME, COMBINE)                                                                   \
    static inline ROW NAME(const WIDE wide, ROW rest, const int worker, __local ROW *shared)       \
    {                                                                                              \
        const ROW *lanes = (const ROW *)&wide;                                                     \
        for (int i = 0; i < LANES; ++i) rest = COMBINE(rest, lanes[i]);                            \
        COMBINE_WORKERS(COMBINE)                                                                   \
        return rest;                                                                               \
    }

#if WORKERS == 1
#define COMBINE_WORKERS(COMBINE)
#elif defined(SHUFFLE) && !defined(ACROSS)
#define SUB_GROUPS (WORKERS > SUB_GROUP ? WORKERS / SUB_GROUP : 1) // per item
// A shuffle must not be an operand of COMBINE: all work-items must execute it, but COMBINE may skip
// operands.
#define COMBINE_NEIGHBOURS(COMBINE, count)                                                         \
    for (int i = 1; i < count; i *= 2) {                                                           \
        const ROW other = SHUFFLE(rest, i);                                                        \
        rest = COMBINE(rest, other);                                                               \
    }
#define COMBINE_WORKERS(COMBINE)                                                                   \
    COMBINE_NEIGHBOURS(COMBINE, (WORKERS < SUB_GROUP ? WORKERS : SUB_GROUP))                       \
    if (SUB_GROUPS > 1) {                                                                          \
        const int own = get_local_id(0) / SUB_GROUP;                                               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        shared[own] = rest;                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        rest = shared[own / SUB_GROUPS * SUB_GROUPS + worker % SUB_GROUPS];                        \
        COMBINE_NEIGHBOURS(COMBINE, SUB_GROUPS)                                                    \
    }
#else
#ifdef ACROSS
#define STEP SPAN
#else
#define STEP 1
#endif
#define COMBINE_WORKERS(COMBINE)                                                                   \
    __local ROW *mine = shared + get_local_id(0);                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    *mine = rest;                                                                                  \
    for (int i = WORKERS / 2; i > 0; i /= 2) {                                                     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (worker < i) *mine = COMBINE(*mine, mine[i * STEP]);                                    \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    rest = mine[-worker * STEP];
#endif

// Definitions for kernels over sets of elements. SET decodes an item's set from `rest`. EXISTS: whether
// there is such a set. SHARED_VALUES reads what all of its elements share. BOX sets a box's bounds.

#define ADD(a, b) ((a) + (b))

#define SET_PLACE                                                                                  \
    const INDEX part = item / ELEMENTS, element = item % ELEMENTS;                                 \
    INDEX rest = element;                                                                          \
    SET                                                                                            \
    const int exists = item < ITEMS && EXISTS;                                                     \
    SHARED_VALUES                                                                                  \
    const INDEX end = exists ? min((part + 1) * BOXES_PER_PART, BOXES) : 0;

#if WORKERS > 1
#define UNROLLED _Pragma("unroll 4") // so that loads do not wait for each other
#else
#define UNROLLED
#endif
#define OVER_TERMS(start, step)                                                                    \
    UNROLLED                                                                                       \
    for (INDEX t = start + worker * step; t + step <= t_end; t += WORKERS * step)                  \
        if (IS_TERM)

// Adds a set of `n` elements with the average `m` and the sum of squared deviations `s` to another
// one. Both terms of the new sum are positive, so no digits cancel.
// (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
// variances".)
#define JOIN(TYPE, count, mean, squares, n, m, s)                                                  \
    {                                                                                              \
        const float both = count + n, share = n / both;                                            \
        const TYPE step = (m) - mean;                                                              \
        squares += (s) + step * step * (count * share);                                            \
        mean += step * share;                                                                      \
        count = both;                                                                              \
    }

// The average of all parts' averages, and the sum of squared deviations from it.
#define JOIN_WORKERS                                                                               \
    const ROW total = sum_of((WIDE)(wide_count), (ROW)(row_count), worker, shared);                \
    const ROW parts = sum_of(wide_mean * wide_count, row_mean * row_count, worker, shared);        \
    const ROW average = parts / fmax(total, 1.0f);                                                 \
    const WIDE wide_step = wide_mean - average;                                                    \
    const ROW row_step = row_mean - average;                                                       \
    const ROW deviations = sum_of(wide_squares + wide_step * wide_step * wide_count,               \
                                  row_squares + row_step * row_step * row_count, worker, shared);

// Average and sum of squared deviations of sets of elements (statistics.py). A work-item reads HELD
// vectors at once. Their average and deviations are exact up to rounding, because the vectors are
// held in registers. They are joined with those of the vectors before, per lane.

REDUCTION(sum_of, ADD)

__kernel GROUP_SIZE void moments(
    __global const float *s0,
    __global float *left,
    const int p0,
    const int p1,
    const int p2,
    const int p3,
    const int p4,
    const int p5,
    const int p6,
    const int p7,
    const int p8,
    const int p9,
    const int p10)
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
