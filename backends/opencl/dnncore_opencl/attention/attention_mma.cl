// Attention of f16 or bf16 on the tensor cores of NVIDIA's GPUs from compute capability 8.0 on.
//
// A work-group computes ROWS queries of a head with online softmax. Each warp has TILES tiles of 16
// queries, whose scores and sums are in registers. Tiles of COLUMNS keys and values are copied to
// local memory while the tile before is computed. The maxima are those of the scores before they
// are multiplied with `factor`, which converts them to the base 2.

#define ROWS (WARPS * 16 * TILES)
#define STAGE (COLUMNS * (KEY_LINE + VALUE_LINE))  // chunks
#define STAGE_AT(number) (ROWS * KEY_LINE + ((number) & 1) * STAGE)
#define COPY_STAGE(number)                                                                         \
    COPY_ROWS(STAGE_AT(number), COLUMNS, KEY_CHUNKS, from_keys, KEY_STEP, (number) * COLUMNS,      \
              KEYS, KEY_SIZE)                                                                      \
    COPY_ROWS(STAGE_AT(number) + COLUMNS * KEY_LINE, COLUMNS, VALUE_CHUNKS, from_values,           \
              VALUE_STEP, (number) * COLUMNS, KEYS, VALUE_SIZE)                                    \
    COPIES_END();

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attention_mma($parameters) {
    __local uint4 __attribute__((aligned(128))) tiles[ROWS * KEY_LINE + 2 * STAGE];
    EXCHANGE
    if (QUERIES == 0) return;
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint place = place_of(tiles);
    // Blocks with many keys come first if queries see only keys to the left.
    const int group = get_group_id(0), first = (BLOCKS - 1 - group % BLOCKS) * ROWS;
    const int head = group / BLOCKS % HEADS, n = group / BLOCKS / HEADS, shared = head / SHARE;
    const int own_line = warp * 16 * TILES, own_row = first + own_line + (lane >> 2);
    __global const uint4 *from_queries =
        (__global const uint4 *)(queries + QUERIES_AT(n, head, 0, 0));
    __global const uint4 *from_keys = (__global const uint4 *)(keys + KEYS_AT(n, shared, 0, 0));
    __global const uint4 *from_values =
        (__global const uint4 *)(values + VALUES_AT(n, shared, 0, 0));

    float sums[TILES][2 * WIDTH_STEPS][4], top[TILES][2], total[TILES][2];
    UNROLL for (int i = 0; i < TILES; i++) {
        UNROLL for (int w = 0; w < 2 * WIDTH_STEPS; w++)
            UNROLL for (int e = 0; e < 4; e++) sums[i][w][e] = 0.0f;
        UNROLL for (int side = 0; side < 2; side++) {
            top[i][side] = -INFINITY;
            total[i][side] = 0.0f;
        }
    }
    const int seen = min(KEYS, first + ROWS + DIAGONAL);
    COPY_ROWS(0, ROWS, KEY_CHUNKS, from_queries, QUERY_STEP, first, QUERIES, KEY_SIZE)
    COPIES_END();
    if (seen > 0) {
        COPY_STAGE(0)
    }
#if HELD  // queries stay in registers
    uint held[TILES][DEPTH_STEPS][4];
    COPIES_WAIT(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int step = 0; step < DEPTH_STEPS; step++)
            LOAD_LEFT(held[i][step], 0, own_line + i * 16, step, KEY_LINE)
#endif

    for (int number = 0; number * COLUMNS < seen; number++) {
        const int start = number * COLUMNS;
        COPIES_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (start + COLUMNS < seen) {
            COPY_STAGE(number + 1)
        }
        float scores[TILES][COLUMNS / 8][4];
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                UNROLL for (int e = 0; e < 4; e++) scores[i][j][e] = 0.0f;
        UNROLL for (int step = 0; step < DEPTH_STEPS; step++) {
#if HELD
#define LEFT(i) held[i][step]
#else
#define LEFT(i) left[i]
            uint left[TILES][4];
            UNROLL for (int i = 0; i < TILES; i++)
                LOAD_LEFT(left[i], 0, own_line + i * 16, step, KEY_LINE)
#endif
            UNROLL for (int j = 0; j < COLUMNS / 16; j++) {
                uint right[4];
                LOAD_RIGHT(right, STAGE_AT(number), j * 16, step, KEY_LINE)
                UNROLL for (int i = 0; i < TILES; i++) {
                    MULTIPLY_ADD(scores[i][2 * j], LEFT(i), right)
                    MULTIPLY_ADD(scores[i][2 * j + 1], LEFT(i), (right + 2))
                }
            }
        }

        // Keys past the end, and keys that a query does not see
        const int is_whole = start + COLUMNS <= min(KEYS, first + DIAGONAL + 1);
        if (ADJUSTED || !is_whole) {
            UNROLL for (int i = 0; i < TILES; i++)
                UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                    UNROLL for (int e = 0; e < 4; e++) {
                        const int row = own_row + i * 16 + e / 2 * 8;
                        const int k = start + j * 8 + (lane & 3) * 2 + e % 2;
                        const int is_seen = row < QUERIES && k < min(KEYS, row + DIAGONAL + 1);
                        float score = scores[i][j][e];
#if ADJUSTED
                        score *= SCALE;
#ifdef READ_MASK
                        if (is_seen) score += READ_MASK(n, head, row, k);
#endif
#endif
                        scores[i][j][e] = is_seen ? score : -INFINITY;
                    }
        }

        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int side = 0; side < 2; side++) {
                float now = top[i][side];
                UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                    now = fmax(now, fmax(scores[i][j][2 * side], scores[i][j][2 * side + 1]));
                UNROLL for (int bit = 1; bit < 4; bit *= 2) {
                    float other;
                    LANE_XOR(other, now, bit)
                    now = fmax(now, other);
                }
                const float shift = now == -INFINITY ? 0.0f : now;
                const float change = quick_exp2((top[i][side] - shift) * FACTOR);
                float added = 0.0f;
                UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                    UNROLL for (int e = 2 * side; e < 2 * side + 2; e++) {
                        // The difference of large scores is exact, that of their products is not.
                        scores[i][j][e] = quick_exp2((scores[i][j][e] - shift) * FACTOR);
                        added += scores[i][j][e];
                    }
                top[i][side] = now;
                total[i][side] = total[i][side] * change + added;
                UNROLL for (int w = 0; w < 2 * WIDTH_STEPS; w++) {
                    sums[i][w][2 * side] *= change;
                    sums[i][w][2 * side + 1] *= change;
                }
            }

        UNROLL for (int step = 0; step < COLUMNS / 16; step++) {
            uint weights[TILES][4];
            UNROLL for (int i = 0; i < TILES; i++)
                ROUND_LEFT(weights[i], scores[i][2 * step], scores[i][2 * step + 1])
            UNROLL for (int w = 0; w < WIDTH_STEPS; w++) {
                uint right[4];
                LOAD_ACROSS(right, STAGE_AT(number) + COLUMNS * KEY_LINE, step * 16, w, VALUE_LINE)
                UNROLL for (int i = 0; i < TILES; i++) {
                    MULTIPLY_ADD(sums[i][2 * w], weights[i], right)
                    MULTIPLY_ADD(sums[i][2 * w + 1], weights[i], (right + 2))
                }
            }
        }
    }

    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int side = 0; side < 2; side++) {
            float all = total[i][side];
            UNROLL for (int bit = 1; bit < 4; bit *= 2) {
                float other;
                LANE_XOR(other, all, bit)
                all += other;
            }
            const int row = own_row + i * 16 + side * 8;
            if (row < QUERIES) {
                const float divided = all == 0.0f ? 0.0f : 1.0f / all;
                __global ushort *to = dst + DST_AT(n, head, row, 0);
                WRITE_ROW(to, sums[i], WIDTH_STEPS, side, divided, VALUE_SIZE)
#ifdef KEEPS
                const float lse = (top[i][side] * FACTOR + log2(all)) * 0.6931471805599453f;
                if ((lane & 3) == 0)
                    workspace[WORKSPACE_AT(n, head, row, 0)] = all == 0.0f ? -INFINITY : lse;
#endif
            }
        }
}
