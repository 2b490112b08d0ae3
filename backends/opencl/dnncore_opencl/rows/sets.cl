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
