// The functions of pairs_nvidia.cl for all devices. Pairs are faster only with NVIDIA's
// instructions; on other devices these functions give the same results.

#define VALUES(pairs) TO_VALUES(AS_USHORTS(pairs))
#define MASK(wins) AS_WORDS(TO_USHORTS((wins) & 0xffff))

static inline WORDS words_of_bytes(const UCHARS bytes)
{
    return AS_WORDS(TO_USHORTS(bytes));
}

static inline WORDS sums_of_pairs(const WORDS a, const WORDS b)
{
    return AS_WORDS(TO_BITS(VALUES(a) + VALUES(b)));
}

static inline WORDS pairs_are_more(const WORDS a, const WORDS b)
{
    return MASK(VALUES(a) > VALUES(b));
}

static inline WORDS pairs_are_equal(const WORDS a, const WORDS b)
{
    return MASK(VALUES(a) == VALUES(b));
}

static inline WORDS pairs_are_nan(const WORDS a)
{
    return MASK(isnan(VALUES(a)));
}

static inline WORDS larger_pairs(const WORDS a, const WORDS b)
{
    return bitselect(b, a, pairs_are_more(a, b) | pairs_are_nan(a));
}

#undef VALUES
#undef MASK
