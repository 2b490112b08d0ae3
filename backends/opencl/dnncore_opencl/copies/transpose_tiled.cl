// A pass on a GPU whose operand is contiguous along `r` and whose result is contiguous along `t`. A
// work-group of WORKERS reads a box of TILE_R x TILE_T elements, IN at once along `r`. It starts
// all loads before the first use. It transposes the box in local memory and writes LANES at once
// along `t`.
//
// DECODE and STEP are as in elementwise.cl. LOAD: IN elements from `r` and `t` on. EXISTS: whether
// these elements exist.

#define READS (TILE_R * TILE_T / IN / WORKERS)
#define WRITES (TILE_R * TILE_T / LANES / WORKERS)
#define PITCH (TILE_R + 1) // avoids bank conflicts in local memory
#define AT(r, t) ((t) - t_begin) * PITCH + (r) - r_begin
#define UNROLLED _Pragma("unroll") for

__kernel __attribute__((reqd_work_group_size(WORKERS, 1, 1)))
void transpose_tiled($parameters)
{
    __local ELEMENT tile[TILE_T * PITCH];
    const int worker = get_local_id(0);
    INDEX rest = get_group_id(0);
    if (rest >= ITEMS) return;
    DECODE
    READ held[READS];
    UNROLLED (int i = 0; i < READS; ++i) {
        const int place = i * WORKERS + worker;
        const INDEX r = r_begin + place % (TILE_R / IN) * IN, t = t_begin + place / (TILE_R / IN);
        held[i] = r < r_end && t < t_end && EXISTS ? LOAD : (READ)(0);
    }
    UNROLLED (int i = 0; i < READS; ++i) {
        const int place = i * WORKERS + worker;
        const INDEX r = r_begin + place % (TILE_R / IN) * IN, t = t_begin + place / (TILE_R / IN);
        const ELEMENT *lanes = (const ELEMENT *)&held[i];
        UNROLLED (int lane = 0; lane < IN; ++lane) tile[AT(r + lane, t)] = lanes[lane];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLLED (int i = 0; i < WRITES; ++i) {
        const int place = i * WORKERS + worker;
        const INDEX t = t_begin + place % (TILE_T / LANES) * LANES;
        const INDEX r = r_begin + place / (TILE_T / LANES);
        if (r >= r_end || t >= t_end) continue;
        WIDE_STEP
    }
}
