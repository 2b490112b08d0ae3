// Sums of one or two terms per element (statistics.py). An item (groups.cl) is a part of the boxes of
// one set of elements, or of adjacent sets. Boxes are added one after the other, so long sums lose
// few digits. ADD_WIDE adds the terms of LANES elements to `a` and `b`, ADD_ROW those of one.

REDUCTION(sum_of, ADD)

__kernel GROUP_SIZE void sums($parameters)
{
    OVER_ITEMS {
        SET_PLACE
        WIDE wide_a = 0.0f, wide_b = 0.0f;
        ROW row_a = 0.0f, row_b = 0.0f;
        for (INDEX box = part * BOXES_PER_PART; box < end; ++box) {
            INDEX rest = box;
            BOX
            {
                WIDE a = 0.0f, b = 0.0f;
                for (INDEX r = r_begin; r < r_end; ++r)
                    OVER_TERMS(t_begin, LANES) { ADD_WIDE }
                wide_a += a;
                wide_b += b;
            }
            {
                ROW a = 0.0f, b = 0.0f;
                for (INDEX r = r_begin; r < r_end; ++r)
                    OVER_TERMS(t_end - (t_end - t_begin) % LANES, 1) { ADD_ROW }
                row_a += a;
                row_b += b;
            }
        }
        const ROW total_a = sum_of(wide_a, row_a, worker, shared);
#ifdef HAS_TWO
        const ROW total_b = sum_of(wide_b, row_b, worker, shared);
#endif
        if (worker > 0 || !exists) continue;
        KEEP
    }
}
