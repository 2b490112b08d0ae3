// Resampling, forward or BACKWARD, over 1 to 3 spatial dims. OUTER_x elements of dst lie on INNER_x
// of src. Positions are quotients of whole numbers of type WIDE, so ties are exact.
//
// A gradient gathers: element i of diff_src reads the elements of diff_dst whose positions may be
// within 1 of i. Elements with the weight 0 are not read.

static inline WIDE lower(const WIDE o, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return min((2 * o + 1) * inner / (2 * outer), inner - 1);
#else
    const WIDE position = (2 * o + 1) * inner - outer;
    return position < 0 ? -1 : position / (2 * outer);
#endif
}

static inline float weight_of(const WIDE o, const WIDE i, const WIDE inner, const WIDE outer)
{
    const WIDE low = lower(o, inner, outer);
#ifndef NEAREST
    if (low >= 0 && low < inner - 1) {
        const WIDE rest = (2 * o + 1) * inner - outer - low * 2 * outer;
        const float whole = (float)(2 * outer);
        return i == low ? (float)(2 * outer - rest) / whole
             : i == low + 1 ? (float)rest / whole : 0.0f;
    }
#endif
    return i == clamp(low, (WIDE)0, inner - 1) ? 1.0f : 0.0f;
}

#ifdef BACKWARD
static inline INDEX first_of(const WIDE i, const WIDE inner, const WIDE outer)
{
    return i == 0 ? 0 : max(((2 * i - 1) * outer / inner - 1) / 2, (WIDE)0);
}

static inline INDEX end_of(const WIDE i, const WIDE inner, const WIDE outer)
{
    return i == inner - 1 ? outer : min(((2 * i + 3) * outer / inner + 1) / 2 + 1, outer);
}
#define WEIGHT(at, tap, LETTER) weight_of(tap, at, INNER_##LETTER, OUTER_##LETTER)
#else
static inline INDEX first_of(const WIDE o, const WIDE inner, const WIDE outer)
{
    return max(lower(o, inner, outer), (WIDE)0);
}

static inline INDEX end_of(const WIDE o, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return lower(o, inner, outer) + 1;
#else
    return min(lower(o, inner, outer) + 2, inner);
#endif
}
#define WEIGHT(at, tap, LETTER) weight_of(at, tap, INNER_##LETTER, OUTER_##LETTER)
#endif

#define OVER_TAPS(LETTER, at, tap)                                                                 \
    for (INDEX tap = first_of(at, INNER_##LETTER, OUTER_##LETTER),                                 \
         tap##_end = end_of(at, INNER_##LETTER, OUTER_##LETTER); tap < tap##_end; ++tap)
#ifdef HAS_D
#define OVER_D OVER_TAPS(D, d, i)
#define WEIGHT_D WEIGHT(d, i, D)
#else
#define OVER_D for (INDEX i = 0; i < 1; ++i)
#define WEIGHT_D 1.0f
#endif
#ifdef HAS_H
#define OVER_H OVER_TAPS(H, h, j)
#define WEIGHT_H WEIGHT(h, j, H)
#else
#define OVER_H for (INDEX j = 0; j < 1; ++j)
#define WEIGHT_H 1.0f
#endif

__kernel void resampling($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            FLOATS x = (FLOATS)(0);
            if (inside) {
                OVER_D {
                    OVER_H {
                        const float plane = WEIGHT_D * WEIGHT_H;
                        OVER_TAPS(W, w, k) {
#ifdef COPIES
                            x = LOAD(n, c, i, j, k);
#else
                            const float weight = plane * WEIGHT(w, k, W);
                            if (weight != 0.0f) x += weight * LOAD(n, c, i, j, k);
#endif
                        }
                    }
                }
                POST_OPS
            }
            x = inside ? x : (FLOATS)(0);
            STORE(n, c, d, h, w, x);
        }
    }
}
