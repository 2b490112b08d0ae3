// Gradients of attention of f16 or bf16 on the tensor cores of NVIDIA's GPUs.
//
// A work-group has ROWS own rows of a head: queries, or keys and values (BY_KEYS). It reads the other
// side in tiles of COLUMNS rows, each while the tile before is computed. A row has an x, the query or
// the key, and a y, the row of diff_dst or the value. Scores are products of x, slopes those of y.
// WITH_X, WITH_Y: which gradients are computed. `FACTOR` converts scores to the base 2.

#define ROWS (WARPS * 16 * TILES)
#define OWN_Y_AT (ROWS * KEY_LINE)  // chunks
#define STAGE (COLUMNS * (KEY_LINE + VALUE_LINE))
#define X_AT(number) (ROWS * (KEY_LINE + VALUE_LINE) + ((number) & 1) * STAGE)
#define Y_AT(number) (X_AT(number) + COLUMNS * KEY_LINE)
#define CHUNKS_OF(rows) (__global const uint4 *)(rows)
#define COPY_STAGE(number, head, start)                                                            \
    COPY_ROWS(X_AT(number), COLUMNS, KEY_CHUNKS, CHUNKS_OF(X_ROWS(n, head)), X_STEP, start,        \
              OTHERS, KEY_SIZE)                                                                    \
    COPY_ROWS(Y_AT(number), COLUMNS, VALUE_CHUNKS, CHUNKS_OF(Y_ROWS(n, head)), Y_STEP, start,      \
              OTHERS, VALUE_SIZE)                                                                  \
    COPIES_END();

// lse in the base 2, so that weights are 0 for a query that sees no key, and past the end; or the
// sum of diff_dst * dst.
#define LSE(head, row) lse_of((row) < QUERIES ? workspace[WORKSPACE_AT(n, head, row, 0)] : -INFINITY)
#define MEAN(head, row) ((row) < QUERIES ? mean[((INDEX)n * HEADS + (head)) * QUERIES + (row)] : 0.0f)
static inline float lse_of(const float lse) {
    return lse == -INFINITY ? INFINITY : lse * 1.4426950408889634f;
}

// products[i][j] = the products of own rows and other rows, over `steps` steps of 16 elements
#define MULTIPLY_ROWS(products, own_at, other_at, steps, of_line)                                  \
    UNROLL for (int i = 0; i < TILES; i++)                                                         \
        UNROLL for (int j = 0; j < COLUMNS / 8; j++)                                               \
            UNROLL for (int e = 0; e < 4; e++) products[i][j][e] = 0.0f;                           \
    UNROLL for (int step = 0; step < (steps); step++) {                                            \
        uint left[TILES][4];                                                                       \
        UNROLL for (int i = 0; i < TILES; i++)                                                     \
            LOAD_LEFT(left[i], own_at, own_line + i * 16, step, of_line)                           \
        UNROLL for (int j = 0; j < COLUMNS / 16; j++) {                                            \
            uint right[4];                                                                         \
            LOAD_RIGHT(right, other_at, j * 16, step, of_line)                                     \
            UNROLL for (int i = 0; i < TILES; i++) {                                               \
                MULTIPLY_ADD(products[i][2 * j], left[i], right)                                   \
                MULTIPLY_ADD(products[i][2 * j + 1], left[i], (right + 2))                         \
            }                                                                                      \
        }                                                                                          \
    }

// sums += factors, rounded, times the other rows
#define ADD_ROWS(sums, factors, other_at, steps, of_line)                                          \
    UNROLL for (int step = 0; step < COLUMNS / 16; step++) {                                       \
        uint left[TILES][4];                                                                       \
        UNROLL for (int i = 0; i < TILES; i++)                                                     \
            ROUND_LEFT(left[i], factors[i][2 * step], factors[i][2 * step + 1])                    \
        UNROLL for (int w = 0; w < (steps); w++) {                                                 \
            uint right[4];                                                                         \
            LOAD_ACROSS(right, other_at, step * 16, w, of_line)                                    \
            UNROLL for (int i = 0; i < TILES; i++) {                                               \
                MULTIPLY_ADD(sums[i][2 * w], left[i], right)                                       \
                MULTIPLY_ADD(sums[i][2 * w + 1], left[i], (right + 2))                             \
            }                                                                                      \
        }                                                                                          \
    }

#define CLEAR(sums, steps)                                                                         \
    UNROLL for (int i = 0; i < TILES; i++)                                                         \
        UNROLL for (int w = 0; w < 2 * (steps); w++)                                               \
            UNROLL for (int e = 0; e < 4; e++) sums[i][w][e] = 0.0f;

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attention_mma_backward($parameters) {
    __local uint4 __attribute__((aligned(128)))
        tiles[ROWS * (KEY_LINE + VALUE_LINE) + 2 * STAGE];
    __local float of_columns[2][2 * COLUMNS];  // lse, then mean
    EXCHANGE
    if (OWN == 0) return;
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint place = place_of(tiles);
    const int group = get_group_id(0), block = group % BLOCKS;
    const int own_head = group / BLOCKS % OWN_HEADS, n = group / BLOCKS / OWN_HEADS;
    // Blocks with many other rows come first if queries see only keys to the left.
    const int first = (BY_KEYS ? block : BLOCKS - 1 - block) * ROWS;
    const int own_line = warp * 16 * TILES, own_row = first + own_line + (lane >> 2);
    COPY_ROWS(0, ROWS, KEY_CHUNKS, CHUNKS_OF(OWN_X_ROWS(n, own_head)), OWN_X_STEP, first, OWN,
              KEY_SIZE)
    COPY_ROWS(OWN_Y_AT, ROWS, VALUE_CHUNKS, CHUNKS_OF(OWN_Y_ROWS(n, own_head)), OWN_Y_STEP, first,
              OWN, VALUE_SIZE)
#if BY_KEYS
    const int begin = max(0, first - DIAGONAL) / COLUMNS * COLUMNS, end = OTHERS, turns = SHARE;
    int head = own_head * SHARE;
#else
    const int begin = 0, end = min(OTHERS, first + ROWS + DIAGONAL), turns = 1;
    int head = own_head / SHARE;
    float own_lse[TILES][2], own_mean[TILES][2];
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int side = 0; side < 2; side++) {
            own_lse[i][side] = LSE(own_head, own_row + i * 16 + side * 8);
            own_mean[i][side] = MEAN(own_head, own_row + i * 16 + side * 8);
        }
