// A pass whose operand is contiguous along `r` and whose result is so along `t`: a box goes through
// a tile, so that memory is read and written in whole lines. On a GPU a group of SIDE x DEPTH
// work-items shares an item, and the tile is in local memory; on a CPU SIDE and DEPTH are 1.
//
// DECODE and STEP are as in pointwise.cl; LOAD is the element of `r` and `t`, 0 in padding.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#if SIDE > 1
#define UNROLLED _Pragma("unroll 4") // so that loads do not wait for each other
#else
#define UNROLLED
#endif
#define AT(r, t) ((t) - t_begin) * PITCH + (r) - r_begin

__kernel void transpose(BUFFERS PARAMETERS)
{
    MEMORY ELEMENT tile[TILE * PITCH];
    const int x = get_local_id(0) % SIDE;
    const int y = get_local_id(0) / SIDE;
    const INDEX first = (INDEX)get_group_id(0) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        UNROLLED
        for (INDEX t = t_begin + y; t < t_end; t += DEPTH)
            for (INDEX r = r_begin + x; r < r_end; r += SIDE)
                tile[AT(r, t)] = LOAD;
        BARRIER;
        UNROLLED
        for (INDEX r = r_begin + y; r < r_end; r += DEPTH)
            for (INDEX t = t_begin + x; t < t_end; t += SIDE) {
                STEP
            }
        BARRIER;
    }
}
