// Taps of resampling along one dim: OUTER elements of dst lie on INNER elements of src. Positions are
// quotients of whole numbers of type WIDE, so ties are exact. Element o lies at
// ((2 o + 1) inner - outer) / (2 outer).

// The taps of element `at` of the result along a dim. All of them have weights other than 0.
#ifdef BACKWARD
static inline INDEX first_of(const WIDE i, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return ((2 * i * outer + inner - 1) / inner) / 2;
#else
    return i == 0 ? 0 : ((2 * i - 1) * outer / inner + 1) / 2;
#endif
}

static inline INDEX end_of(const WIDE i, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return first_of(i + 1, inner, outer);
#else
    return i == inner - 1 ? outer : ((2 * i + 3) * outer + inner - 1) / inner / 2;
#endif
}
#define LAST_OF(inner, outer) ((outer) - 1)
#else
static inline INDEX first_of(const WIDE o, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return (2 * o + 1) * inner / (2 * outer);
#else
    return max((2 * o + 1) * inner - outer, (WIDE)0) / (2 * outer);
#endif
}

static inline INDEX end_of(const WIDE o, const WIDE inner, const WIDE outer)
{
    const WIDE first = first_of(o, inner, outer);
#ifdef NEAREST
    return first + 1;
#else
    return first + ((2 * o + 1) * inner - outer > first * 2 * outer && first < inner - 1 ? 2 : 1);
#endif
}
#define LAST_OF(inner, outer) ((inner) - 1)
#endif

// The weight of element i of src in element o of dst, if it is not 0.
static inline float weight_of(const WIDE o, const WIDE i, const WIDE inner, const WIDE outer)
{
#ifdef NEAREST
    return 1.0f;
#else
    const WIDE off = (2 * o + 1) * inner - outer - i * 2 * outer;
    if ((off < 0 && i == 0) || (off > 0 && i == inner - 1)) return 1.0f;
    return (float)(2 * outer - (off < 0 ? -off : off)) / (float)(2 * outer);
#endif
}

#ifdef BACKWARD
#define WEIGHT(at, tap, inner, outer) weight_of(tap, at, inner, outer)
#else
#define WEIGHT(at, tap, inner, outer) weight_of(at, tap, inner, outer)
#endif
