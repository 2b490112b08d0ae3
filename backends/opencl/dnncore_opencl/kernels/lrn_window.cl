// WINDOW_SUM adds to `sum` the TERMs of the window around n, c, d, h, w, HALF on each side along
// each dim. Where the window extends along the vectors' own axis, NEAR adds up what it has of a
// vector and its two neighbours.
//
// Where a place's channels are the innermost loop, a RING keeps the terms of a window of as many on
// each side, so that each is computed once.

#define OVER(i, at, HALF, LAST)                                                                    \
    for (INDEX i = max(at - HALF, (INDEX)0); i <= min(at + HALF, (INDEX)LAST); ++i)

#ifdef ALONG
#define TERMS(n, c, d, h, w)                                                                       \
    const FLOATS none = 0.0f, here = TERM(n, c, d, h, w);                                          \
    const FLOATS before = ALONG > 0 ? BEFORE(n, c, d, h, w) : none;                                \
    const FLOATS after = ALONG + LANES <= LAST_ALONG ? AFTER(n, c, d, h, w) : none;                \
    sum += NEAR(before, here, after);
#else
#define TERMS(n, c, d, h, w) sum += TERM(n, c, d, h, w);
#endif

#ifdef RING
#define WINDOW FLOATS ring[2 * RING + 1];
#define TERM_AT(at)                                                                                \
    ((at) >= 0 && (at) <= LAST_C ? TERM(n, at, d, h, w) : (FLOATS)(0.0f))
#define UNROLLED _Pragma("unroll") for
#define WINDOW_SUM                                                                                 \
    if (t == t_begin) {                                                                            \
        UNROLLED (int i = 1; i <= 2 * RING; ++i) ring[i] = TERM_AT(c - RING + i - 1);              \
    }                                                                                              \
    UNROLLED (int i = 0; i < 2 * RING; ++i) ring[i] = ring[i + 1];                                 \
    ring[2 * RING] = TERM_AT(c + RING);                                                            \
    UNROLLED (int i = 0; i <= 2 * RING; ++i) sum += ring[i];
#else
#define WINDOW
#define WINDOW_SUM                                                                                 \
    OVER(ci, c, HALF_C, LAST_C)                                                                    \
    OVER(di, d, HALF_D, LAST_D)                                                                    \
    OVER(hi, h, HALF_H, LAST_H)                                                                    \
    OVER(wi, w, HALF_W, LAST_W) {                                                                  \
        TERMS(n, ci, di, hi, wi)                                                                   \
    }
#endif
