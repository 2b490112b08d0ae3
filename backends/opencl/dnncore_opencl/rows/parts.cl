// The second stage of sums.cl or, with MOMENTS, of moments.cl. LEFT(k, part) is the k-th number that
// the first stage left for a part of a set. The numbers of moments are those of elements, their
// average and the sum of squared deviations.

REDUCTION(sum_of, ADD)

__kernel GROUP_SIZE void parts($parameters)
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
