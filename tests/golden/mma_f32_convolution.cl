#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#define ELEMENT_BYTES 4
#define IS_F16 0
#define SPLIT 1
#define ROUNDED 0
#define SUM float
#define ROWS 128
#define COLUMNS 64
#define WARP_ROWS 64
#define WARP_COLUMNS 32
#define CHUNKS 8
#define STAGES 3
#define LIMITED 0
#define WIDE 0
#define IN_FLIGHT 0
#define CHAIN 2
#define RESULT float
#define TO_RESULT(x) (x)
#define FROM_RESULT(x) (x)
#define RESULT_BYTES 4
#define INTEGER_RESULT 0
#define A_ALONG_K 1
#define B_ALONG_K 1
#define WINDOW 1
#define FLAT_K 0
#define EVEN_K 0
#define PADDED_COLUMNS 0
#define BAND 8
#ifndef HALVES
#define HALVES
// Conversions of f16 and bf16, stored as ushorts, from and to float. They use only integers, so the
// device need not support f16 arithmetic.  stands for the number of elements or for nothing.

// The float of these bits. NaN is made quiet, as by a conversion in hardware.
static inline float quiet(const uint bits) {
    const float x = as_float(bits);
    return x == x ? x : as_float(bits | 0x400000u);
}

static inline float f16_to_float(const ushort value_bits) {
    const uint bits = convert_uint(value_bits), size = bits & 0x7fffu;
    const uint shift = size < 0x7c00u ? (uint)(112u << 23) : (uint)(224u << 23);
    const float denormal = convert_float(size) * 0x1p-24f;
    const float value = size < 0x400u ? denormal : as_float((size << 13) + shift);
    return quiet(as_uint(value) | (bits & 0x8000u) << 16);
}

static inline float bf16_to_float(const ushort bits) {
    return quiet(convert_uint(bits) << 16);
}

// To nearest, ties to even. 0.5 + x has the ulp of a denormal f16 (below 2^-14).
static inline ushort float_to_f16(const float x) {
    const uint size = as_uint(x) & 0x7fffffffu, sign = as_uint(x) ^ size;
    const uint denormal = as_uint(as_float(size) + 0.5f) - 0x3f000000u;
    const uint normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    const uint value = size < 113u << 23 ? denormal : min(normal, (uint)(0x7c00u));
    return convert_ushort((x == x ? value : 0x7e00u) | sign >> 16);
}

static inline ushort float_to_bf16(const float x) {
    const uint bits = as_uint(x);
    const uint value = bits + 0x7fffu + (bits >> 16 & 1u);
    return convert_ushort((x == x ? value : bits | 0x400000u) >> 16);
}

#endif

#define POST_PARAMS 
#define POST_ARGS 
static inline float post_ops(float x, const float old, const int i0, const int i1, const int i2, const int i3, const int i4, const int i5, const int i6, const int i7 POST_PARAMS) {
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

// The instructions of NVIDIA's tensor cores from sm_80 on, as inline PTX. Places in local memory
// are in chunks of 16 bytes, relative to `tiles`.

#define UNROLL _Pragma("unroll")
#if ELEMENT_BYTES == 1
#define SUM_OPERAND(x) "+r"(x)
#else
#define SUM_OPERAND(x) "+f"(x)
#endif
#define EXCHANGE

static inline uint place_of(__local const uint4 *tiles) { return (uint)(ulong)tiles; }

// Starts copying `bytes` bytes (0 to 16) of a chunk, and sets the rest of the chunk to zero.
static inline void copy_chunk(const uint to, __global const uint4 *from, const int chunk,
                              const int bytes) {
    __asm__ volatile("{ .reg .b64 from; mad.wide.s32 from, %2, 16, %1;"
                     " cp.async.cg.shared.global [%0], [from], 16, %3; }"
                     : : "r"(to), "l"(from), "r"(chunk), "r"(bytes) : "memory");
}

#define COPIES_END() __asm__ volatile("cp.async.commit_group;" : : : "memory")
#define COPIES_WAIT(left) __asm__ volatile("cp.async.wait_group %0;" : : "n"(left) : "memory")

// Loads four 8 x 8 matrices of 16-bit elements, or 8 x 4 of 32-bit elements. Lanes 8 i to 8 i + 7
// have the places of the rows of matrix i. Each lane receives elements 2 t and 2 t + 1 of row g, t
// = lane % 4, g = lane / 4. With `load_columns`, g is a column.
#define LOAD_ROWS(r0, r1, r2, r3, place)                                                           \
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"            \
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(place) : "memory")
#define LOAD_COLUMNS(r0, r1, r2, r3, place)                                                        \
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"      \
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(place) : "memory")

#define LOAD_CHUNK(four, place)                                                                    \
    __asm__ volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"                                    \
                     : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)                      \
                     : "r"(place) : "memory")

// c[16][8] += a[16][8 or 16] * b[8 or 16][8]. MULTIPLY_INTO does not read the old value of c.
#define MULTIPLY_ADD(c, a, b)                                                                      \
    {                                                                                              \
        __asm__(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                : SUM_OPERAND((c)[0]), SUM_OPERAND((c)[1]),                                        \
                  SUM_OPERAND((c)[2]), SUM_OPERAND((c)[3])                                         \
                : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]));   \
    }
