#define TILE_ROWS 128
#define TILE_COLUMNS 64
#define DEPTH 8
#define ITEM_ROWS 8
#define ITEM_COLUMNS 8
#define LANES_ACROSS 8
#define TABLE 64
#define A_WIDTH 4
#define A_ALONG_K 1
#define B_WIDTH 4
#define B_ALONG_K 1
#define C_WIDTH 4
#define REAL float
#define NUMBER float
#define NUMBERS float4
#define SUM_VALUE(sum) (sum)
#define A_TYPE float
#define A_ELEMENTS float4
#define A_READ(at) as_float4(*(__global const float4 *)(at))
#define A_VALUE(bits) (bits)
#define A_FETCHED(at, row, place) A_READ(a + (at))
#define B_TYPE float
#define B_ELEMENTS float4
#define B_READ(at) as_float4(*(__global const float4 *)(at))
#define B_VALUE(bits) (bits)
#define B_FETCHED(at, row, place) B_READ(b + (at))
#define C_TYPE float
#define C_ELEMENTS float4
#define C_READ(at) as_float4(*(__global const float4 *)(at))
#define C_VALUE(bits) (bits)
#define C_WRITE(at, value) *(__global float4 *)(at) = as_float4(value)
#define WINDOW_A 1
#define POST_PARAMS 
#define POST_ARGS 
static inline float post_ops(float x, const float old, const int i0, const int i1, const int i2, const int i3, const int i4, const int i5, const int i6, const int i7, const int i8, const int i9, const int i10 POST_PARAMS) {
    { const float s = x; x = s <= 0.0f ? 0.0f : s; }
    return x;
}
// Indices of up to four digits, slowest first, and offsets computed from digits and strides.

#define DOT4(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z + (a).w * (b).w)
#define DOT3(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z)
#define COUNT(size) ((size).x * (size).y * (size).z * (size).w)
#define AT_LEAST_1(size) max(size, (int4)(1))  // Oclgrind misreads a scalar next to a vector

// The digits of an index.
static inline int4 digits(int index, const int4 size) {
    int4 d;
    d.w = index % size.w;
    index /= size.w;
    d.z = index % size.z;
    index /= size.z;
    d.y = index % size.y;
    d.x = index / size.y;
    return d;
}

// A quotient computed with the inverse of the divisor, in units of 2^-32 and rounded up. Inverse 0
// means divisor 1, or divisor 0 if there is nothing to divide.
static inline int quotient(const int n, const int divisor, const uint inverse) {
    const uint q = mul_hi((uint)n, inverse);
    return inverse ? q - (q * divisor > (uint)n) : n;
}

// As digits(), with the inverse of each size.
static inline int4 quick_digits(int index, const int4 size, const uint4 inverse) {
    int4 d;
    int q = quotient(index, size.w, inverse.w);
    d.w = index - q * size.w;
    index = q;
    q = quotient(index, size.z, inverse.z);
    d.z = index - q * size.z;
    index = q;
    d.x = quotient(index, size.y, inverse.y);
    d.y = index - d.x * size.y;
    return d;
}

// The digits of the next index.
static inline int4 next(int4 d, const int4 size) {
    if (++d.w == size.w) {
        d.w = 0;
        if (++d.z == size.z) {
            d.z = 0;
            if (++d.y == size.y) {
                d.y = 0;
                d.x++;
            }
        }
    }
    return d;
}

// The batch's digits and, in w, the part of k, which is the slowest digit of a work-group's number.
static inline int4 batch_digits(const int index, const int4 batch) {
    return digits(index, AT_LEAST_1((int4)(1, batch.x, batch.y, batch.z))).yzwx;
}