#endif
#if BY_KEYS
#define LOAD_COLUMN(head, start)                                                                   \
    if (item < 2 * COLUMNS)                                                                        \
        ahead = item < COLUMNS ? LSE(head, (start) + item) : MEAN(head, (start) + item - COLUMNS);
    float ahead = 0.0f;
#else
#define LOAD_COLUMN(head, start)
#endif
#if WITH_X
    float dx[TILES][2 * DEPTH_STEPS][4];
    CLEAR(dx, DEPTH_STEPS)
#endif
#if WITH_Y
    float dy[TILES][2 * WIDTH_STEPS][4];
    CLEAR(dy, WIDTH_STEPS)
#endif
    const int tiles_of_head = (max(0, end - begin) + COLUMNS - 1) / COLUMNS;
    if (tiles_of_head) {
        COPY_STAGE(0, head, begin)
        LOAD_COLUMN(head, begin)
    }
    int start = begin;
    for (int number = 0; number < turns * tiles_of_head; number++) {
        COPIES_WAIT(0);
#if BY_KEYS
        if (item < 2 * COLUMNS) of_columns[number & 1][item] = ahead;
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
        const int is_last = start + COLUMNS >= end;
        const int next_head = head + is_last, next_start = is_last ? begin : start + COLUMNS;
        if (number + 1 < turns * tiles_of_head) {
            COPY_STAGE(number + 1, next_head, next_start)
            LOAD_COLUMN(next_head, next_start)
        }

        float weights[TILES][COLUMNS / 8][4];
        MULTIPLY_ROWS(weights, 0, X_AT(number), DEPTH_STEPS, KEY_LINE)
#if BY_KEYS
        const int is_whole = first + ROWS - 1 <= start + DIAGONAL;
#else
        const int is_whole = start + COLUMNS <= min(OTHERS, first + DIAGONAL + 1);
#endif
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                UNROLL for (int e = 0; e < 4; e++) {
                    const int own = own_row + i * 16 + e / 2 * 8;
                    const int column = j * 8 + (lane & 3) * 2 + e % 2, other = start + column;
#if BY_KEYS
                    const int q = other, k = own, q_head = head;
                    const float lse = of_columns[number & 1][column];
#else
                    const int q = own, k = other, q_head = own_head;
                    const float lse = own_lse[i][e / 2];
#endif
                    const int is_seen = q < QUERIES && k < min(KEYS, q + DIAGONAL + 1);
                    float score = weights[i][j][e];
#if ADJUSTED
                    score *= SCALE;
#ifdef READ_MASK
                    if (is_seen) score += READ_MASK(n, q_head, q, k);
#endif
#endif
                    const float weight = quick_exp2(fma(score, FACTOR, -lse));
                    weights[i][j][e] = is_whole || is_seen ? weight : 0.0f;
                }
#if WITH_Y
        ADD_ROWS(dy, weights, Y_AT(number), WIDTH_STEPS, VALUE_LINE)
#endif
#if WITH_X
        float slopes[TILES][COLUMNS / 8][4];
        MULTIPLY_ROWS(slopes, OWN_Y_AT, Y_AT(number), WIDTH_STEPS, VALUE_LINE)
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int j = 0; j < COLUMNS / 8; j++)
                UNROLL for (int e = 0; e < 4; e++) {
#if BY_KEYS
                    const float shift =
                        of_columns[number & 1][COLUMNS + j * 8 + (lane & 3) * 2 + e % 2];
#else
                    const float shift = own_mean[i][e / 2];
#endif
                    const float weight = weights[i][j][e];
                    slopes[i][j][e] = weight == 0.0f ? 0.0f : weight * (slopes[i][j][e] - shift);
                }
        ADD_ROWS(dx, slopes, X_AT(number), DEPTH_STEPS, KEY_LINE)
#endif
        start = next_start;
        head = next_head;
    }

    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int side = 0; side < 2; side++) {
            const int row = own_row + i * 16 + side * 8;
            if (row < OWN) {
#if WITH_X
                __global ushort *to_x = DX_ROW(n, own_head, row);
                WRITE_ROW(to_x, dx[i], DEPTH_STEPS, side, SCALE, KEY_SIZE)
#endif
#if WITH_Y
                __global ushort *to_y = DY_ROW(n, own_head, row);
                WRITE_ROW(to_y, dy[i], WIDTH_STEPS, side, 1.0f, VALUE_SIZE)
#endif
            }
        }
}
