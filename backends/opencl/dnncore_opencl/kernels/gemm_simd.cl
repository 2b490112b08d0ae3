// Matrix products for CPUs. One work-item makes `rows` rows and COLUMNS columns of c: for DEPTH
// values of k at a time it copies its columns of b to a panel that stays in the first-level cache,
// and multiplies it, EACH_ROW of a tile of TILE_ROWS at once in registers, with rows of a.
//
// VECTOR and EACH_ROW(DO) = DO(0) DO(1) ... DO(TILE_ROWS - 1) are defines.

#define COLUMNS (2 * VECTOR)
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, VECTOR) floats;
typedef PASTE(int, VECTOR) ints;
typedef PASTE(uint, VECTOR) uints;
#define LOAD PASTE(vload, VECTOR)
#define STORE PASTE(vstore, VECTOR)
#define AS_UINTS PASTE(as_uint, VECTOR)

// Whether offsets follow each other in memory, so that one vector access does for all.
static inline int is_run(const int *at) {
    int run = 1;
    for (int j = 1; j < VECTOR; j++) run &= at[j] == at[0] + j;
    return run;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void gemm_simd(GEMM_PARAMS) {
    const int n_size = COUNT(n), k_size = COUNT(k);
    const int first_n = get_global_id(0) * COLUMNS, first_m = get_global_id(1) * rows;
    if (first_n >= n_size || first_m >= m) return;
    const int last_m = min(first_m + rows, m) - 1;
    const int4 z = batch_digits(get_global_id(2), batch);
    const int a_at = a_batch.w + DOT3(a_batch, z), b_at = b_batch.w + DOT3(b_batch, z);

    // Where each column is; those past the end repeat the last one and are not stored.
    int n_at[COLUMNS];
#ifdef WINDOW
    int n_y[COLUMNS], n_z[COLUMNS], n_w[COLUMNS];
#endif
    int4 at_n[COLUMNS];
    at_n[0] = digits(first_n, n);
    for (int j = 0; j < COLUMNS; j++) {
        if (j > 0) at_n[j] = first_n + j < n_size ? next(at_n[j - 1], n) : at_n[j - 1];
        const int4 d = at_n[j];
        n_at[j] = b_at + DOT4(b_n, d);
#ifdef WINDOW
        n_y[j] = w_at.y + w_n.y * d.y;
        n_z[j] = w_at.z + w_n.z * d.z;
        n_w[j] = w_at.w + w_n.w * d.w;
#endif
    }
    const int runs[2] = {is_run(n_at), is_run(n_at + VECTOR)};

    float sums[MAX_ROWS * COLUMNS], panel[DEPTH * COLUMNS];
    int k_at[DEPTH];
    for (int i = 0; i < rows * COLUMNS; i++) sums[i] = 0;

    const int first_k = z.w * part, end_k = min(k_size, first_k + part);
    int4 d = first_k < end_k ? digits(first_k, k) : (int4)(0);
    for (int block = first_k; block < end_k; block += DEPTH) {
        const int depth = min(DEPTH, end_k - block);
        for (int i = 0; i < depth; i++, d = next(d, k)) {
            k_at[i] = a_at + DOT4(a_k, d);
            const int at = DOT4(b_k, d);
#ifdef WINDOW
            const int4 shift = w_k * d;
#endif
            for (int v = 0; v < COLUMNS; v += VECTOR) {
                float *target = panel + i * COLUMNS + v;
                const int start = n_at[v] + at;
                if (runs[v / VECTOR] && start >= 0 && start <= b_end - VECTOR) {
                    floats x = LOAD(0, b + start);
#ifdef WINDOW
                    const ints inside = (AS_UINTS(LOAD(0, n_y + v) + shift.y) < (uints)(w_size.y))
                        & (AS_UINTS(LOAD(0, n_z + v) + shift.z) < (uints)(w_size.z))
                        & (AS_UINTS(LOAD(0, n_w + v) + shift.w) < (uints)(w_size.w));
                    x = inside ? x : (floats)(0);
#endif
                    STORE(x, 0, target);
                } else {
                    for (int j = 0; j < VECTOR; j++) {
#ifdef WINDOW
                        const int4 place = (int4)(0, n_y[v + j], n_z[v + j], n_w[v + j]) + shift;
                        target[j] = is_inside(place, w_size) ? b[n_at[v + j] + at] : 0.0f;
#else
                        target[j] = b[n_at[v + j] + at];
#endif
                    }
                }
            }
        }
        for (int i = 0; i < rows; i += TILE_ROWS) {
#define DECLARE(r)                                                                                 \
    floats x##r = 0, y##r = 0;                                                                     \
    __global const float *a##r = a + min(first_m + i + r, last_m) * a_m;
#define STEP(r)                                                                                    \
    {                                                                                              \
        const float s = a##r[at];                                                                  \
        x##r += s * left;                                                                          \
        y##r += s * right;                                                                         \
    }
#define ADD(r)                                                                                     \
    {                                                                                              \
        float *sum = sums + (i + r) * COLUMNS;                                                     \
        STORE(LOAD(0, sum) + x##r, 0, sum);                                                        \
        STORE(LOAD(1, sum) + y##r, 1, sum);                                                        \
    }
            EACH_ROW(DECLARE)
            for (int j = 0; j < depth; j++) {
                const floats left = LOAD(2 * j, panel), right = LOAD(2 * j + 1, panel);
                const int at = k_at[j];
                EACH_ROW(STEP)
            }
            EACH_ROW(ADD)
        }
    }

    // The results, after post-ops, to their places.
    int c_at[COLUMNS];
    for (int j = 0; j < COLUMNS; j++)
        c_at[j] = c_batch.w + DOT3(c_batch, z) + z.w * c_part + DOT4(c_n, at_n[j]);
    const int c_runs[2] = {is_run(c_at), is_run(c_at + VECTOR)};
    const int columns = min(COLUMNS, n_size - first_n);
    for (int row = first_m; row <= last_m; row++) {
        float *sum = sums + (row - first_m) * COLUMNS;
        __global float *target = c + row * c_m;
        for (int j = 0; j < columns; j++) {
#ifdef POST_READS_DST
            const float old = target[c_at[j]];
#else
            const float old = 0;
#endif
            sum[j] = post_ops(sum[j], old, z.x, z.y, z.z, row, at_n[j].x, at_n[j].y, at_n[j].z,
                              at_n[j].w POST_ARGS);
        }
        for (int v = 0; v < columns; v += VECTOR) {
            if (c_runs[v / VECTOR]) {
                STORE(LOAD(0, sum + v), 0, target + c_at[v]);
            } else {
                for (int j = v; j < min(columns, v + VECTOR); j++) target[c_at[j]] = sum[j];
            }
        }
    }
}
