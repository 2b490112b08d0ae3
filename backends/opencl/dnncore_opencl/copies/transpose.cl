// A pass on a CPU whose operand is contiguous along `r` and whose result is contiguous along `t`.
// Each box passes through its own tile, so memory is read and written in whole lines.
//
// DECODE and STEP are as in elementwise.cl. LOAD: the element at `r` and `t`. EXISTS: whether the
// element exists.

#define AT(r, t) ((t) - t_begin) * TILE_R + (r) - r_begin

__kernel void transpose($parameters)
{
    ELEMENT tile[TILE_T * TILE_R];
    const INDEX first = (INDEX)get_global_id(0) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        for (INDEX t = t_begin; t < t_end; ++t)
            for (INDEX r = r_begin; r < r_end; ++r)
                tile[AT(r, t)] = EXISTS ? LOAD : (ELEMENT)0;
        for (INDEX r = r_begin; r < r_end; ++r)
            for (INDEX t = t_begin; t < t_end; ++t) {
                STEP
            }
    }
}
