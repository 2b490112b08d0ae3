// Matrix products for CPUs. One work-item computes `rows` rows and COLUMNS columns of c. For DEPTH
// values of k at a time, it copies its columns of b to a panel that remains in the first-level
// cache. It multiplies rows of a with the panel. Registers hold a tile of TILE_ROWS rows by VECTORS
// vectors.
//
// These are defines: VECTOR; DEPTH, a multiple of VECTOR; EACH_ROW(DO) = DO(0) DO(1) ...
// DO(TILE_ROWS - 1); EACH_VECTOR(DO); EACH(DO) with DO(row, vector). IS_ROLLED prevents compilers
// from unrolling loops.
//
// Operands of other types are converted when they are copied to panels. A NUMBER is a float, a
// double for f64 or, if integers with zero points are multiplied, a uint. The products of other
// integers are floats, exact for DEPTH values of k. A SUM of integers is a uint, which wraps
// around. At the end it holds the bits of the float that is stored. A REAL is a float or a double.
// MASK makes a condition of its width.
//
// With HAS_SCALE or HAS_ZERO, elements of b are decoded when they are copied to the panel: `zeros`
// are subtracted, and the differences are multiplied by `scales`. Neighbours along k share a scale
// or zero point; it is read again at the end of each share. `gemm/elements.py` names the functions
// that read and write elements of each type.

#ifdef IS_ROLLED
#define LOOP _Pragma("unroll 1")
#define UNROLL LOOP
#else
#define LOOP
#define UNROLL _Pragma("unroll")
#endif

#define COLUMNS (VECTORS * VECTOR)
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(NUMBER, VECTOR) numbers;
typedef PASTE(SUM, VECTOR) totals;
typedef PASTE(int, VECTOR) ints;
typedef PASTE(uint, VECTOR) uints;
#define LOAD PASTE(vload, VECTOR)
#define STORE PASTE(vstore, VECTOR)
#define AS_UINTS PASTE(as_uint, VECTOR)

// Whether offsets are consecutive, so that one vector access is sufficient.
static inline int is_run(const int *at, const int count) {
    int run = 1;
    LOOP for (int j = 1; j < count; j++) run &= at[j] == at[0] + j;
    return run;
}

// The places of the scales or zero points of the columns, without the term of k.
#define PLACE_CODES(name)                                                                          \
    numbers name##s[VECTORS];                                                                      \
    int name##_at_n[COLUMNS];                                                                      \
    const int name##_at = name##_batch.w + DOT3(name##_batch, z);                                  \
    LOOP for (int j = 0; j < COLUMNS; j++)                                                         \
        name##_at_n[j] = name##_at + at_n[j].w / name##_n_share * name##_n;

