#define PARTS p2
#define LEFT(k, part) (*(__global const float4 *)(left + 0 + ((part) * p1 + element) * 4 + k * p0))
#define LEFT_COUNT(part) left[0 + ((part) * p1 + element) * 4 + 2 * p0]
#define MOMENTS 
#define KEEP *(__global float4 *)(d0 + 0 + k0) = average; *(__global float4 *)(d1 + 0 + k0) = deviations / total; 
#define SET const INDEX vector = rest; const INDEX k0 = vector * 4; 
#define EXISTS 1
#define LANES 1
#define ROW float4
#define WIDE float4
#define WORKERS 8
#define SPAN 8
#define ACROSS 
#define ITEMS p3
#define COUNT p4
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

// The second stage of sums.cl or, with MOMENTS, of moments.cl. LEFT(k, part) is the k-th number that
// the first stage left for a part of a set. The numbers of moments are those of elements, their
// average and the sum of squared deviations.

REDUCTION(sum_of, ADD)

__kernel GROUP_SIZE void parts(
    __global const float *left,
    __global float *d0,
    __global float *d1,
    const int p0,
    const int p1,
    const int p2,
    const int p3,
    const int p4)
{
    OVER_ITEMS {
        const INDEX element = item;
        INDEX rest = item;
        SET
        const int exists = item < ITEMS && EXISTS;
        const INDEX end = exists ? PARTS : 0;
#ifdef MOMENTS
        const float wide_count = 0.0f;
        const WIDE wide_mean = 0.0f, wide_squares = 0.0f;
        float row_count = 0.0f;
        ROW row_mean = 0.0f, row_squares = 0.0f;
        for (INDEX part = worker; part < end; part += WORKERS) {
            const float n = LEFT_COUNT(part);
            const ROW m = LEFT(0, part), s = LEFT(1, part);
            if (n > 0.0f) JOIN(ROW, row_count, row_mean, row_squares, n, m, s)
        }
        JOIN_WORKERS
#else
        ROW row_a = 0.0f, row_b = 0.0f;
        for (INDEX part = worker; part < end; part += WORKERS) {
            row_a += LEFT(0, part);
#ifdef HAS_TWO
            row_b += LEFT(1, part);
#endif
        }
        const ROW total_a = sum_of((WIDE)(0.0f), row_a, worker, shared);
#ifdef HAS_TWO
        const ROW total_b = sum_of((WIDE)(0.0f), row_b, worker, shared);
#endif
#endif
        if (worker > 0 || !exists) continue;
        KEEP
    }
}
