// Each element of a result is combined from terms. An item (groups.cl) is a part of the boxes of
// terms of one element, or of SIDE contiguous elements. Its workers process it in WIDE vectors of
// terms, and the rest in single ROWs. Boxes are combined one after the other, so long sums lose few
// digits.
//
// KEPT computes from `rest` where an element's terms begin in src. EXISTS: whether the element
// exists. INSIDE: whether it is not padding, which is zero. BOX sets a box's bounds. A kernel with
// DST_AT applies the epilogue. A kernel without it stores an item's result at LEFT_AT for the next
// stage.

REDUCTION(combined, COMBINE)

#if WORKERS > 1
#define UNROLLED _Pragma("unroll 4") // so that loads do not wait for each other
#else
#define UNROLLED
#endif
#define OVER_TERMS(start, step)                                                                    \
    UNROLLED                                                                                       \
    for (INDEX t = start + worker * step; t + step <= t_end; t += WORKERS * step)                  \
        if (IS_TERM)

__kernel GROUP_SIZE
void reduction($parameters)
{
    OVER_ITEMS {
        const INDEX part = item / ELEMENTS, element = item % ELEMENTS;
        INDEX rest = element;
        KEPT
        const int exists = item < ITEMS && EXISTS, inside = exists && INSIDE;
        const INDEX end = inside ? min((part + 1) * BOXES_PER_PART, BOXES) : 0;
        WIDE wide = START;
        ROW single = START;
        for (INDEX box = part * BOXES_PER_PART; box < end; ++box) {
            INDEX rest = box;
            BOX
            WIDE wide_in_box = START;
            ROW single_in_box = START;
            for (INDEX r = r_begin; r < r_end; ++r) {
                OVER_TERMS(t_begin, LANES) {
                    const WIDE x = LOAD_WIDE(src + TERM_AT);
                    wide_in_box = COMBINE(wide_in_box, TERM(x, WIDE));
                }
                OVER_TERMS(t_end - (t_end - t_begin) % LANES, 1) {
                    const ROW x = LOAD(src + TERM_AT);
                    single_in_box = COMBINE(single_in_box, TERM(x, ROW));
                }
            }
            wide = COMBINE(wide, wide_in_box);
            single = COMBINE(single, single_in_box);
        }
        ROW x = combined(wide, single, worker, shared);
        if (worker > 0) continue;
        if (!exists) continue;
#ifdef DST_AT
        const INDEX dst_at = DST_AT;
        if (inside) {
#ifdef READS_DST
            const ROW old = LOAD_DST(dst + dst_at);
#endif
            x = FINISH(x, ROW);
            POST_OPS
        } else {
            x = 0.0f;
        }
        STORE(dst + dst_at, x);
#ifdef PADDING
        for (INDEX pad = 1; pad < PADDING; ++pad) {
            INDEX rest = pad;
            PAD
            STORE(dst + dst_at + pad_at, (ROW)(0.0f));
        }
#endif
#else
        STORE(dst + LEFT_AT(item), x);
#endif
    }
}
