// The second launch of a product whose k is split. It adds the parts in an order that does not
// depend on timing. Parts are `step` vectors apart. Their elements are in the order of c, in lines
// that are `line` vectors apart.
//
// WAYS work-items compute a vector of LANES elements. Each adds every WAYS-th part. An element has
// eight digits, slowest first; the last one counts vectors. COORDINATES are those of the element in
// a lane, in the order of post_ops. The parts of integers are the bits of a SUM, which is a uint.

#define GROUP 64
#define IN_GROUP (GROUP / WAYS)  // vectors

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void gemm_reduce($parameters) {
    const int item = get_local_id(0), way = item / IN_GROUP;
    const int vector = get_group_id(0) * IN_GROUP + item % IN_GROUP;
    const int lines = quotient(vector, inner.w, inner_inverse.w);
    const int within = vector - lines * inner.w;
    partial += first + lines * line + within;
    SUMS sum = 0;
    if (vector < vectors)
        for (int i = way; i < parts; i += WAYS) sum += AS_SUMS(partial[(size_t)i * step]);
#if WAYS > 1
    __local SUMS sums[GROUP];
    sums[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 1; i < WAYS; i++) sum += sums[(item + i * IN_GROUP) % GROUP];
#endif
    if (way == 0 && vector < vectors) {
        int4 in = quick_digits(vector, inner, inner_inverse);
        const int rest = quotient(in.x, inner.x, inner_inverse.x);
        in.x -= rest * inner.x;
        const int4 out = quick_digits(rest, outer, outer_inverse);
        __global RESULTS *at =
            (__global RESULTS *)(c + c_first + DOT4(c_outer, out) + DOT4(c_inner, in));
        RESULTS results = 0;
#ifdef POST_READS_DST
        results = *at;
#endif
        for (int lane = 0; lane < LANES; lane++) {
#ifdef POST_READS_DST
            const REAL old = FROM_RESULT(((RESULT *)&results)[lane]);
#else
            const REAL old = 0;
#endif
            const REAL own = SUM_VALUE(((SUM *)&sum)[lane]);
            const REAL x = post_ops(own, old, COORDINATES(lane) POST_ARGS);
            ((RESULT *)&results)[lane] = TO_RESULT(x);
        }
        *at = results;
    }
}