#define MULTIPLY_INTO(c, a, b)                                                                     \
    {                                                                                              \
        __asm__(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"         \
                : "=f"((c)[0]), "=f"((c)[1]), "=f"((c)[2]), "=f"((c)[3])                           \
                : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]),    \
                  "f"(0.0f));                                                                      \
    }

static inline uint to_tf32(const uint x) {
    uint bits;
    __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(as_float(x)));
    return bits;
}

// Two numbers as 16-bit halves of a word, the first one in the low half.
static inline uint f16_pair(const float low, const float high) {
    uint bits;
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

static inline uint bf16_pair(const float low, const float high) {
    uint bits;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// y becomes the x of the lane whose number differs in bit `bit`. All lanes must execute it.
#define LANE_XOR(y, x, bit)                                                                        \
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(y) : "f"(x), "r"(bit));

// 2 to the power of x, with an error of two units in the last place; denormal numbers become 0.
static inline float quick_exp2(const float x) {
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Matrix products on tensor cores: c[row, column] = sum over k of a[row, k] * b[column, k].
//
// A work-group computes ROWS x COLUMNS elements of c. Each of its warps has WARP_ROWS x
// WARP_COLUMNS of them in registers. The work-group processes k in stages of DEPTH values. Copies
// of the tiles of a and b to local memory begin AHEAD stages ahead.
//
// With WIDE, four warps multiply together (`mma_wide.cl`), and WARP_ROWS and WARP_COLUMNS are per
// four warps. The tensor cores then read operands from local memory, up to IN_FLIGHT stages later.
//
// Operands are read in chunks of 16 bytes. If the chunks of an operand lie ALONG_K, its tiles have
// a line of CHUNKS chunks for each row (or column). Otherwise they have a line for each k, with
// chunks along the rows. Chunks are permuted within a line, so that lanes do not conflict for a
// bank.
//
// k has up to three outer digits, the taps of a convolution, and an inner digit. With WINDOW, an
// operand is an image: a if it lies along k, else b. A coordinate is a sum of a digit of k and a
// digit of the row or column. If a coordinate is outside the image, the element is 0.

#define WARPS_M (ROWS / WARP_ROWS)
#define WARPS_N (COLUMNS / WARP_COLUMNS)
#define ITEMS ((WIDE ? 128 : 32) * WARPS_M * WARPS_N)
#define TILE_ROWS (WIDE ? 64 : 16)
#define PER_CHUNK (16 / ELEMENT_BYTES)
#define DEPTH (CHUNKS * PER_CHUNK)
#define A_CHUNKS (ROWS * CHUNKS)
#define B_CHUNKS (COLUMNS * CHUNKS)
#define TILES_M (WARP_ROWS / TILE_ROWS)
#define TILES_N (WARP_COLUMNS / 8)
#define STEPS (CHUNKS / 2)  // multiplications of a pair of tiles per stage
#define AHEAD (STAGES - 1 - IN_FLIGHT)  // stages whose copies have begun

#define WINDOW_A (WINDOW && A_ALONG_K)
#define WINDOW_B (WINDOW && !A_ALONG_K)

#define A_LINES (A_ALONG_K ? ROWS : DEPTH)
#define B_LINES (B_ALONG_K ? COLUMNS : DEPTH)
#define A_LINE (A_CHUNKS / A_LINES)  // chunks
#define B_LINE (B_CHUNKS / B_LINES)
#define A_STEP (ITEMS / A_LINE)  // lines that the group copies at once
#define B_STEP (ITEMS / B_LINE)
#define A_COPIES (A_LINES / A_STEP)
#define B_COPIES (B_LINES / B_STEP)

// The position of chunk `chunk` within line `line`. Lanes that read at the same time differ in the
// three lowest bits of a row, in bits 2 to 4 of a column (in registers columns are permuted, see
// COLUMN_OF), and across lines in the two (32-bit elements) or three (16-bit elements) lowest bits
// of k.
#define A_ALONG(line) (CHUNKS == 8 ? (line) & 7 : (line) >> 1 & 3)
#define A_AT(line, chunk) ((chunk) ^ (A_ALONG_K ? A_ALONG(line) : ACROSS(line)))
#define B_AT(line, chunk) ((chunk) ^ (B_ALONG_K ? (line) >> 2 & (CHUNKS - 1) : ACROSS(line)))
#define ACROSS(line) (ELEMENT_BYTES == 4 ? ((line) & 3) << 1 : (line) & 7)

// Tables hold the places of lines across k. No table is needed if k has one digit (FLAT_K), or if a
// lies along k and the inner digit of k has whole stages (EVEN_K).
#define HAS_TABLES ((!A_ALONG_K || !B_ALONG_K) && !FLAT_K && !EVEN_K)

// The position of a chunk relative to the first line. If tensor cores read local memory, they
// require: lines of 8 chunks, permuted by the line's lowest bits; longer lines in blocks of 8
// chunks.
#if WIDE
#define LINE_CHUNKS(A) 8
#define PLACE(A, line, chunk)                                                                      \
    (((chunk) / 8 * A##_LINES + (line)) * 8 + ((chunk) % 8 ^ ((line) & 7)))
#else
#define LINE_CHUNKS(A) A##_LINE
#define PLACE(A, line, chunk) ((line) * A##_LINE + A##_AT(line, chunk))
#endif

// ROW_OF: the row of c of a tile's elements 0 and 1 (half 0) or 2 and 3 (half 1). COLUMN_OF: the
// column of elements 0 and 2, or 1 and 3 (odd). Four 32-bit elements of a chunk across k belong to
// four tiles. b along k is read in the same way, so that each lane has eight adjacent columns.
#define BY_FOUR_M (!A_ALONG_K && ELEMENT_BYTES == 4)
#define BY_FOUR_N (B_ALONG_K || ELEMENT_BYTES == 4)
// Four warps exchange columns of b across k, so that each lane has eight adjacent columns.
#define EXCHANGED (WIDE && !B_ALONG_K)
#define GATHERED (BY_FOUR_N || EXCHANGED ? 4 : 1)  // tiles in which a lane has adjacent columns
#define ROW_OF(tile, half)                                                                         \
    (BY_FOUR_M ? (tile) / 2 * 32 + (lane >> 2) * 4 + (tile) % 2 * 2 + (half)                       \
               : (tile) * TILE_ROWS + (half) * 8 + (lane >> 2))
#define COLUMN_OF(tile, odd)                                                                       \
    (BY_FOUR_N   ? (tile) / 4 * 32 + (lane & 3) * 8 + (odd) * 4 + (tile) % 4                       \
     : EXCHANGED ? (tile) / 4 * 32 + (lane & 3) * 8 + (tile) % 4 * 2 + (odd)                       \
                 : (tile) * 8 + (lane & 3) * 2 + (odd))

// The column of line `line` of b along k, consistent with COLUMN_OF.
#define COLUMN_OF_LINE(line)                                                                       \
    (WIDE ? (line) / 32 * 32 + (line) / 2 % 4 * 8 + (line) % 2 * 4 + (line) / 8 % 4 : (line))

// Columns that only pad a digit to whole chunks are not elements of c.
#define IS_COLUMN(at) (!PADDED_COLUMNS || (at) % column.w < inner_columns)

// A lane's results are stored in runs, as long as possible.
#if GATHERED == 4 && RESULT_BYTES > 1
#define RUN uint4
#elif RESULT_BYTES == 4 || GATHERED == 4
#define RUN uint2
#else
#define RUN uint
#endif
#define WORDS (2 * GATHERED * RESULT_BYTES / 4)
#define RUNS (WORDS * 4 / (int)sizeof(RUN))

// Results as 32-bit words, and one result of such words.
#if RESULT_BYTES == 4 && !INTEGER_RESULT
#define RESULT_WORD(values, i) as_uint((values)[i])
#define RESULT_OF(words, i) as_float((words)[i])
#elif RESULT_BYTES == 4
#define RESULT_WORD(values, i) as_uint(TO_RESULT((values)[i]))
#define RESULT_OF(words, i) as_int((words)[i])
#elif RESULT_BYTES == 1
#define RESULT_BYTE(x) ((uint)(uchar)TO_RESULT(x))
#define RESULT_WORD(values, i)                                                                     \
    (RESULT_BYTE((values)[4 * (i)]) | RESULT_BYTE((values)[4 * (i) + 1]) << 8                      \
     | RESULT_BYTE((values)[4 * (i) + 2]) << 16 | RESULT_BYTE((values)[4 * (i) + 3]) << 24)
#define RESULT_OF(words, i) (RESULT)((words)[(i) / 4] >> 8 * ((i) % 4))
#else
#define RESULT_WORD(values, i) RESULT_PAIR((values)[2 * (i)], (values)[2 * (i) + 1])
#define RESULT_OF(words, i) (ushort)((words)[(i) / 2] >> 16 * ((i) % 2))
#endif

// One bit per tap of a dim, set if inside: `size` pixels, the first tap at `at`, taps `step` apart.
static inline uint inside_bits(const int at, const int step, const int size, const int taps) {
    if (step == 1 || step == -1) {
        const int begin = clamp(step > 0 ? -at : at - size + 1, 0, taps);
        const int end = clamp(step > 0 ? size - at : at + 1, begin, taps);
        return (1u << end) - (1u << begin);
    }
    uint bits = 0;
    for (int t = 0; t < taps; t++) bits |= (uint)((uint)(at + t * step) < (uint)size) << t;
    return bits;
}

// Bytes of a chunk if `elements` elements remain.
#define BYTES(elements) (clamp(elements, 0, PER_CHUNK) * ELEMENT_BYTES)

#define NOWHERE INT_MIN  // the place of lines past the end of k

#if SPLIT
// The lower of the two numbers into which an f32 is split has no bits below 2^-136. So numbers
// below TINY lose bits.
#define TINY 0x1p-112f
#define SMALL_SUM 0x1p-40f

static inline int has_tiny(__global const uint4 *from, const int chunk, const int bytes) {
    int tiny = 0;
    UNROLL for (int i = 0; i < 4; i++)
        if (4 * i < bytes) {
            const uint doubled = ((__global const uint *)(from + chunk))[i] << 1;  // without sign
            tiny |= doubled != 0 && doubled < as_uint(TINY) << 1;
        }
    return tiny;
}
#endif

#define TAP_BITS_Z 11  // the first bits of the middle dim and of the slowest dim
#define TAP_BITS_Y 22

__kernel
#if !LIMITED  // a required size makes the compiler ignore a limit of registers
__attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#endif
void mma(
    __global const uint4 *a,
    __global const uint4 *b,
    __global RESULT *c,
    const int4 batch,
    const int rows,
    const int columns,
    const int stages,
    const int part,
    const int4 cover,
    const uint4 cover_inverse,
    const uint4 batch_inverse,
    const int4 k,
    const uint4 k_inverse,
    const int inner,
    const int4 a_batch,
    const int4 a_k,
    const int4 row,
    const uint4 row_inverse,
    const int4 a_row,
    const int4 b_batch,
    const int4 b_k,
    const int4 column,
    const uint4 column_inverse,
    const int4 b_column,
    const int inner_columns,
    const long4 c_batch,
    const int4 c_digits,
    const uint4 c_inverse,
    const long4 c_row,
    const long c_part,
    const int4 w_at,
    const int4 w_n,
    const int4 w_k,
    const int4 w_size) {
    // Copies to lines that are not aligned to 128 bytes take twice as long. A permutation of 8
    // lines must be aligned to 1024 bytes.
    __local uint4 __attribute__((aligned(WIDE ? 1024 : 128))) tiles[STAGES * (A_CHUNKS + B_CHUNKS)];
    __local int is_special, is_small;
    EXCHANGE
    // The offsets of rows in c. One work-item computes each, and all read it.
    __local int c_rows[ROWS];
#if A_ALONG_K
    __local int a_rows[ROWS];
#elif HAS_TABLES
    __local int a_lines[2][DEPTH];
#endif
#if WINDOW_A
    __local uint a_taps[ROWS];  // the taps inside the image
#endif
#if B_ALONG_K || !HAS_TABLES
#elif WINDOW_B
    __local int4 b_lines[2][DEPTH];
#else
    __local int b_lines[2][DEPTH];
#endif
    if (rows == 0 || columns == 0) return;
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint place = place_of(tiles);

    // Concurrent work-groups share rows and columns: they are ordered down BAND tiles, then to the
    // right.
    const int group = get_group_id(0), product = quotient(group, cover.x, cover_inverse.x);
    const int4 z = quick_digits(product, (int4)(1, batch.xyz), (uint4)(0, batch_inverse.xyz)).yzwx;
    const int tile = group - product * cover.x, band = quotient(tile, cover.y, cover_inverse.y);
    const int within = tile - band * cover.y, height = min(cover.z - band * BAND, BAND);
    const int across = height == BAND ? within / BAND : quotient(within, height, cover_inverse.z);
    const int first_row = (band * BAND + within - across * height) * ROWS;
    const int first_column = across * COLUMNS;

    const int first = z.w * part, end = min(stages, first + part);
    const int k_outer = k.x * k.y * k.z;

    // The chunks that this work-item copies: in each stage the same position in lines, in some of
    // the lines.
    a += a_batch.w + DOT3(a_batch, z);
    b += b_batch.w + DOT3(b_batch, z);
    const int a_chunk = item % A_LINE, a_line = item / A_LINE;
    const int b_chunk = item % B_LINE, b_line = item / B_LINE;
    for (int i = item; i < ROWS; i += ITEMS) {
        const int at = min(first_row + i, rows - 1);
        c_rows[i] = DOT4(c_row, quick_digits(at, c_digits, c_inverse));
#if A_ALONG_K
        const int4 d = quick_digits(at, row, row_inverse);
        a_rows[i] = DOT4(a_row, d);
#endif
#if WINDOW_A
        a_taps[i] = inside_bits(w_at.w + w_n.w * d.w, w_k.w, w_size.w, k.z)
            | inside_bits(w_at.z + w_n.z * d.z, w_k.z, w_size.z, k.y) << TAP_BITS_Z
            | inside_bits(w_at.y + w_n.y * d.y, w_k.y, w_size.y, k.x) << TAP_BITS_Y;
#endif
    }
#if A_ALONG_K
    barrier(CLK_LOCAL_MEM_FENCE);
    int a_at[A_COPIES];
    UNROLL for (int i = 0; i < A_COPIES; i++) a_at[i] = a_rows[a_line + i * A_STEP];
#if WINDOW_A
    uint a_inside[A_COPIES];
    UNROLL for (int i = 0; i < A_COPIES; i++) a_inside[i] = a_taps[a_line + i * A_STEP];
#endif
#else
    a += first_row / PER_CHUNK + a_chunk;
    const int a_bytes = BYTES(rows - first_row - a_chunk * PER_CHUNK);
#endif
#if B_ALONG_K
    int b_at[B_COPIES];
    UNROLL for (int i = 0; i < B_COPIES; i++)
        b_at[i] = min(first_column + COLUMN_OF_LINE(b_line + i * B_STEP), columns - 1) * b_column.w;
#else
    const int b_first = first_column + b_chunk * PER_CHUNK;
    const int b_digits = quotient(min(b_first, columns - 1), column.w, column_inverse.w) * column.w;
    const int4 b_tap = quick_digits(b_digits, column, column_inverse);
    const int b_in = b_first - b_digits;
    b += DOT3(b_column, b_tap) + b_in / PER_CHUNK;
#if WINDOW_B
    const int4 b_shift = w_n * (int4)(0, b_tap.x, b_tap.y, b_tap.z);
#endif
    const int b_bytes = b_first < columns ? BYTES(inner_columns - b_in) : 0;
#endif

    // Along k: the next taps, the next chunk of the inner digit, and their offsets.
#if A_ALONG_K || B_ALONG_K
    // If both operands lie along k, their lines have the same length and the same place in k.
    const int inner_chunks = k.w / PER_CHUNK, k_chunk = A_ALONG_K ? a_chunk : b_chunk;
    int at_chunk, a_from, b_from, k_from;
    uint taps;
    int4 tap;
#define FIRST_CHUNK                                                                                \
    k_from = quotient(first * CHUNKS + k_chunk, inner_chunks, cover_inverse.w);                    \
    at_chunk = first * CHUNKS + k_chunk - k_from * inner_chunks;                                   \
    tap = quick_digits(k_from, (int4)(1, 1, k.yz), (uint4)(0, 0, k_inverse.yz)).xzwy;              \
    FROM_TAP
#define FROM_TAP                                                                                   \
    a_from = DOT3(a_k, tap) + at_chunk;                                                            \
    b_from = DOT3(b_k, tap) + at_chunk;                                                            \
    taps = 1u << tap.z | 1u << (TAP_BITS_Z + tap.y) | 1u << (TAP_BITS_Y + tap.x);
#define NEXT_CHUNK                                                                                 \
    at_chunk += CHUNKS;                                                                            \
    a_from += CHUNKS;                                                                              \
    b_from += CHUNKS;                                                                              \
    if (at_chunk >= inner_chunks) {                                                                \
        for (; at_chunk >= inner_chunks; at_chunk -= inner_chunks)                                 \
            if (++tap.z == k.z) {                                                                  \
                tap.z = 0;                                                                         \
                if (++tap.y == k.y) {                                                              \
                    tap.y = 0;                                                                     \
                    tap.x++;                                                                       \
                }                                                                                  \
            }                                                                                      \
        FROM_TAP                                                                                   \
    }
#define CHUNK_BYTES                                                                                \
    const int bytes = is_needed && tap.x < k.x                                                     \
        ? BYTES(inner - at_chunk * PER_CHUNK) : 0;
#else
#define FIRST_CHUNK
#define NEXT_CHUNK
#define CHUNK_BYTES
#endif

// Across k: store the places of the lines of stage `stage` for a later COPY.
#if !HAS_TABLES
#define FIRST_LINE
#define PREPARE(stage)
#elif WIDE
// A work-item adds digits from stage to stage, because this takes less time than quotients, and all
// work-items wait for it.
    const int4 line_step = quick_digits(DEPTH, k, k_inverse);
    int4 line;
#define FIRST_LINE line = quick_digits(first * DEPTH + item, k, k_inverse);
#define PREPARE(stage)                                                                             \
    if (item < DEPTH) {                                                                            \
        const int is_there = line.w < inner && line.x < k.x;                                       \
        PREPARE_A((stage) & 1, line)                                                               \
        PREPARE_B((stage) & 1, line)                                                               \
        line += line_step;                                                                         \
        CARRY(w, z)                                                                                \
        CARRY(z, y)                                                                                \
        CARRY(y, x)                                                                                \
    }
#define CARRY(digit, next)                                                                         \
    if (line.digit >= k.digit) {                                                                   \
        line.digit -= k.digit;                                                                     \
        line.next++;                                                                               \
    }
#else
#define FIRST_LINE
#define PREPARE(stage)                                                                             \
    if (item < DEPTH) {                                                                            \
        const int at = (stage) * DEPTH + item;                                                     \
        const int4 d = quick_digits(at, k, k_inverse);                                             \
        const int is_there = d.w < inner && at < k_outer * k.w;                                    \
        PREPARE_A((stage) & 1, d)                                                                  \
        PREPARE_B((stage) & 1, d)                                                                  \
    }
#endif
#if A_ALONG_K
#define PREPARE_A(slot, d)
#else
#define PREPARE_A(slot, d) a_lines[slot][item] = is_there ? DOT4(a_k, d) : NOWHERE;
#endif
#if B_ALONG_K
#define PREPARE_B(slot, d)
#elif WINDOW_B
#define PREPARE_B(slot, d)                                                                         \
    const int4 w = w_at + w_k * d;                                                                 \
    b_lines[slot][item] = (int4)(DOT4(b_k, d), w.y, w.z, is_there ? w.w : -(1 << 30));
#else
#define PREPARE_B(slot, d) b_lines[slot][item] = is_there ? DOT4(b_k, d) : NOWHERE;
#endif

// The places in a tile of this work-item's first two lines. The places of later lines differ from
// one of these by whole lines, which are constants.
#define TILE_PLACE(A, line, chunk) (PLACE(A, line, chunk) * 16)
#define STEP_BYTES(A) (A##_STEP * LINE_CHUNKS(A) * 16)
    const uint a_to[2] = {TILE_PLACE(A, a_line, a_chunk),
                          TILE_PLACE(A, a_line + A_STEP, a_chunk) - STEP_BYTES(A)};
    const uint b_to[2] = {TILE_PLACE(B, b_line, b_chunk),
                          TILE_PLACE(B, b_line + B_STEP, b_chunk) - STEP_BYTES(B)};
#define COPY_TO(A, a, i) (to + a##_to[(i) & 1] + (i) * STEP_BYTES(A))

#if WINDOW_A
#define A_BYTES(i) ((a_inside[i] & taps) == taps ? bytes : 0)
#else
#define A_BYTES(i) bytes
#endif
#if A_ALONG_K
#define COPY_A(slot, i) TAKE(COPY_TO(A, a, i), a, a_at[i] + a_from, A_BYTES(i));
#elif FLAT_K
#define COPY_A(slot, i)                                                                            \
    {                                                                                              \
        const int at = k_at + a_line + (i) * A_STEP;                                               \
        TAKE(COPY_TO(A, a, i), a, at * a_k.w, at < k_end ? a_bytes : 0);                           \
    }
#else
#define COPY_A(slot, i)                                                                            \
    {                                                                                              \
        const int from = a_lines[slot][a_line + (i) * A_STEP];                                     \
        TAKE(COPY_TO(A, a, i), a, from, from != NOWHERE && is_needed ? a_bytes : 0);               \
    }
#endif
#if B_ALONG_K
#define COPY_B(slot, i) TAKE(B_TILE + COPY_TO(B, b, i), b, b_at[i] + b_from, bytes);
#elif FLAT_K
#define COPY_B(slot, i)                                                                            \
    {                                                                                              \
        const int at = k_at + b_line + (i) * B_STEP;                                               \
        TAKE(B_TILE + COPY_TO(B, b, i), b, at * b_k.w, at < k_end ? b_bytes : 0);                  \
    }
#elif EVEN_K
#define COPY_B(slot, i)                                                                            \
    TAKE(B_TILE + COPY_TO(B, b, i), b, b_lines_at + (i) * B_STEP * b_k.w, bytes ? b_bytes : 0);
#elif WINDOW_B
#define COPY_B(slot, i)                                                                            \
    {                                                                                              \
        const int4 from = b_lines[slot][b_line + (i) * B_STEP];                                    \
        const int is_inside = (uint)(from.y + b_shift.y) < (uint)w_size.y                          \
            && (uint)(from.z + b_shift.z) < (uint)w_size.z                                         \
            && (uint)(from.w + b_shift.w) < (uint)w_size.w;                                        \
        TAKE(B_TILE + COPY_TO(B, b, i), b, from.x, is_inside && is_needed ? b_bytes : 0);          \
    }
#else
#define COPY_B(slot, i)                                                                            \
    {                                                                                              \
        const int from = b_lines[slot][b_line + (i) * B_STEP];                                     \
        TAKE(B_TILE + COPY_TO(B, b, i), b, from, from != NOWHERE && is_needed ? b_bytes : 0);      \
    }
#endif

#if EVEN_K
#define PLACE_IN_K(stage)                                                                          \
    const int b_lines_at =                                                                         \
        b_from - at_chunk + ((at_chunk - a_chunk) * PER_CHUNK + b_line) * b_k.w;
#elif FLAT_K
#define PLACE_IN_K(stage) const int k_at = (stage) * DEPTH, k_end = is_needed ? inner : 0;
#else
#define PLACE_IN_K(stage)
#endif

// The operation on chunks: a copy to a tile.
#define TAKE copy_chunk

// The copy of a stage is divided into parts, one during each step but the last, which multiplies
// after the barrier. A stage that is not needed is set to zero.
#define COPY_BEGINS(stage, to_)                                                                    \
    const uint to = to_;                                                                           \
    const int is_needed = (stage) < end, slot = (stage) & 1;                                       \
    PLACE_IN_K(stage)                                                                              \
    CHUNK_BYTES
#define COPY_PART(part, parts)                                                                     \
    UNROLL for (int i = A_COPIES * (part) / (parts); i < A_COPIES * ((part) + 1) / (parts); i++)   \
        COPY_A(slot, i)                                                                            \
    UNROLL for (int i = B_COPIES * (part) / (parts); i < B_COPIES * ((part) + 1) / (parts); i++)   \
        COPY_B(slot, i)
#define COPY_ENDS                                                                                  \
    COPIES_END();                                                                                  \
    NEXT_CHUNK
#define B_TILE (A_CHUNKS * 16)
#define STAGE_BYTES ((A_CHUNKS + B_CHUNKS) * 16)
#define NEXT_STAGE(at) (at == place + (STAGES - 1) * STAGE_BYTES ? place : at + STAGE_BYTES)

#if WIDE
    const int group_row = warp / 4 % WARPS_M * WARP_ROWS, warp_row = group_row + warp % 4 * 16;
    const int warp_column = warp / 4 / WARPS_M * WARP_COLUMNS;
#else
    const int warp_row = warp % WARPS_M * WARP_ROWS, warp_column = warp / WARPS_M * WARP_COLUMNS;

// A step's part of a or b, in registers in the form for MULTIPLY_ADD, and the places where a lane
// finds it. Only places within a tile whose distance is not constant are stored.
#if A_ALONG_K
    uint a_places[STEPS];
    UNROLL for (int i = 0; i < STEPS; i++)
        a_places[i] = TILE_PLACE(A, warp_row + (lane & 15), i * 2 + (lane >> 4));
#define LOAD_A(i, step, r)                                                                         \
    LOAD_ROWS(r[i][0], r[i][1], r[i][2], r[i][3], tile_at + a_places[step] + (i) * 16 * A_LINE * 16);
#elif ELEMENT_BYTES == 2
    uint a_places[TILES_M];
    UNROLL for (int i = 0; i < TILES_M; i++)
        a_places[i] = TILE_PLACE(A, (lane >> 4) * 8 + (lane & 7),
                                 warp_row / 8 + i * 2 + (lane >> 3 & 1));
#define LOAD_A(i, step, r)                                                                         \
    LOAD_COLUMNS(r[i][0], r[i][1], r[i][2], r[i][3],                                               \
                 tile_at + a_places[i] + (step) * 16 * A_LINE * 16);
#else
    const uint a_place = TILE_PLACE(A, lane & 3, warp_row / 4 + (lane >> 2));
#define LOAD_A(i, step, r)                                                                         \
    if ((i) % 2 == 0) UNROLL for (int k4 = 0; k4 < 2; k4++) {                                      \
        uint4 four;                                                                                \
        LOAD_CHUNK(four, tile_at + a_place + (((step) * 8 + k4 * 4) * A_LINE + (i) * 4) * 16);     \
        r[i][2 * k4] = four.x;                                                                     \
        r[i][2 * k4 + 1] = four.y;                                                                 \
        r[(i) + 1][2 * k4] = four.z;                                                               \
        r[(i) + 1][2 * k4 + 1] = four.w;                                                           \
    }
#endif
#if B_ALONG_K
    uint b_places[STEPS];
    UNROLL for (int i = 0; i < STEPS; i++)
        b_places[i] = B_TILE + TILE_PLACE(B, warp_column + (lane & 7) * 4 + (lane >> 4),
                                          i * 2 + (lane >> 3 & 1));
#define LOAD_B(j, step, r)                                                                         \
    if ((j) % 2 == 0)                                                                              \
        LOAD_ROWS(r[j][0], r[j][1], r[(j) + 1][0], r[(j) + 1][1],                                  \
                  tile_at + b_places[step] + ((j) / 4 * 32 + (j) % 4) * B_LINE * 16);
#elif ELEMENT_BYTES == 2
    uint b_places[TILES_N / 2];
    UNROLL for (int j = 0; j < TILES_N; j += 2)
        b_places[j / 2] = B_TILE + TILE_PLACE(B, lane & 15, warp_column / 8 + j + (lane >> 4));
#define LOAD_B(j, step, r)                                                                         \
    if ((j) % 2 == 0)                                                                              \
        LOAD_COLUMNS(r[j][0], r[j][1], r[(j) + 1][0], r[(j) + 1][1],                               \
                     tile_at + b_places[(j) / 2] + (step) * 16 * B_LINE * 16);
#else
    const uint b_place = B_TILE + TILE_PLACE(B, lane & 3, warp_column / 4 + (lane >> 2));
#define LOAD_B(j, step, r)                                                                         \
    if ((j) % 4 == 0) UNROLL for (int k4 = 0; k4 < 2; k4++) {                                      \
        uint4 four;                                                                                \
        LOAD_CHUNK(four, tile_at + b_place + (((step) * 8 + k4 * 4) * B_LINE + (j) * 2) * 16);     \
        r[j][k4] = four.x;                                                                         \
        r[(j) + 1][k4] = four.y;                                                                   \
        r[(j) + 2][k4] = four.z;                                                                   \
        r[(j) + 3][k4] = four.w;                                                                   \
    }
#endif

// The operands of a step are loaded to registers one step earlier.
    uint a_part[2][TILES_M][4], b_part[2][TILES_N][2];
#define FETCH(step)                                                                                \
    UNROLL for (int j = 0; j < TILES_N; j++) LOAD_B(j, step, b_part[(step) & 1])                   \
    UNROLL for (int i = 0; i < TILES_M; i++) LOAD_A(i, step, a_part[(step) & 1])

#endif

    SUM sums[TILES_M][TILES_N][4];
#if SPLIT
// Each number is split into two numbers of 11 bits, which tensor cores support. The high one is
// rounded, so that the low one has fewer bits. The product of the low ones is omitted; it is at
// most 2^-22 of the whole. Tensor cores truncate their sums, so sums of CHAIN steps are added by
// the vector unit, which rounds.
    float chain[TILES_M][TILES_N][4];
#define MULTIPLY(step)                                                                             \
    {                                                                                              \
        uint (*a_high)[4] = a_part[(step) & 1], (*b_high)[2] = b_part[(step) & 1];                 \
        uint b_low[TILES_N][2];                                                                    \
        UNROLL for (int j = 0; j < TILES_N; j++)                                                   \
            UNROLL for (int e = 0; e < 2; e++) SPLIT_UP(b_high[j][e], b_low[j][e])                 \
        UNROLL for (int i = 0; i < TILES_M; i++) {                                                 \
            uint a_low[4];                                                                         \
            UNROLL for (int e = 0; e < 4; e++) SPLIT_UP(a_high[i][e], a_low[e])                    \
            UNROLL for (int j = 0; j < TILES_N; j++)                                               \
                if ((step) % CHAIN == 0) MULTIPLY_INTO(chain[i][j], a_low, b_high[j])              \
                else MULTIPLY_ADD(chain[i][j], a_low, b_high[j])                                   \
            UNROLL for (int j = 0; j < TILES_N; j++)                                               \
                MULTIPLY_ADD(chain[i][j], a_high[i], b_low[j])                                     \
            UNROLL for (int j = 0; j < TILES_N; j++)                                               \
                MULTIPLY_ADD(chain[i][j], a_high[i], b_high[j])                                    \
            if ((step) % CHAIN == CHAIN - 1)                                                       \
                UNROLL for (int j = 0; j < TILES_N; j++)                                           \
                    UNROLL for (int e = 0; e < 4; e++) sums[i][j][e] += chain[i][j][e];            \
        }                                                                                          \
    }
#define SPLIT_UP(high, low)                                                                        \
    {                                                                                              \
        const uint whole = high;                                                                   \
        high = (whole + 0x1000u) & 0xffffe000u;                                                    \
        low = as_uint(as_float(whole) - as_float(high));                                           \
    }
#else
#if ROUNDED
#define ROUND(bits) bits = to_tf32(bits);
#else
#define ROUND(bits) {}
#endif
#define MULTIPLY(step)                                                                             \
    {                                                                                              \
        uint (*some_a)[4] = a_part[(step) & 1], (*some_b)[2] = b_part[(step) & 1];                 \
        UNROLL for (int j = 0; j < TILES_N; j++)                                                   \
            UNROLL for (int e = 0; e < 2; e++) ROUND(some_b[j][e])                                 \
        UNROLL for (int i = 0; i < TILES_M; i++)                                                   \
            UNROLL for (int e = 0; e < 4; e++) ROUND(some_a[i][e])                                 \
        UNROLL for (int i = 0; i < TILES_M; i++)                                                   \
            UNROLL for (int j = 0; j < TILES_N; j++)                                               \
                MULTIPLY_ADD(sums[i][j], some_a[i], some_b[j])                                     \
    }
#endif

#define A_ELEMENT(at, depth)                                                                       \
    ((__local const float *)tiles)[A_ALONG_K                                                       \
        ? TILE_PLACE(A, at, (depth) / 4) / 4 + (depth) % 4                     \
        : TILE_PLACE(A, depth, (at) / 4) / 4 + (at) % 4]
#define B_ELEMENT(at, depth)                                                                       \
    ((__local const float *)tiles)[B_ALONG_K                                                       \
        ? (B_TILE + TILE_PLACE(B, at, (depth) / 4)) / 4 + (depth) % 4            \
        : (B_TILE + TILE_PLACE(B, depth, (at) / 4)) / 4 + (at) % 4]
#define MULTIPLY_BY_FMA(depth)                                                                     \
    {                                                                                              \
        float some_b[TILES_N][2];                                                                  \
        UNROLL for (int j = 0; j < TILES_N; j++)                                                   \
            UNROLL for (int odd = 0; odd < 2; odd++)                                               \
                some_b[j][odd] = B_ELEMENT(warp_column + COLUMN_OF(j, odd), depth);                \
        UNROLL for (int i = 0; i < TILES_M; i++)                                                   \
            UNROLL for (int e = 0; e < 4; e++) {                                                   \
                const float some_a = A_ELEMENT(warp_row + ROW_OF(i, e / 2), depth);                \
                UNROLL for (int j = 0; j < TILES_N; j++)                                           \
                    sums[i][j][e] = fma(some_a, some_b[j][e % 2], sums[i][j][e]);                  \
            }                                                                                      \
    }

    UNROLL for (int i = 0; i < TILES_M; i++)
        UNROLL for (int j = 0; j < TILES_N; j++)
            UNROLL for (int e = 0; e < 4; e++) sums[i][j][e] = 0;
    if (item == 0) is_special = is_small = 0;
    FIRST_CHUNK
    FIRST_LINE
    for (int s = first; s < first + AHEAD; s++) {
        PREPARE(s)
#if HAS_TABLES
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
        COPY_BEGINS(s, place + (s - first) * STAGE_BYTES)
        COPY_PART(0, 1)
        COPY_ENDS
    }
    PREPARE(first + AHEAD)
    uint tile_at = place, copy_at = place + AHEAD * STAGE_BYTES;
#if WIDE
    for (int s = first; s < end; s++) {
        COPIES_WAIT(AHEAD - 1);
        COPIES_ARE_SEEN();
        barrier(CLK_LOCAL_MEM_FENCE);
        WIDE_MULTIPLY
        {
            COPY_BEGINS(s + AHEAD, copy_at)
            COPY_PART(0, 1)
            COPY_ENDS
        }
        PREPARE(s + AHEAD + 1)
        copy_at = NEXT_STAGE(copy_at);
        tile_at = NEXT_STAGE(tile_at);
        WIDE_WAIT(IN_FLIGHT)
    }
    WIDE_WAIT(0)
#else
    COPIES_WAIT(AHEAD - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FETCH(0)

    for (int s = first; s < end; s++) {
        {
            COPY_BEGINS(s + AHEAD, copy_at)
            UNROLL for (int step = 0; step < STEPS - 1; step++) {
                COPY_PART(step, STEPS - 1)
                FETCH(step + 1)
                MULTIPLY(step)
            }
            COPY_ENDS
        }
        PREPARE(s + AHEAD + 1)
        copy_at = NEXT_STAGE(copy_at);
        tile_at = NEXT_STAGE(tile_at);
        COPIES_WAIT(AHEAD - 1);
        barrier(CLK_LOCAL_MEM_FENCE);
        FETCH(0)
        MULTIPLY(STEPS - 1)
    }
#endif
    COPIES_WAIT(0);

#if SPLIT
    // Tensor cores turn numbers near Inf into Inf, and Inf - Inf into NaN, and they lose bits of
    // tiny factors. In these cases fma computes the tile again. Tiny factors matter only if a sum
    // is small, so only then the operands are searched for them.
    int special = 0, small = 0;
    UNROLL for (int i = 0; i < TILES_M; i++)
        UNROLL for (int j = 0; j < TILES_N; j++)
            UNROLL for (int e = 0; e < 4; e++) {
                special |= !isfinite(sums[i][j][e]);
                small |= fabs(sums[i][j][e]) < SMALL_SUM;
            }
    if (special) is_special = 1;
    if (small) is_small = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (is_small) {
        int tiny = 0;
        FIRST_CHUNK
        for (int s = first; s < end; s++) {
            PREPARE(s)
#if HAS_TABLES
            barrier(CLK_LOCAL_MEM_FENCE);
#endif
            const int is_needed = 1, slot = s & 1;
            PLACE_IN_K(s)
            CHUNK_BYTES
#undef TAKE
#define TAKE(to, from, chunk, bytes) tiny |= has_tiny(from, chunk, bytes)
            COPY_PART(0, 1)
#undef TAKE
#define TAKE copy_chunk
            NEXT_CHUNK
        }
        if (tiny) is_special = 1;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (is_special) {
        UNROLL for (int i = 0; i < TILES_M; i++)
            UNROLL for (int j = 0; j < TILES_N; j++)
                UNROLL for (int e = 0; e < 4; e++) sums[i][j][e] = 0;
        FIRST_CHUNK
        for (int s = first; s < end; s++) {
            PREPARE(s)
            barrier(CLK_LOCAL_MEM_FENCE);
            {
                COPY_BEGINS(s, place)
                COPY_PART(0, 1)
                COPY_ENDS
            }
            COPIES_WAIT(0);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int depth = 0; depth < DEPTH; depth++) MULTIPLY_BY_FMA(depth)
        }
    }
#endif

    c += c_batch.w + DOT3(c_batch, z) + z.w * c_part;
    UNROLL for (int i = 0; i < TILES_M; i++) {
        UNROLL for (int half_ = 0; half_ < 2; half_++) {
            const int in_tile = warp_row + ROW_OF(i, half_), at = first_row + in_tile;
            const int4 d = quick_digits(at, c_digits, c_inverse);
            __global RESULT *line = c + c_rows[in_tile];
            const int is_aligned = !PADDED_COLUMNS && (ulong)line % sizeof(RUN) == 0;
            UNROLL for (int j = 0; j < TILES_N; j += GATHERED) {
                float values[2 * GATHERED];
                const int from = first_column + warp_column + COLUMN_OF(j, 0);
                const int there = at < rows ? min(columns - from, 2 * GATHERED) : 0;
                UNROLL for (int e = 0; e < 2 * GATHERED; e++)
                    values[e] = sums[i][j + (EXCHANGED ? e / 2 : GATHERED > 1 ? e % 4 : 0)]
                                    [2 * half_ + (BY_FOUR_N ? e / 4 : e % 2)];
#if EXCHANGED
                UNROLL for (int e = 0; e < 2; e++) {
                    EXCHANGE_PAIR(values[e], values[e + 2], 1)
                    EXCHANGE_PAIR(values[e + 4], values[e + 6], 1)
                    EXCHANGE_PAIR(values[e], values[e + 4], 2)
                    EXCHANGE_PAIR(values[e + 2], values[e + 6], 2)
                }
#endif
                if (there <= 0) continue;
                UNROLL for (int e = 0; e < 2 * GATHERED; e++) {
#ifdef POST_READS_DST
                    const float old = e < there ? FROM_RESULT(line[from + e]) : 0;
#else
                    const float old = 0;
#endif
                    if (e < there)
                        values[e] = post_ops(values[e], old, z.x, z.y, z.z, d.x, d.y, d.z, d.w,
                                             from + e POST_ARGS);
                }
                uint words[WORDS];
                UNROLL for (int e = 0; e < WORDS; e++) words[e] = RESULT_WORD(values, e);
                if (is_aligned && there == 2 * GATHERED) {
                    UNROLL for (int e = 0; e < RUNS; e++)
                        ((__global RUN *)(line + from))[e] = ((const RUN *)words)[e];
                } else {
                    UNROLL for (int e = 0; e < 2 * GATHERED; e++)
                        if (e < there && IS_COLUMN(from + e)) line[from + e] = RESULT_OF(words, e);
                }
            }
        }
    }
}
