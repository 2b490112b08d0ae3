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