// Products for GPUs: c[z, row, column] = sum over k of a[z, row, k] * b[z, k, column].
//
// A work-group computes a tile of TILE_ROWS x TILE_COLUMNS of c. A work-item has ITEM_ROWS x
// ITEM_COLUMNS of it in registers, in blocks of 4 x 4, so local memory is read 16 bytes at a time.
// Local memory has two buffers, each with tiles of both operands for DEPTH values of k. While a
// work-group multiplies one tile, it loads the next to registers and stores it to the other buffer.
// So a step needs one barrier.
//
// The index arithmetic is done once per work-group for rows and columns, and once per TABLE values
// of k, by one work-item each. Its results are in local memory. PLAIN_K: k has one stride in each
// operand, and needs no table.
//
// Other defines: *_WIDTH: elements of a or b per load, 4 or 1. *_ALONG_K: these are neighbours
// along k, not along rows. C_WIDTH: neighbours along a row of c per store. WINDOW_A or WINDOW_B:
// the operand that is an image. A coordinate is a sum of digits of the row and of k. If it is
// outside the image, the element is 0. `gemm/elements.py` names the functions that read and write
// elements of each type. A NUMBER is a float, a double for f64 or, if integers are multiplied, a
// uint, so that sums wrap around. A REAL is a float or a double.
//
// With HAS_SCALE or HAS_ZERO, elements of the operand with DECODED_ROWS rows are decoded when they
// are read, by tables of the places of scales and zero points.
//
// The kernel does not return early if there is nothing to do, because PoCL 3.0 then drops
// conditions after barriers. Instead, divisors are at least 1.

// Arrays are in registers only if loops over them are unrolled.
#define UNROLL _Pragma("unroll")

#if C_WIDTH == 4
#define GET(from) vload4(0, from)
#define PUT(value, to) vstore4(value, 0, to)
#else
#define GET(from) (*(from))
#define PUT(value, to) *(to) = value
#endif

#ifdef POST_READS_DST
#define READ_OLD(at) PUT(C_VALUE(C_READ(at)), old);
#else
#define READ_OLD(at)
#endif

// Stores C_WIDTH sums, a private array, at `at`: the elements from `column` on in the row of digits
// r, in the product of digits z.
#define FINISH(sums)                                                                              \
    {                                                                                             \
        REAL old[C_WIDTH] = {0}, result[C_WIDTH];                                                 \
        READ_OLD(at)                                                                              \
        UNROLL for (int e = 0; e < C_WIDTH; e++) {                                                \
            const int4 d = digits(column + e, columns);                                           \
            result[e] = post_ops(SUM_VALUE((sums)[e]), old[e], z.x, z.y, z.z, r.x, r.y, r.z, r.w, d.x, d.y,  \
                                 d.z, d.w POST_ARGS);                                             \
        }                                                                                         \
        C_WRITE(at, GET(result));                                                                 \
    }

#define ACROSS (TILE_COLUMNS / ITEM_COLUMNS)  // work-items side by side
#define DOWN (TILE_ROWS / ITEM_ROWS)  // work-items one below the other
#define ITEMS (DOWN * ACROSS)
#define LANES 32  // work-items that access local memory at once, LANES_ACROSS of them side by side
#define LINE(edge) ((edge) + 4)  // floats per line in local memory; the rest avoids bank conflicts

// The value of k and the row of the operand for the i-th load of a work-item.
#define LOADS(edge, width) ((edge) * DEPTH / (width) / ITEMS)
#define NTH(i) (item + (i) * ITEMS)
#define K_OF(i, edge, width, along_k) \
    ((along_k) ? NTH(i) % (DEPTH / (width)) * (width) : NTH(i) / ((edge) / (width)))
#define ROW_OF(i, edge, width, along_k) \
    ((along_k) ? NTH(i) / (DEPTH / (width)) : NTH(i) % ((edge) / (width)) * (width))
#define A(i, what) what(i, TILE_ROWS, A_WIDTH, A_ALONG_K)
#define B(i, what) what(i, TILE_COLUMNS, B_WIDTH, B_ALONG_K)

