
// The taps of element `at` along a dim, which a work-item holds: their offsets and weights. LETTER
// is the letter of the dim. Spatial strides are STEP_x.
//
// Taps beyond the last one read the last one. With two taps, both then have half its weight.
// Otherwise they have the weight 0, and their value is replaced by 0, because it may be infinite.
#define OVER(i, count) _Pragma("unroll") for (int i = 0; i < count; ++i)

#ifdef BACKWARD
#define HALVED(weights, taps)
#else
#define HALVED(weights, taps)                                                                      \
    if (taps == 2 && weights[taps - 1] == 0.0f) weights[0] = weights[taps - 1] = 0.5f;
#endif

#define TABLE(LETTER, at, places, weights)                                                         \
    INDEX places[TAPS_##LETTER];                                                                   \
    float weights[TAPS_##LETTER];                                                                  \
    {                                                                                              \
        const INDEX begin = first_of(at, INNER_##LETTER, OUTER_##LETTER);                          \
        const INDEX end = end_of(at, INNER_##LETTER, OUTER_##LETTER);                              \
        const INDEX last = LAST_OF(INNER_##LETTER, OUTER_##LETTER);                                \
        OVER(i, TAPS_##LETTER) {                                                                   \
            const INDEX tap = begin + i;                                                           \
            places[i] = clamp(min(tap, end - 1), (INDEX)0, last) * STEP_##LETTER;                  \
            weights[i] = tap < end ? WEIGHT(at, tap, INNER_##LETTER, OUTER_##LETTER) : 0.0f;       \
        }                                                                                          \
        HALVED(weights, TAPS_##LETTER)                                                             \
    }

#ifdef COPIES
#define TERM(sum, weight, value) value
#elif !defined(BACKWARD)
#define TERM(sum, weight, value) (sum + (weight) * value)
#else
#define TERM(sum, weight, value) (sum + (weight) * ((weight) == 0.0f ? (FLOATS)(0) : value))
#endif
