// WINDOW_SUM reads the place n, c, d, h, w as `here` and adds the terms of the window around it to
// `sum`. The window has HALF places on each side along each dim. If it extends along the axis of
// the vectors, NEAR adds the terms in a vector and its two neighbouring vectors.
//
// If the loop over channels is innermost, a RING keeps the places of the window, RING places on
// each side, so each place is read once.

#define OVER(i, at, HALF, LAST)                                                                    \
    for (INDEX i = max(at - HALF, (INDEX)0); i <= min(at + HALF, (INDEX)LAST); ++i)

#ifdef ALONG
#define ADD_TERMS(n, c, d, h, w)                                                                   \
    Place before, near, after;                                                                     \
    before.term = after.term = 0.0f;                                                               \
    SEE(near, n, c, d, h, w)                                                                       \
    if (ALONG > 0) { BEFORE(before, n, c, d, h, w) }                                               \
    if (ALONG + LANES <= LAST_ALONG) { AFTER(after, n, c, d, h, w) }                               \
    sum += NEAR(before.term, near.term, after.term);
#else
#define ADD_TERMS(n, c, d, h, w)                                                                   \
    Place near;                                                                                    \
    SEE(near, n, c, d, h, w)                                                                       \
    sum += near.term;
#endif

#ifdef RING
#define WINDOW Place ring[2 * RING + 1];
#define SEE_AT(place, at)                                                                          \
    place.term = 0.0f;                                                                             \
    if ((at) >= 0 && (at) <= LAST_C) { SEE(place, n, at, d, h, w) }
#define UNROLLED _Pragma("unroll") for
#define WINDOW_SUM                                                                                 \
    if (t == t_begin) {                                                                            \
        UNROLLED (int i = 1; i <= 2 * RING; ++i) { SEE_AT(ring[i], c - RING + i - 1) }             \
    }                                                                                              \
    UNROLLED (int i = 0; i < 2 * RING; ++i) ring[i] = ring[i + 1];                                 \
    SEE_AT(ring[2 * RING], c + RING)                                                               \
    UNROLLED (int i = 0; i <= 2 * RING; ++i) sum += ring[i].term;                                  \
    here = ring[RING];
#else
#define WINDOW
#define WINDOW_SUM                                                                                 \
    SEE(here, n, c, d, h, w)                                                                       \
    OVER(ci, c, HALF_C, LAST_C)                                                                    \
    OVER(di, d, HALF_D, LAST_D)                                                                    \
    OVER(hi, h, HALF_H, LAST_H)                                                                    \
    OVER(wi, w, HALF_W, LAST_W) {                                                                  \
        ADD_TERMS(n, ci, di, hi, wi)                                                               \
    }
#endif
