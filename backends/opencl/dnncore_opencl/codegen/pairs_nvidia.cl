// f16 or bf16 in words of two, as stored in memory, by instructions of NVIDIA's GPUs. PAIR names
// their type. NaN exceeds all numbers in maxima. A mask sets all bits of an element or none. Small
// integers are compared as the denormal numbers with the same bits.

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
PAIR_WISE(sums_of_pairs(const WORDS a, const WORDS b), "add.rn.", a, b)
PAIR_WISE(pairs_are_more(const WORDS a, const WORDS b), "set.gt.u32.", a, b)
PAIR_WISE(pairs_are_equal(const WORDS a, const WORDS b), "set.eq.u32.", a, b)
PAIR_WISE(pairs_are_nan(const WORDS a), "set.nan.u32.", a, a)

// The instruction selects four bytes by number. Number 4 selects a zero.
static inline WORDS words_of_bytes(const UCHARS bytes)
{
    WORDS words;
    const uint *from = (const uint *)&bytes;
    uint *to = (uint *)&words;
    _Pragma("unroll") for (int i = 0; i < LANES / 2; ++i) {
        const uint four = LANES == 2 ? *(const ushort *)&bytes : from[i / 2];
        __asm__("prmt.b32 %0, %1, 0, %2;" : "=r"(to[i]) : "r"(four), "r"(i % 2 ? 0x4342 : 0x4140));
    }
    return words;
}
