// Pooling over 1 to 3 spatial dims, by MAX, otherwise by average. Windows are defined in
// pooling_window.cl. If lanes are COLUMNS, a tap reads another cell of a row for each lane, or
// none.
//
// A maximum exceeds all smaller numbers. NaN exceeds all numbers. The first cell must be the
// maximum even if it is -infinity. So x and its place are initialized with the first cell or, if
// lanes have different first cells, with a place below 0. With PAIRS, x and places are words of two
// elements and of two 16-bit numbers, and only numbers are compared. If x is NaN, its place is
// computed at the end.

#ifdef COLUMNS
static inline INTS row_seen(const INDEX at, const INDEX stride, const INDEX size)
{
    int seen[LANES];
    for (int i = 0; i < LANES; ++i) seen[i] = -(at + i * stride >= 0 && at + i * stride < size);
    return VLOAD(0, seen);
}

static inline FLOATS row_cells(
    __global const float *row, const INDEX at, const INDEX stride, const INDEX size)
{
    float cells[LANES];
    for (int i = 0; i < LANES; ++i) {
        const INDEX cell = at + i * stride;
        cells[i] = cell >= 0 && cell < size ? row[cell] : 0.0f;
    }
    return VLOAD(0, cells);
}

#define FIRST_PLACE -1
#define LOWEST LOWEST_NUMBER
#define WINS(cell) (seen & ((place < 0) | (!(cell <= x) & (x == x))))
#define OVER_ROW for (INDEX k = 0; k < TAPS_W; ++k)
#define CELL                                                                                       \
    const int whole = at_w >= 0 && at_w + (LANES - 1) * STRIDE_W < SRC_W;                          \
    __global const float *row = src + SRC_AT(n, c, at_d, at_h, 0);                                 \
    const INTS seen = whole ? (INTS)(-1) : row_seen(at_w, STRIDE_W, SRC_W);                        \
    const FLOATS cell = whole ? ROW(row + at_w) : row_cells(row, at_w, STRIDE_W, SRC_W);
#else
#define SEES(LETTER, start) (FIRST_TAP_##LETTER(start) < END_TAP_##LETTER(start))
#define SEES_ANY (SEES(D, front) && SEES(H, top) && SEES(W, left))
#define FIRST_PLACE                                                                                \
    (SEES_ANY ? (FIRST_TAP_D(front) * TAPS_H + FIRST_TAP_H(top)) * TAPS_W + FIRST_TAP_W(left) : 0)
#ifndef PAIRS
#define LOWEST (SEES_ANY ? LOWEST_CELL : LOWEST_NUMBER)
#define WINS(cell) (!(cell <= x) & (x == x))
#define CELL                                                                                       \
    const FLOATS cell = LOAD_SRC(n, c, at_d, at_h, at_w);
#else
#define LOWEST ((WORDS)(SEES_ANY ? MINUS_INFINITIES : LOWEST_NUMBERS))
#define CELL                                                                                       \
    const WORDS cell = LOAD_WORDS(src + SRC_AT(n, c, at_d, at_h, at_w));
#endif
#define OVER_ROW OVER_TAPS(W, k, left)
#endif

