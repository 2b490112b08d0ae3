// WINDOW_SUM adds to `sum` the TERMs of the window around n, c, d, h, w, HALF on each side along
// each dim. Where the window extends along the vectors' own axis, NEAR adds up what it has of a
// vector and its two neighbours.

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

#define WINDOW_SUM                                                                                 \
    OVER(ci, c, HALF_C, LAST_C)                                                                    \
    OVER(di, d, HALF_D, LAST_D)                                                                    \
    OVER(hi, h, HALF_H, LAST_H)                                                                    \
    OVER(wi, w, HALF_W, LAST_W) {                                                                  \
        TERMS(n, ci, di, hi, wi)                                                                   \
    }
