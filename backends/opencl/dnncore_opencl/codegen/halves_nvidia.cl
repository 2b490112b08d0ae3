// Conversions of f16 and bf16, stored as ushorts, from and to float, by instructions of NVIDIA's
// GPUs of compute capability 8.0 and later. They convert two elements at a time, so vectors are
// moved as 32-bit words. LANES stands for the number of elements or for nothing.

// Reads a vector at once. The compiler would read its elements one by one if a load is conditional.
static inline ushortLANES load_ushortLANES(__global const ushort *from)
{
    ushortLANES bits;
    uint *to = (uint *)&bits;
    if (sizeof(bits) == 16)
        __asm__("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from) : "memory");
    else if (sizeof(bits) == 8)
        __asm__("ld.global.v2.u32 {%0, %1}, [%2];"
                : "=r"(to[0]), "=r"(to[1]) : "l"(from) : "memory");
    else if (sizeof(bits) == 4)
        __asm__("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
    else
        *(ushort *)&bits = *from;
    return bits;
}

// Writes a vector at once. The compiler would write 16 bytes as two vectors of shorts.
static inline void store_ushortLANES(__global ushort *to, const ushortLANES bits)
{
    const uint *from = (const uint *)&bits;
    if (sizeof(bits) == 16)
        __asm__ volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                         : : "l"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                         : "memory");
    else if (sizeof(bits) == 8)
        __asm__ volatile("st.global.v2.u32 [%0], {%1, %2};"
                         : : "l"(to), "r"(from[0]), "r"(from[1]) : "memory");
    else if (sizeof(bits) == 4)
        __asm__ volatile("st.global.u32 [%0], %1;" : : "l"(to), "r"(from[0]) : "memory");
    else
        *to = *(const ushort *)&bits;
}

static inline floatLANES f16_to_floatLANES(const ushortLANES bits)
{
    floatLANES x;
    const uint *from = (const uint *)&bits;
    float *to = (float *)&x;
    if (sizeof(bits) == 2) {
        __asm__("cvt.f32.f16 %0, %1;" : "=f"(to[0]) : "h"(*(const ushort *)&bits));
        return x;
    }
    _Pragma("unroll") for (int i = 0; i < (int)(sizeof(bits) / 4); ++i)
        __asm__("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
                " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
                : "=f"(to[2 * i]), "=f"(to[2 * i + 1]) : "r"(from[i]));
    return x;
}

static inline floatLANES bf16_to_floatLANES(const ushortLANES bits)
{
    floatLANES x;
    const uint *from = (const uint *)&bits;
    float *to = (float *)&x;
    if (sizeof(bits) == 2) {
        to[0] = as_float((uint)*(const ushort *)&bits << 16);
        return x;
    }
    _Pragma("unroll") for (int i = 0; i < (int)(sizeof(bits) / 4); ++i) {
        to[2 * i] = as_float(from[i] << 16);
        to[2 * i + 1] = as_float(from[i] & 0xffff0000u);
    }
    return x;
}

// From float. The instruction's first operand is the second element.
#define FROM_FLOATS(single, pair)                                                                  \
    {                                                                                              \
        ushortLANES bits;                                                                          \
        const float *from = (const float *)&x;                                                     \
        uint *to = (uint *)&bits;                                                                  \
        if (sizeof(bits) == 2) {                                                                   \
            __asm__(single " %0, %1;" : "=h"(*(ushort *)&bits) : "f"(from[0]));                    \
            return bits;                                                                           \
        }                                                                                          \
        _Pragma("unroll") for (int i = 0; i < (int)(sizeof(bits) / 4); ++i)                        \
            __asm__(pair " %0, %1, %2;" : "=r"(to[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));   \
        return bits;                                                                               \
    }

static inline ushortLANES float_to_f16LANES(const floatLANES x)
FROM_FLOATS("cvt.rn.f16.f32", "cvt.rn.f16x2.f32")

static inline ushortLANES float_to_bf16LANES(const floatLANES x)
FROM_FLOATS("cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32")

#undef FROM_FLOATS
