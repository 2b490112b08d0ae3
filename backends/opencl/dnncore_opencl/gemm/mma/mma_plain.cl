// The instructions of mma_ptx.cl in plain OpenCL C, for devices that lack them. They are slow; they
// serve to test the kernels that use them. They need doubles. Lanes of a warp exchange values
// through local memory.

#pragma OPENCL EXTENSION cl_khr_fp64 : enable

#define UNROLL _Pragma("nounroll")  // each step has barriers, and compilers fail with many barriers

#define place_of(tiles) 0

static inline void copy_bytes(__local uint4 *to, __global const uint4 *from, const int bytes) {
    uint4 chunk = 0;
    for (int i = 0; i < bytes; i++) ((uchar *)&chunk)[i] = ((__global const uchar *)from)[i];
    *to = chunk;
}
#define copy_chunk(to, from, chunk, bytes) copy_bytes(tiles + (to) / 16, from + (chunk), bytes)
#define LOAD_CHUNK(four, place) four = tiles[(place) / 16]

#define COPIES_END()
#define COPIES_WAIT(left)

#define EXCHANGE __local uint lanes[ITEMS * 6];

#define LOAD_MATRICES(r0, r1, r2, r3, place, WORD)                                                 \
    {                                                                                              \
        lanes[item] = place;                                                                       \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        __local const uint *rows_of_warp = lanes + (item & ~31);                                   \
        r0 = WORD(rows_of_warp);                                                                   \
        r1 = WORD((rows_of_warp + 8));                                                             \
        r2 = WORD((rows_of_warp + 16));                                                            \
        r3 = WORD((rows_of_warp + 24));                                                            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
    }
#define WORD_OF_ROW(rows) ((__local const uint *)tiles)[rows[lane >> 2] / 4 + (lane & 3)]
#define HALF_OF_COLUMN(rows, k) \
    ((__local const ushort *)tiles)[rows[(lane & 3) * 2 + k] / 2 + (lane >> 2)]
#define WORD_OF_COLUMN(rows) (HALF_OF_COLUMN(rows, 0) | (uint)HALF_OF_COLUMN(rows, 1) << 16)
#define LOAD_ROWS(r0, r1, r2, r3, place) LOAD_MATRICES(r0, r1, r2, r3, place, WORD_OF_ROW)
#define LOAD_COLUMNS(r0, r1, r2, r3, place) LOAD_MATRICES(r0, r1, r2, r3, place, WORD_OF_COLUMN)

#define PER_WORD (4 / ELEMENT_BYTES)
#if IS_F16
#define NUMBER(bits, odd) f16_to_float((ushort)((bits) >> 16 * (odd)))
#elif ELEMENT_BYTES == 1
#define A_NUMBER(bits, place) (A_BYTE)((bits) >> 8 * (place))
#define B_NUMBER(bits, place) (B_BYTE)((bits) >> 8 * (place))
#elif ELEMENT_BYTES == 2
#define NUMBER(bits, odd) bf16_to_float((ushort)((bits) >> 16 * (odd)))
#else  // tensor cores read only the 19 highest bits
#define NUMBER(bits, odd) as_float((bits) & 0xffffe000u)
#endif
static inline uint to_tf32(const uint x) { return isfinite(as_float(x)) ? x + 0x1000u : x; }
#define f16_pair(low, high) (float_to_f16(low) | (uint)float_to_f16(high) << 16)
#define bf16_pair(low, high) (float_to_bf16(low) | (uint)float_to_bf16(high) << 16)

#if ELEMENT_BYTES == 1
#define PARTIAL uint
#define PRODUCT(a, b, place) (uint)(A_NUMBER(a, place) * B_NUMBER(b, place))
#define TRUNCATED(sum) as_int(sum)
#else
#define PARTIAL double
#define PRODUCT(a, b, place) (double)NUMBER(a, place) * NUMBER(b, place)
#define TRUNCATED(sum) (fabs(sum) < 0x1p128 ? convert_float_rtz(sum) : (float)sum)
#endif

// Truncates the sum, as tensor cores do.
#define MULTIPLY_ADD(c, a, b)                                                                      \
    {                                                                                              \
        for (int w = 0; w < 4; w++) lanes[item * 6 + w] = (a)[w];                                  \
        for (int w = 0; w < 2; w++) lanes[item * 6 + 4 + w] = (b)[w];                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        for (int of_c = 0; of_c < 4; of_c++) {                                                     \
            const int of_row = (item & ~31) + (lane & ~3);                                         \
            const int of_column = (item & ~31) + ((lane & 3) * 2 + of_c % 2) * 4;                  \
            PARTIAL sum = (c)[of_c];                                                               \
            for (int of_k = 0; of_k < 8 * PER_WORD; of_k++) {                                      \
                const int word = of_k / PER_WORD, high = word / 4;                                 \
                const uint some_a = lanes[(of_row + word % 4) * 6 + of_c / 2 + 2 * high];          \
                const uint some_b = lanes[(of_column + word % 4) * 6 + 4 + high];                  \
                sum += PRODUCT(some_a, some_b, of_k % PER_WORD);                                   \
            }                                                                                      \
            (c)[of_c] = TRUNCATED(sum);                                                            \
        }                                                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
    }
#define MULTIPLY_INTO(c, a, b)                                                                     \
    {                                                                                              \
        for (int of_c = 0; of_c < 4; of_c++) (c)[of_c] = 0;                                        \
        MULTIPLY_ADD(c, a, b)                                                                      \
    }

#define LANE_XOR(y, x, bit)                                                                        \
    {                                                                                              \
        lanes[item] = as_uint(x);                                                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        y = as_float(lanes[item ^ (bit)]);                                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
    }
#define quick_exp2(x) exp2(x)
