// The instructions of mma_wide.cl in plain OpenCL C, for devices that lack them.

#define A_TILE 0
#if ELEMENT_BYTES == 1
#define ELEMENT_OF(A, at, k)                                                                       \
    (int)((__local const A##_BYTE *)tiles)                                                         \
        [tile_at + A##_TILE + TILE_PLACE(A, at, (k) / 16) + (k) % 16]
#else
#define ELEMENT_OF(A, at, k)                                                                       \
    NUMBER(((__local const ushort *)tiles)[A##_ALONG_K                                             \
               ? (tile_at + A##_TILE + TILE_PLACE(A, at, (k) / 8)) / 2 + (k) % 8                   \
               : (tile_at + A##_TILE + TILE_PLACE(A, k, (at) / 8)) / 2 + (at) % 8], 0)
#endif

#define WIDE_MULTIPLY                                                                              \
    for (int i = 0; i < TILES_M; i++)                                                              \
        for (int j = 0; j < TILES_N; j++)                                                          \
            for (int e = 0; e < 4; e++) {                                                          \
                const int of_row = warp_row + i * 64 + e / 2 * 8 + (lane >> 2);                    \
                const int of_column = warp_column + j * 8 + (lane & 3) * 2 + e % 2;                \
                SUM sum = sums[i][j][e];                                                           \
                for (int of_k = 0; of_k < DEPTH; of_k++)                                           \
                    sum += ELEMENT_OF(A, of_row, of_k) * ELEMENT_OF(B, of_column, of_k);           \
                sums[i][j][e] = sum;                                                               \
            }
#define WIDE_WAIT(left)
#define EXCHANGE_PAIR(x, y, bit)                                                                   \
    {                                                                                              \
        const int is_upper = lane & (bit);                                                         \
        lanes[item] = as_uint(is_upper ? x : y);                                                   \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        const float taken = as_float(lanes[item ^ (bit)]);                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        x = is_upper ? taken : x;                                                                  \
        y = is_upper ? y : taken;                                                                  \
    }
#define COPIES_ARE_SEEN()