// Reads those of the columns at digits d of k, and updates the end of their share of the last
// digit.
#define READ_CODES(name, AT)                                                                       \
    {                                                                                              \
        const int at = DOT4(name##_k, d / name##_k_share);                                         \
        NUMBER all[COLUMNS];                                                                       \
        UNROLL for (int j = 0; j < COLUMNS; j++) all[j] = AT(name##_at_n[j] + at);                 \
        LOOP for (int v = 0; v < VECTORS; v++) name##s[v] = LOAD(v, all);                          \
        end_share = min(end_share, (d.w / name##_k_share.w + 1) * name##_k_share.w);               \
    }

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void gemm_cpu($parameters) {
    const int n_size = COUNT(n), k_size = COUNT(k);
    if (n_size == 0 || m == 0) return;
    const int blocks = (n_size + COLUMNS - 1) / COLUMNS;
    const int first_n = get_group_id(0) % blocks * COLUMNS, first_m = get_group_id(1) * rows;
    const int last_m = min(first_m + rows, m) - 1;
    const int4 z = batch_digits(get_group_id(0) / blocks, batch);
    const int a_at = a_batch.w + DOT3(a_batch, z), b_at = b_batch.w + DOT3(b_batch, z);

    // The places of columns. Columns past the end repeat the last column and are not stored.
    int n_at[COLUMNS];
#ifdef WINDOW
    int n_y[COLUMNS], n_z[COLUMNS], n_w[COLUMNS];
#define PLACE(j) (int4)(0, n_y[j], n_z[j], n_w[j])
#endif
    int4 at_n[COLUMNS];
    at_n[0] = digits(first_n, n);
    LOOP for (int j = 0; j < COLUMNS; j++) {
        if (j > 0) at_n[j] = first_n + j < n_size ? next(at_n[j - 1], n) : at_n[j - 1];
        const int4 d = at_n[j];
        n_at[j] = b_at + DOT4(b_n, d);
#ifdef WINDOW
        n_y[j] = w_at.y + w_n.y * d.y;
        n_z[j] = w_at.z + w_n.z * d.z;
        n_w[j] = w_at.w + w_n.w * d.w;
#endif
    }
    const int is_line = is_run(n_at, COLUMNS);
    int runs[VECTORS];
    LOOP for (int v = 0; v < VECTORS; v++) runs[v] = is_run(n_at + v * VECTOR, VECTOR);
#ifdef WINDOW
    int4 lowest[VECTORS], highest[VECTORS];
    LOOP for (int v = 0; v < VECTORS; v++) {
        lowest[v] = highest[v] = PLACE(v * VECTOR);
        LOOP for (int j = v * VECTOR; j < (v + 1) * VECTOR; j++) {
            lowest[v] = min(lowest[v], PLACE(j));
            highest[v] = max(highest[v], PLACE(j));
        }
    }
#endif

#ifdef HAS_SCALE
    PLACE_CODES(scale)
#endif
#ifdef HAS_ZERO
    PLACE_CODES(zero)
#endif
    totals sums[MAX_ROWS * VECTORS];
    numbers panel[DEPTH * VECTORS];
    int k_at[DEPTH];
#ifdef A_CONVERTS
    NUMBER a_panel[TILE_ROWS * DEPTH];
#endif
    LOOP for (int i = 0; i < rows * VECTORS; i++) sums[i] = 0;

#if defined(HAS_SCALE) || defined(HAS_ZERO)
    int end_share = 0;
#endif
    const int first_k = z.w * part, end_k = min(k_size, first_k + part);
    int4 d = first_k < end_k ? digits(first_k, k) : (int4)(0);
    LOOP for (int block = first_k; block < end_k; block += DEPTH) {
        const int depth = min(DEPTH, end_k - block);
        LOOP for (int i = 0; i < depth; i++, d = next(d, k)) {
            k_at[i] = a_at + DOT4(a_k, d);
            const int at = DOT4(b_k, d);
#if defined(HAS_SCALE) || defined(HAS_ZERO)
            if (block + i == first_k || d.w == 0 || d.w == end_share) {
                end_share = k.w;
#ifdef HAS_SCALE
                READ_CODES(scale, SCALE_AT)
#endif
#ifdef HAS_ZERO
                READ_CODES(zero, ZERO_AT)
#endif
            }
#endif
#ifdef WINDOW
            const int4 shift = w_k * d;
#endif
#ifndef WINDOW
            const int line = n_at[0] + at;
            if (is_line && line >= 0 && line <= b_end - COLUMNS && B_BEGINS(line)) {
                UNROLL for (int v = 0; v < VECTORS; v++)
                    panel[VECTORS * i + v] = DECODED(B_RUN(line + v * VECTOR), v);
                UNROLL for (int e = 0; e < COLUMNS; e += B_FETCHED)
                    FETCH(B_POINTER(line + e + DEPTH * b_k.w));  // usually of the next block
                continue;
            }
#endif
            LOOP for (int v = 0; v < VECTORS; v++) {
#ifdef B_CONVERTS
                B_TYPE target[VECTOR];
#define GATHERED panel[VECTORS * i + v] = B_VECTOR_VALUE(LOAD(0, target));
#define HAS_ZERO_OUTSIDE panel[VECTORS * i + v] = MASK(inside) ? panel[VECTORS * i + v] : (numbers)(0);
#else
                NUMBER *target = (NUMBER *)(panel + VECTORS * i + v);
#define GATHERED
#define HAS_ZERO_OUTSIDE
#endif
                const int *from = n_at + v * VECTOR;
                const int start = from[0] + at;
                const int is_vector =
                    runs[v] && start >= 0 && start <= b_end - VECTOR && B_BEGINS(start);
                FETCH(B_POINTER(start + DEPTH * b_k.w));  // usually of the next block
#ifdef WINDOW
                if (!is_inside(lowest[v] + shift, w_size) || !is_inside(highest[v] + shift, w_size)) {
                    const ints y = LOAD(v, n_y) + shift.y, z = LOAD(v, n_z) + shift.z,
                               w = LOAD(v, n_w) + shift.w;
                    const ints inside = (AS_UINTS(y) < (uints)(w_size.y))
                        & (AS_UINTS(z) < (uints)(w_size.z)) & (AS_UINTS(w) < (uints)(w_size.w));
                    if (is_vector) {
                        const numbers x = B_RUN(start);
                        panel[VECTORS * i + v] = MASK(inside) ? x : (numbers)(0);
                    } else {
                        int here[VECTOR];
                        STORE(inside, 0, here);
                        LOOP for (int j = 0; j < VECTOR; j++)
                            target[j] = here[j] ? b[from[j] + at] : 0;
                        GATHERED
                        HAS_ZERO_OUTSIDE
                    }
                    continue;
                }
#endif
                if (is_vector)
                    panel[VECTORS * i + v] = B_RUN(start);
                else {
                    UNROLL for (int j = 0; j < VECTOR; j++) target[j] = B_AT(from[j] + at);
                    GATHERED
                }
                panel[VECTORS * i + v] = DECODED(panel[VECTORS * i + v], v);
            }
        }
#ifdef A_CONVERTS
        int k_is_run = 1;
        LOOP for (int i = 1; i < depth; i++) k_is_run &= k_at[i] == k_at[0] + i;
#endif
        LOOP for (int i = 0; i < rows; i += TILE_ROWS) {
#define DECLARE(r, v) numbers x##r##_##v = 0;
#define OF_PANEL(v) const numbers w##v = panel[VECTORS * j + v];
#define OF_ROW(r) const NUMBER s##r = ELEMENT(r);
#define STEP(r, v) x##r##_##v += s##r * w##v;
#define ADD(r, v) sums[VECTORS * (i + r) + v] += TO_SUM(x##r##_##v);
#define MULTIPLY                                                                                   \
    LOOP for (int j = 0; j < depth; j++) {                                                         \
        EACH_VECTOR(OF_PANEL)                                                                      \
        const int at = k_at[j];                                                                    \
        EACH_ROW(OF_ROW)                                                                           \
        EACH(STEP)                                                                                 \
    }
            const int row = first_m + i;
            EACH(DECLARE)
#ifdef A_CONVERTS
            LOOP for (int r = 0; r < TILE_ROWS; r++) {
                __global const A_TYPE *from = a + min(row + r, last_m) * a_m;
                NUMBER *to = a_panel + r * DEPTH;
                int j = 0;
                if (k_is_run)
                    LOOP for (; j + VECTOR <= depth; j += VECTOR)
                        STORE(A_VECTOR_VALUE(A_VECTOR_READ(from + k_at[j])), 0, to + j);
                LOOP for (; j < depth; j += VECTOR) {
                    A_TYPE bits[VECTOR];
                    LOOP for (int e = 0; e < VECTOR; e++)
                        bits[e] = from[k_at[min(j + e, depth - 1)]];
                    STORE(A_VECTOR_VALUE(LOAD(0, bits)), 0, to + j);
                }
            }
#define ELEMENT(r) a_panel[(r) * DEPTH + j]
            MULTIPLY
#else
            if (row + TILE_ROWS <= m) {
                // One pointer for four rows, because one per row would leave too few registers for
                // sums.
                const long step = a_m;
                __global const A_TYPE *p0 = a + row * a_m, *p1 = p0 + 4 * step, *p2 = p1 + 4 * step;
#define ELEMENT(r) ((r) < 4 ? p0 : (r) < 8 ? p1 : p2)[at + (r) % 4 * step]
                MULTIPLY
#undef ELEMENT
            } else {
#define ELEMENT(r) a[at + min(row + (r), last_m) * a_m]
                MULTIPLY
            }
#endif
            EACH(ADD)
        }
    }

    // Apply post-ops to the results and store them.
    int c_at[COLUMNS];
    LOOP for (int j = 0; j < COLUMNS; j++)
        c_at[j] = c_batch.w + DOT3(c_batch, z) + z.w * c_part + DOT4(c_n, at_n[j]);
    int c_runs[VECTORS];
    LOOP for (int v = 0; v < VECTORS; v++) c_runs[v] = is_run(c_at + v * VECTOR, VECTOR);
    const int columns = min(COLUMNS, n_size - first_n);
    LOOP for (int row = first_m; row <= last_m; row++) {
        SUM *sum = (SUM *)(sums + VECTORS * (row - first_m));
        __global C_TYPE *target = c + row * c_m;
        LOOP for (int j = 0; j < columns; j++) {
#ifdef POST_READS_DST
            const REAL old = C_VALUE(C_READ(target + c_at[j]));
#else
            const REAL old = 0;
#endif
            const REAL x = post_ops(SUM_VALUE(sum[j]), old, z.x, z.y, z.z, row, at_n[j].x,
                                     at_n[j].y, at_n[j].z, at_n[j].w POST_ARGS);
            sum[j] = KEPT(x);
        }
        LOOP for (int v = 0; v < columns; v += VECTOR) {
            if (c_runs[v / VECTOR]) {
                const totals kept = sums[VECTORS * (row - first_m) + v / VECTOR];
                C_VECTOR_WRITE(target + c_at[v], AS_REALS(kept));
            } else {
                LOOP for (int j = v; j < min(columns, v + VECTOR); j++)
                    C_WRITE(target + c_at[j], AS_REAL(sum[j]));
            }
        }
    }
}
