// One pass over tensors that share a logical shape. An element of the result depends on the
// operands' elements at its place. A work-item computes COUNT of the ITEMS, which are boxes of the
// two innermost loops. DECODE splits `rest` into the outer loops' variables and the box's bounds,
// and sets each tensor's offset. WIDE_STEP computes LANES elements from `t` on, STEP computes one.

#ifdef ONE_VECTOR // a box is one vector
#define ROWS(r) const INDEX r = r_begin;
#define VECTORS if
#else
#define ROWS(r) for (INDEX r = r_begin; r < r_end; ++r)
#define VECTORS while
#endif

__kernel void elementwise($parameters)
{
    const INDEX first = (INDEX)get_global_id(0) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        ROWS(r) {
            INDEX t = t_begin;
            VECTORS (t + LANES <= t_end) {
                WIDE_STEP
                t += LANES;
            }
            for (; t < t_end; ++t) {
                STEP
            }
        }
    }
}
