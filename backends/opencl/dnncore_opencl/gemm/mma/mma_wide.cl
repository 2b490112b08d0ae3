// Products by four warps together, from compute capability 9.0 on. The tensor cores read both
// operands from local memory. A tile of c has 64 rows and WARP_COLUMNS columns. `wide.py` writes
// WIDE_MULTIPLY_ADD and WIDE_WAIT. Their instructions are comments until the target becomes sm_90a.
//
// A descriptor contains, in chunks: the place of an operand's first chunk, the distance of blocks
// of 8 chunks across k, the distance of groups of 8 lines, and the permutation of 8 chunks.

#define WIDE_DESCRIPTOR(A, place_)                                                                 \
    ((ulong)(1u << 30 | 64) << 32                                                                  \
     | ((A##_ALONG_K ? 1u : DEPTH * 8u) << 16 | ((place_) & 0x3ffffu) >> 4))
#define WIDE_STEP(A) (A##_ALONG_K ? 2 : 16 * 8)  // chunks from a step along k to the next

#define WIDE_MULTIPLY                                                                              \
    {                                                                                              \
        const ulong wide_a = WIDE_DESCRIPTOR(A, tile_at + group_row * 128);                        \
        const ulong wide_b = WIDE_DESCRIPTOR(B, tile_at + B_TILE + warp_column * 128);             \
        WIDE_BEGINS                                                                                \
        UNROLL for (int step = 0; step < STEPS; step++)                                            \
            UNROLL for (int i = 0; i < TILES_M; i++)                                               \
                WIDE_MULTIPLY_ADD(sums[i], wide_a + (step * WIDE_STEP(A) + i * 64 * 8),            \
                                  wide_b + step * WIDE_STEP(B))                                    \
        WIDE_ENDS                                                                                  \
    }
#define WIDE_BEGINS __asm__ volatile("//@@ wgmma.fence.sync.aligned;" : : : "memory");
#define WIDE_ENDS __asm__ volatile("//@@ wgmma.commit_group.sync.aligned;" : : : "memory");

// Exchange between two lanes whose numbers differ in bit `bit`: the lower one's y for the other's
// x.
#define EXCHANGE_PAIR(x, y, bit)                                                                   \
    {                                                                                              \
        const int is_upper = lane & (bit);                                                         \
        const float own_x = x, own_y = y, given = is_upper ? own_x : own_y;                        \
        float taken;                                                                               \
        __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"                          \
                         : "=f"(taken) : "f"(given), "n"(bit));                                    \
        x = is_upper ? taken : own_x;                                                              \
        y = is_upper ? own_y : taken;                                                              \
    }

// Makes the copied data visible to the tensor cores after the next barrier.
#define COPIES_ARE_SEEN() __asm__ volatile("//@@ fence.proxy.async.shared::cta;" : : : "memory")
