// Windows along one dim. Tap i of an output reads the cell at start + i * step, where start is
// output * stride - left padding. FIRST_TAP and END_TAP bound the taps that are inside the image.
// With UNROLL, all loads of a small window start before the first use.

#ifdef UNROLL
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

static inline INDEX first_tap(const INDEX start, const INDEX step)
{
    return start < 0 ? (step - 1 - start) / step : 0;
}

static inline INDEX end_tap(const INDEX start, const INDEX step, const INDEX taps, const INDEX size)
{
    return start < size ? min(taps, (size - start + step - 1) / step) : 0;
}

#define SEEN_ALONG(LETTER, at)                                                                     \
    max((INDEX)(END_TAP_##LETTER((at) * STRIDE_##LETTER - LEFT_##LETTER)                           \
                - FIRST_TAP_##LETTER((at) * STRIDE_##LETTER - LEFT_##LETTER)), (INDEX)0)

// The weight of a cell in the average of an output.
#ifdef AVG_INCLUDE_PADDING
#define SHARE(d, h, w) (1.0f / CELLS)
#else
#define SHARE(d, h, w) (1.0f / (REAL)(SEEN_ALONG(D, d) * SEEN_ALONG(H, h) * SEEN_ALONG(W, w)))
#endif

// Executes the next statement for the taps that are inside the image, from the last to the first.
#define OVER_SEEN_BACK(i, j, k, front, top, left)                                                  \
    OVER_BACK(D, i, front) OVER_BACK(H, j, top) OVER_BACK(W, k, left)
#define OVER_BACK(LETTER, i, start)                                                                \
    for (INDEX i = END_TAP_##LETTER(start) - 1; i >= FIRST_TAP_##LETTER(start); --i)