#define OVER_TAPS(LETTER, i, start)                                                                \
    for (INDEX i = FIRST_TAP_##LETTER(start); i < END_TAP_##LETTER(start); ++i)

#ifdef PAIRS
#define TAKE(cell, at)                                                                             \
    {                                                                                              \
        place = bitselect(place, PLACES_OF(at), pairs_are_more(cell, x));                          \
        x = larger_pairs(cell, x);                                                                 \
    }
#elif defined(MAX)
#define TAKE(cell, at)                                                                             \
    {                                                                                              \
        const INTS wins = WINS(cell);                                                              \
        x = wins ? cell : x;                                                                       \
        place = wins ? (INTS)(at) : place;                                                         \
    }
#else
#define TAKE(cell, at) x += cell;
#endif

#ifdef UNROLL
// All taps, branch-free. A tap outside the image reads the same cell as the nearest inside tap.
// This does not change a maximum. An average ignores it.
#define OVER_ALL(LETTER, i) UNROLLED for (INDEX i = 0; i < TAPS_##LETTER; ++i)
#define NEAREST(LETTER, i, start)                                                                  \
    clamp(i, (INDEX)FIRST_TAP_##LETTER(start), (INDEX)(END_TAP_##LETTER(start) - 1))
#ifdef MAX
#define TAKE_NEAREST(cell, at, is_seen) TAKE(cell, at)
#else
#define TAKE_NEAREST(cell, at, is_seen) TAKE(is_seen ? cell : (FLOATS)(0.0f), at)
#endif
#define TAKE_WINDOW                                                                                \
    if (SEES_ANY)                                                                                  \
        OVER_ALL(D, i) OVER_ALL(H, j) OVER_ALL(W, k) {                                             \
            const INDEX tap_d = NEAREST(D, i, front), tap_h = NEAREST(H, j, top);                  \
            const INDEX tap_w = NEAREST(W, k, left), at_d = front + tap_d * STEP_D;                \
            const INDEX at_h = top + tap_h * STEP_H, at_w = left + tap_w * STEP_W;                 \
            CELL                                                                                   \
            TAKE_NEAREST(cell, (tap_d * TAPS_H + tap_h) * TAPS_W + tap_w,                            \
                         tap_d == i && tap_h == j && tap_w == k)                                   \
        }
#else
#define TAKE_WINDOW                                                                                \
    OVER_TAPS(D, i, front) {                                                                       \
        const INDEX at_d = front + i * STEP_D;                                                     \
        OVER_TAPS(H, j, top) {                                                                     \
            const INDEX at_h = top + j * STEP_H;                                                   \
            OVER_ROW {                                                                             \
                const INDEX at_w = left + k * STEP_W;                                              \
                CELL                                                                               \
                TAKE(cell, (i * TAPS_H + j) * TAPS_W + k)                                          \
                COUNT_CELL                                                                         \
            }                                                                                      \
        }                                                                                          \
    }
#endif

#if defined(COLUMNS) && !defined(MAX)
#define COUNT_CELL seen_cells -= seen;
#else
#define COUNT_CELL
#endif

__kernel void pooling_forward($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            const INDEX front = d * STRIDE_D - LEFT_D;
            const INDEX top = h * STRIDE_H - LEFT_H;
            const INDEX left = w * STRIDE_W - LEFT_W;
#ifdef PAIRS
            WORDS x = LOWEST, place = PLACES_OF(FIRST_PLACE);
#elif defined(MAX)
            FLOATS x = LOWEST;
            INTS place = FIRST_PLACE;
#else
            FLOATS x = 0.0f;
#ifdef COLUMNS
            INTS seen_cells = 0;
#endif
#endif
            if (inside) {
                TAKE_WINDOW
#if defined(PAIRS) && defined(WORKSPACE)
                if (any(AS_SHORTS(pairs_are_nan(x))))
                    OVER_SEEN_BACK(i, j, k, front, top, left) {
                        const INDEX at_d = front + i * STEP_D, at_h = top + j * STEP_H;
                        const INDEX at_w = left + k * STEP_W;
                        CELL
                        const WORDS here = PLACES_OF((i * TAPS_H + j) * TAPS_W + k);
                        place = bitselect(place, here, pairs_are_nan(cell));
                    }
#endif
#if defined(COLUMNS) && defined(AVG_EXCLUDE_PADDING)
                x /= TO_FLOATS(seen_cells);
#elif !defined(MAX)
                x *= SHARE(d, h, w);
#endif
                POST_OPS
            }
#ifdef PAIRS
            x = inside ? x : 0;
            place = inside ? place : 0;
            STORE_WORDS(dst + DST_AT(n, c, d, h, w), x);
#else
            x = inside ? x : (FLOATS)(0);
            STORE_DST(n, c, d, h, w, x);
#endif
#ifdef WORKSPACE
#ifdef PAIRS
            STORE_WORKSPACE(n, c, d, h, w, TO_INTS(AS_USHORTS(place)));
#else
            place = inside ? max(place, (INTS)(0)) : (INTS)(0);
            STORE_WORKSPACE(n, c, d, h, w, place);
#endif
#endif
        }
    }
}
