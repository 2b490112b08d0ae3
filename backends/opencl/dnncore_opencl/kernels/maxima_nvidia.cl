// Maxima, NaN being the largest, by the instructions of NVIDIA's GPUs. With PAIRS of f16 or bf16 in
// words of two, as they lie in memory, also their sums: PAIR names their type, and masks have all
// bits of an element or none. Small integers are equal if the denormal numbers of their bits are.

static inline FLOATS larger(const FLOATS a, const FLOATS b)
{
    FLOATS result;
    const float *left = (const float *)&a, *right = (const float *)&b;
    float *to = (float *)&result;
    _Pragma("unroll") for (int i = 0; i < LANES; ++i)
        __asm__("max.NaN.f32 %0, %1, %2;" : "=f"(to[i]) : "f"(left[i]), "f"(right[i]));
    return result;
}

#ifdef PAIRS
#define PAIR_WISE(call, text, first, second)                                                       \
    static inline WORDS call                                                                       \
    {                                                                                              \
        WORDS result;                                                                              \
        const uint *left = (const uint *)&first, *right = (const uint *)&second;                   \
        uint *to = (uint *)&result;                                                                \
        _Pragma("unroll") for (int i = 0; i < LANES / 2; ++i)                                      \
            __asm__(text PAIR " %0, %1, %2;" : "=r"(to[i]) : "r"(left[i]), "r"(right[i]));         \
        return result;                                                                             \
    }

PAIR_WISE(larger_pairs(const WORDS a, const WORDS b), "max.NaN.", a, b)
PAIR_WISE(pairs_are_more(const WORDS a, const WORDS b), "set.gt.u32.", a, b)
PAIR_WISE(pairs_are_equal(const WORDS a, const WORDS b), "set.eq.u32.", a, b)
PAIR_WISE(pairs_are_nan(const WORDS a), "set.nan.u32.", a, a)
PAIR_WISE(sums_of_pairs(const WORDS a, const WORDS b), "add.rn.", a, b)

static inline WORDS words_of_bytes(const UCHARS bytes)
{
    WORDS words;
    const uint *from = (const uint *)&bytes;
    uint *to = (uint *)&words;
    if (LANES == 2)
        __asm__("prmt.b32 %0, %1, 0, 0x4140;" : "=r"(to[0]) : "r"((uint)*(const ushort *)&bytes));
    else
        _Pragma("unroll") for (int i = 0; i < LANES / 2; i += 2)
            __asm__("prmt.b32 %0, %2, 0, 0x4140; prmt.b32 %1, %2, 0, 0x4342;"
                    : "=r"(to[i]), "=r"(to[i + 1]) : "r"(from[i / 2]));
    return words;
}
#endif
