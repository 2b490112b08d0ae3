#define DECODE const INDEX t_box = 0; const INDEX r_box = (UINDEX)rest % (UINDEX)p0; rest = (UINDEX)rest / (UINDEX)p0; const INDEX l0 = rest; const INDEX r_begin = r_box * 64; const INDEX r_end = min(r_begin + 64, p1); const INDEX t_begin = t_box * 64; const INDEX t_end = min(t_begin + 64, p2); const INDEX o0 = 0 + l0 * p3; const INDEX o1 = 0 + l0 * p4; 
#define STEP { const float v0 = (float)(tile[AT(r, t + 0)]); float x = v0; *(b1 + o1 + r * p6 + t) = x; }
#define WIDE_STEP { const float4 v0 = (float4)(tile[AT(r, t + 0)], tile[AT(r, t + 1)], tile[AT(r, t + 2)], tile[AT(r, t + 3)]); float4 x = v0; *(__global float4 *)(b1 + o1 + r * p6 + t) = x; }
#define LANES 4
#define EXISTS (1 && 1)
#define LOAD (*(__global const float4 *)(b0 + o0 + r + t * p5))
#define ELEMENT float
#define READ float4
#define IN 4
#define TILE_R 64
#define TILE_T 64
#define WORKERS 512
#define ITEMS p7
#define COUNT p8
#define INDEX int
#define UINDEX uint
// Doubles, on devices that compute in f64.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

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
void transpose_tiled(
    __global const float *b0,
    __global float *b1,
    const int p0,
    const int p1,
    const int p2,
    const int p3,
    const int p4,
    const int p5,
    const int p6,
    const int p7,
    const int p8)
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
