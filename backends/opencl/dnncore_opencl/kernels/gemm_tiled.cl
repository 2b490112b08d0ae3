// Matrix products for GPUs. A group of SIDE x SIDE work-items makes a tile of c, each work-item
// TILE_M x TILE_N elements of it in registers, in blocks of 4 x 4 so that local memory is read 16
// bytes at a time. DEPTH values of k at a time, tiles of a and b lie in local memory; while a group
// multiplies them, its next ones are already on their way to registers.
//
// SIDE, TILE_M and TILE_N (multiples of 4), DEPTH, A_ALONG_K and B_ALONG_K (whether neighbouring
// work-items load neighbours along k) are defines.

#define ITEMS (SIDE * SIDE)
#define EDGE_M (SIDE * TILE_M)  // rows of the group's tile
#define EDGE_N (SIDE * TILE_N)  // and its columns
#define LOADS_M (EDGE_M * DEPTH / ITEMS)  // elements of a per work-item and step
#define LOADS_N (EDGE_N * DEPTH / ITEMS)
#define LINE_M (EDGE_M / 4 + 1)  // float4s of a line in local memory, against bank conflicts
#define LINE_N (EDGE_N / 4 + 1)

// Which line (k) and place (m or n) of a tile the i-th load of work-item `item` is for.
#define K_OF(i, edge, along_k) ((along_k) ? item % DEPTH : item / (edge) + (i) * (ITEMS / (edge)))
#define PLACE_OF(i, edge, along_k) \
    ((along_k) ? item / DEPTH + (i) * (ITEMS / DEPTH) : item % (edge))

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemm_tiled(GEMM_PARAMS) {
    __local float4 a_tile[DEPTH * LINE_M], b_tile[DEPTH * LINE_N];
    __local int n_at[EDGE_N], k_a[2][DEPTH], k_b[2][DEPTH];
    __local float *a_line = (__local float *)a_tile, *b_line = (__local float *)b_tile;
#ifdef WINDOW
    __local int4 n_window[EDGE_N], k_window[2][DEPTH];
#endif
    const int n_size = COUNT(n), k_size = COUNT(k);
    if (n_size == 0 || m == 0) return;
    const int item = get_local_id(0);
    const int blocks = (n_size + EDGE_N - 1) / EDGE_N;
    const int first_n = get_group_id(0) % blocks * EDGE_N, first_m = get_group_id(1) * EDGE_M;
    const int4 z = batch_digits(get_group_id(0) / blocks, batch);
    const int a_at = a_batch.w + DOT3(a_batch, z), b_at = b_batch.w + DOT3(b_batch, z);

    for (int j = item; j < EDGE_N; j += ITEMS) {
        const int4 d = digits(min(first_n + j, n_size - 1), n);
        n_at[j] = b_at + DOT4(b_n, d);
#ifdef WINDOW
        n_window[j] = w_at + w_n * d;
#endif
    }

    const int first_k = z.w * part, end_k = min(k_size, first_k + part);
    const int steps = max(0, (end_k - first_k + DEPTH - 1) / DEPTH);
    float a_next[LOADS_M], b_next[LOADS_N];

// Where the DEPTH values of k of a step are in both operands.
#ifdef WINDOW
#define PREPARE_WINDOW(step, d) k_window[(step) & 1][item] = w_k * d;
#else
#define PREPARE_WINDOW(step, d)
#endif
#define PREPARE(step)                                                                              \
    if (item < DEPTH && (step) < steps) {                                                          \
        const int4 d = digits(min(first_k + (step) * DEPTH + item, end_k - 1), k);                 \
        k_a[(step) & 1][item] = a_at + DOT4(a_k, d);                                               \
        k_b[(step) & 1][item] = DOT4(b_k, d);                                                      \
        PREPARE_WINDOW(step, d)                                                                    \
    }

#ifdef WINDOW
#define INSIDE(step, line, place) is_inside(n_window[place] + k_window[(step) & 1][line], w_size)
#else
#define INSIDE(step, line, place) 1
#endif

// The step's elements of a and b, to registers; 0 outside.
#define FETCH(step)                                                                                \
    {                                                                                              \
        for (int i = 0; i < LOADS_M; i++) {                                                        \
            const int line = K_OF(i, EDGE_M, A_ALONG_K);                                           \
            const int row = first_m + PLACE_OF(i, EDGE_M, A_ALONG_K);                              \
            const int ok = first_k + (step) * DEPTH + line < end_k && row < m;                     \
            a_next[i] = ok ? a[k_a[(step) & 1][line] + row * a_m] : 0.0f;                          \
        }                                                                                          \
        for (int i = 0; i < LOADS_N; i++) {                                                        \
            const int line = K_OF(i, EDGE_N, B_ALONG_K), place = PLACE_OF(i, EDGE_N, B_ALONG_K);   \
            const int ok = first_k + (step) * DEPTH + line < end_k && INSIDE(step, line, place);   \
            b_next[i] = ok ? b[n_at[place] + k_b[(step) & 1][line]] : 0.0f;                        \
        }                                                                                          \
    }

    float sums[TILE_M][TILE_N];
    for (int i = 0; i < TILE_M; i++)
        for (int j = 0; j < TILE_N; j++) sums[i][j] = 0;
    const int x = item % SIDE, y = item / SIDE;

    PREPARE(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    if (steps > 0) FETCH(0)
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < LOADS_M; i++)
            a_line[K_OF(i, EDGE_M, A_ALONG_K) * LINE_M * 4 + PLACE_OF(i, EDGE_M, A_ALONG_K)] =
                a_next[i];
        for (int i = 0; i < LOADS_N; i++)
            b_line[K_OF(i, EDGE_N, B_ALONG_K) * LINE_N * 4 + PLACE_OF(i, EDGE_N, B_ALONG_K)] =
                b_next[i];
        PREPARE(step + 1)
        barrier(CLK_LOCAL_MEM_FENCE);
        if (step + 1 < steps) FETCH(step + 1)
        for (int line = 0; line < DEPTH; line++) {
            float4 some_a[TILE_M / 4], some_b[TILE_N / 4];
            for (int i = 0; i < TILE_M / 4; i++) some_a[i] = a_tile[line * LINE_M + i * SIDE + y];
            for (int j = 0; j < TILE_N / 4; j++) some_b[j] = b_tile[line * LINE_N + j * SIDE + x];
            for (int i = 0; i < TILE_M / 4; i++)
                for (int j = 0; j < TILE_N / 4; j++) {
#define ROW_OF_SUMS(r, s)                                                                          \
    sums[4 * i + r][4 * j] += some_a[i].s * some_b[j].x;                                     \
    sums[4 * i + r][4 * j + 1] += some_a[i].s * some_b[j].y;                                 \
    sums[4 * i + r][4 * j + 2] += some_a[i].s * some_b[j].z;                                 \
    sums[4 * i + r][4 * j + 3] += some_a[i].s * some_b[j].w;
                    ROW_OF_SUMS(0, x)
                    ROW_OF_SUMS(1, y)
                    ROW_OF_SUMS(2, z)
                    ROW_OF_SUMS(3, w)
                }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    const int c_at = c_batch.w + DOT3(c_batch, z) + z.w * c_part;
    for (int j = 0; j < TILE_N; j++) {
        const int column = first_n + (j / 4 * SIDE + x) * 4 + j % 4;
        if (column >= n_size) continue;
        const int4 d = digits(column, n);
        for (int i = 0; i < TILE_M; i++) {
            const int row = first_m + (i / 4 * SIDE + y) * 4 + i % 4;
            if (row >= m) continue;
            __global float *target = c + c_at + row * c_m + DOT4(c_n, d);
#ifdef POST_READS_DST
            const float old = *target;
#else
            const float old = 0;
#endif
            *target = post_ops(sums[i][j], old, z.x, z.y, z.z, row, d.x, d.y, d.z, d.w POST_ARGS);
        }
    }
}
