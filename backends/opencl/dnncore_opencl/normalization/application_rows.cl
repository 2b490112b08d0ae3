// A pass (elementwise.cl) on a GPU over boxes of ROWS rows of one vector. DECLARE declares what is
// held of each row. ONCE reads what all rows share. FETCH reads the rest of row `r`, and WIDE_STEP
// computes it. All rows are read before the first result is written, because the compiler keeps
// this order.

#define EACH                                                                                       \
    _Pragma("unroll") for (int i = 0; i < ROWS; ++i)                                               \
        for (INDEX r = r_begin + i; r < r_end; r = r_end)

__kernel void application_rows($parameters)
{
    INDEX rest = get_global_id(0);
    if (rest >= ITEMS) return;
    DECODE
    const INDEX t = t_begin;
    DECLARE
    EACH { FETCH }
    ONCE
    EACH { WIDE_STEP }
}