// The row or, past the last row, the last row at which a load can begin. Its values are not used.
#define WITHIN(row, count, SIDE) \
    ((row) < (count) ? (row) : (count) - (SIDE##_ALONG_K ? 1 : SIDE##_WIDTH))

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b
#define VALUE_1 NUMBER
#define VALUE_4 NUMBERS

// Stores to a line of a tile. A vector along k is stored to four lines.
#define STORE_1(target, edge, along_k, value) *(target) = value;
#define STORE_4(target, edge, along_k, value)                \
    if (along_k) {                                           \
        (target)[0] = value.x;                               \
        (target)[LINE(edge)] = value.y;                      \
        (target)[2 * LINE(edge)] = value.z;                  \
        (target)[3 * LINE(edge)] = value.w;                  \
    } else {                                                 \
        *(__local NUMBERS *)(target) = value;                \
    }

#if defined(WINDOW_A) || defined(WINDOW_B)
#define WINDOW
#endif

// Moves the digits along depth, height and width to y, z and w. The digits are (image, depth,
// height, width) or (depth, height, width, channel).
#define SPATIAL(d, channel_last) ((channel_last) ? (d).wxyz : (d))

#ifdef WINDOW_3D
#define AT_DEPTH(at, size) (uint)at.y < (uint)size.y
#else
#define AT_DEPTH(at, size) 1
#endif

// Whether all coordinates are inside the image.
static inline int is_inside(const int4 at, const int4 size) {
    return AT_DEPTH(at, size) && (uint)at.z < (uint)size.z && (uint)at.w < (uint)size.w;
}

#ifdef HAS_SCALE
#define IF_SCALE(text) text
#else
#define IF_SCALE(text)
#endif
#ifdef HAS_ZERO
#define IF_ZERO(text) text
#else
#define IF_ZERO(text)
#endif
// The place of the scale or zero point of a row with digits d, and the term of digits d of k.
#define CODE_AT_ROW(name, d)                                                                      \
    (name##_batch.w + DOT3(name##_batch, z) + (d).w / max(name##_n_share, 1) * name##_n)
#define CODE_AT_K(name, d) DOT4(name##_k, (d) / AT_LEAST_1(name##_k_share))

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemm_tiled(
    __global const float *a,
    __global const float *b,
    __global float *c,
    const int4 batch,
    const int4 rows,
    const int4 columns,
    const int4 k,
    const int4 a_batch,
    const int4 a_row,
    const int4 a_k,
    const int4 b_batch,
    const int4 b_row,
    const int4 b_k,
    const int4 c_batch,
    const int4 c_row,
    const int4 c_column,
    const int c_part,
    const int part,
    const int4 w_at,
    const int4 w_row,
    const int4 w_k,
    const int4 w_size,
    const int rows_channel_last,
    const int k_channel_last) {
    __local NUMBERS a_tile[2][DEPTH * LINE(TILE_ROWS) / 4];
    __local NUMBERS b_tile[2][DEPTH * LINE(TILE_COLUMNS) / 4];
    __local int a_at_row[TILE_ROWS], b_at_row[TILE_COLUMNS];
    __local int c_at_row[TILE_ROWS], c_at_column[TILE_COLUMNS];
#ifndef PLAIN_K
    __local int a_at_k[2 * TABLE], b_at_k[2 * TABLE];
#endif
#ifdef WINDOW_A
    __local int4 row_window[TILE_ROWS];
#endif
#ifdef WINDOW_B
    __local int4 row_window[TILE_COLUMNS];
#endif
#ifdef WINDOW
    __local int4 k_window[2 * TABLE];
#endif
    IF_SCALE(__local int scale_at_row[DECODED_ROWS]; __local int scale_at_k[2 * TABLE];)
    IF_ZERO(__local int zero_at_row[DECODED_ROWS]; __local int zero_at_k[2 * TABLE];)
    const int row_count = COUNT(rows), column_count = COUNT(columns), k_count = COUNT(k);
    const int item = get_local_id(0);
    const int row_tiles = max(1, (row_count + TILE_ROWS - 1) / TILE_ROWS);
    const int column_tiles = max(1, (column_count + TILE_COLUMNS - 1) / TILE_COLUMNS);
    const int tile = get_group_id(0) / column_tiles;
    const int first_column = (get_group_id(0) - tile * column_tiles) * TILE_COLUMNS;
    const int first_row = tile % row_tiles * TILE_ROWS;
    const int4 z = batch_digits(tile / row_tiles, batch);

    const int a_at = a_batch.w + DOT3(a_batch, z);
    const int b_at = b_batch.w + DOT3(b_batch, z);
    for (int i = item; i < TILE_ROWS; i += ITEMS) {
        const int4 d = digits(WITHIN(first_row + i, row_count, A), AT_LEAST_1(rows));
        a_at_row[i] = a_at + DOT4(a_row, d);
        c_at_row[i] = DOT4(c_row, d);
#ifdef DECODES_A
        IF_SCALE(scale_at_row[i] = CODE_AT_ROW(scale, d);)
        IF_ZERO(zero_at_row[i] = CODE_AT_ROW(zero, d);)
#endif
#ifdef WINDOW_A
        row_window[i] = w_at + SPATIAL(w_row * d, rows_channel_last);
#endif
    }
    for (int i = item; i < TILE_COLUMNS; i += ITEMS) {
        const int4 d = digits(WITHIN(first_column + i, column_count, B), AT_LEAST_1(columns));
        b_at_row[i] = b_at + DOT4(b_row, d);
        c_at_column[i] = DOT4(c_column, d);
#ifdef DECODES_B
        IF_SCALE(scale_at_row[i] = CODE_AT_ROW(scale, d);)
        IF_ZERO(zero_at_row[i] = CODE_AT_ROW(zero, d);)
#endif
#ifdef WINDOW_B
        row_window[i] = w_at + SPATIAL(w_row * d, rows_channel_last);
#endif
    }

    const int first_k = z.w * part, end_k = min(k_count, first_k + part);
    const int steps = max(0, (end_k - first_k + DEPTH - 1) / DEPTH);

// The places of values of k in both operands, for TABLE values at a time.
#ifdef WINDOW
#define LOCATE_WINDOW k_window[place] = SPATIAL(w_k * d, k_channel_last);
#else
#define LOCATE_WINDOW
#endif
#ifdef PLAIN_K
#define LOCATE(table) {}
#define AT_K(side, step, k_at) ((first_k + (step) * DEPTH + (k_at)) * side##_k.w)
#else
#define LOCATE(table)                                                      \
    if (item < TABLE) {                                                    \
        const int4 d = digits(first_k + (table) * TABLE + item, AT_LEAST_1(k));\
        const int place = (table) % 2 * TABLE + item;                      \
        a_at_k[place] = DOT4(a_k, d);                                \
        b_at_k[place] = DOT4(b_k, d);                              \
        IF_SCALE(scale_at_k[place] = CODE_AT_K(scale, d);)                 \
        IF_ZERO(zero_at_k[place] = CODE_AT_K(zero, d);)                    \
        LOCATE_WINDOW                                                      \
    }
#define AT_K(side, step, k_at) side##_at_k[(step) * DEPTH % (2 * TABLE) + (k_at)]
#endif

    LOCATE(0)
    barrier(CLK_LOCAL_MEM_FENCE);

    int a_row_at[LOADS(TILE_ROWS, A_WIDTH)], b_row_at[LOADS(TILE_COLUMNS, B_WIDTH)];
#ifdef WINDOW_A
    int4 at_row[LOADS(TILE_ROWS, A_WIDTH)];
#define A_IS_INSIDE(i, k_at, step)    \
    is_inside(at_row[i] + k_window[(step) * DEPTH % (2 * TABLE) + (k_at)], w_size)
#else
#define A_IS_INSIDE(i, k_at, step) 1
#endif
#ifdef WINDOW_B
    int4 at_row[LOADS(TILE_COLUMNS, B_WIDTH)];
#define B_IS_INSIDE(i, k_at, step)     \
    is_inside(at_row[i] + k_window[(step) * DEPTH % (2 * TABLE) + (k_at)], w_size)
#else
#define B_IS_INSIDE(i, k_at, step) 1
#endif
    UNROLL for (int i = 0; i < LOADS(TILE_ROWS, A_WIDTH); i++) {
        a_row_at[i] = a_at_row[A(i, ROW_OF)];
#ifdef WINDOW_A
        at_row[i] = row_window[A(i, ROW_OF)];
#endif
    }
    UNROLL for (int i = 0; i < LOADS(TILE_COLUMNS, B_WIDTH); i++) {
        b_row_at[i] = b_at_row[B(i, ROW_OF)];
#ifdef WINDOW_B
        at_row[i] = row_window[B(i, ROW_OF)];
#endif
    }

    A_ELEMENTS a_next[LOADS(TILE_ROWS, A_WIDTH)];
    B_ELEMENTS b_next[LOADS(TILE_COLUMNS, B_WIDTH)];

#define PLACE_OF_K(step, k_at) ((step) * DEPTH % (2 * TABLE) + (k_at))

// Loads the step's elements of both operands to registers, 0 outside.
#define FETCH_SIDE(side, SIDE, edge, step)                                                       \
    UNROLL for (int i = 0; i < LOADS(edge, SIDE##_WIDTH); i++) {                                 \
        const int k_at = SIDE(i, K_OF);                                                          \
        const int exists = first_k + (step) * DEPTH + k_at < end_k &&                            \
                           SIDE##_IS_INSIDE(i, k_at, step);                                      \
        const int at = side##_row_at[i] + AT_K(side, step, k_at);                                \
        side##_next[i] = 0;                                                                      \
        if (exists) side##_next[i] = SIDE##_FETCHED(at, SIDE(i, ROW_OF), PLACE_OF_K(step, k_at));\
    }
#define FETCH(step)                                                                              \
    {                                                                                            \
        FETCH_SIDE(a, A, TILE_ROWS, step)                                                        \
        FETCH_SIDE(b, B, TILE_COLUMNS, step)                                                     \
    }

// Stores the loaded elements to local memory, as numbers.
#define STORE_SIDE(side, SIDE, edge, step)                                                       \
    UNROLL for (int i = 0; i < LOADS(edge, SIDE##_WIDTH); i++) {                                 \
        __local NUMBER *target = (__local NUMBER *)side##_tile[(step) & 1] +                     \
                                SIDE(i, K_OF) * LINE(edge) + SIDE(i, ROW_OF);                    \
        const JOIN(VALUE_, SIDE##_WIDTH) value = SIDE##_VALUE(side##_next[i]);                   \
        JOIN(STORE_, SIDE##_WIDTH)(target, edge, SIDE##_ALONG_K, value)                          \
    }
#define STORE(step)                                                                              \
    {                                                                                            \
        STORE_SIDE(a, A, TILE_ROWS, step)                                                        \
        STORE_SIDE(b, B, TILE_COLUMNS, step)                                                     \
    }

    NUMBER sums[ITEM_ROWS][ITEM_COLUMNS];
    UNROLL for (int i = 0; i < ITEM_ROWS; i++)
        UNROLL for (int j = 0; j < ITEM_COLUMNS; j++) sums[i][j] = 0;
    const int warp = item / LANES, lane = item % LANES;
    const int x = warp % (ACROSS / LANES_ACROSS) * LANES_ACROSS + lane / 2 % LANES_ACROSS;
    const int y = warp / (ACROSS / LANES_ACROSS) * (LANES / LANES_ACROSS)
                  + lane / (2 * LANES_ACROSS) * 2 + lane % 2;

    if (steps > 0) {
        FETCH(0)
        STORE(0)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) FETCH(step + 1)
        if (step % (TABLE / DEPTH) == 0) LOCATE(step / (TABLE / DEPTH) + 1)
        __local const NUMBERS *a_line = a_tile[step & 1] + y;
        __local const NUMBERS *b_line = b_tile[step & 1] + x;
        _Pragma("unroll 2") for (int line = 0; line < DEPTH; line++) {
            NUMBER some_a[ITEM_ROWS], some_b[ITEM_COLUMNS];
            UNROLL for (int i = 0; i < ITEM_ROWS / 4; i++)
                vstore4(a_line[line * LINE(TILE_ROWS) / 4 + i * DOWN], i, some_a);
            UNROLL for (int j = 0; j < ITEM_COLUMNS / 4; j++)
                vstore4(b_line[line * LINE(TILE_COLUMNS) / 4 + j * ACROSS], j, some_b);
            UNROLL for (int i = 0; i < ITEM_ROWS; i++)
                UNROLL for (int j = 0; j < ITEM_COLUMNS; j++)
                    sums[i][j] += some_a[i] * some_b[j];
        }
        if (step + 1 < steps) STORE(step + 1)
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    __global C_TYPE *target = c + c_batch.w + DOT3(c_batch, z) + (size_t)z.w * c_part;
    UNROLL for (int i = 0; i < ITEM_ROWS; i++) {
        const int in_rows = (i / 4 * DOWN + y) * 4 + i % 4, row = first_row + in_rows;
        if (row >= row_count) continue;
        const int4 r = digits(row, rows);
        UNROLL for (int j = 0; j < ITEM_COLUMNS; j += C_WIDTH) {
            const int in_columns = (j / 4 * ACROSS + x) * 4 + j % 4;
            const int column = first_column + in_columns;
            if (column >= column_count) continue;
            __global C_TYPE *at = target + c_at_row[in_rows] + c_at_column[in_columns];
            FINISH(sums[i] + j)
        }
    }
}
