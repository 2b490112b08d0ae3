// Pooling over 1 to 3 spatial dims, by MAX or else by average; windows are those of
// pooling_window.cl. Where lanes are COLUMNS, a tap sees another cell of a row for each, or none.
//
// A maximum wins over all numbers that are less, and NaN over all numbers. So that the first cell
// wins even if it is -infinity, x and its place begin with it, or where lanes have different first
// cells with a place below 0.

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
#define LOWEST -FLT_MAX
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
#define LOWEST (SEES_ANY ? -INFINITY : -FLT_MAX)
#define WINS(cell) (!(cell <= x) & (x == x))
#define OVER_ROW for (INDEX k = FIRST_TAP_W(left); k < END_TAP_W(left); ++k)
#define CELL                                                                                       \
    const FLOATS cell = LOAD_SRC(n, c, at_d, at_h, at_w);
#endif

__kernel void pooling_forward(BUFFERS PARAMETERS)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            const INDEX front = d * STRIDE_D - LEFT_D;
            const INDEX top = h * STRIDE_H - LEFT_H;
            const INDEX left = w * STRIDE_W - LEFT_W;
#ifdef MAX
            FLOATS x = LOWEST;
            INTS place = FIRST_PLACE;
#else
            FLOATS x = 0.0f;
#ifdef COLUMNS
            INTS seen_cells = 0;
#endif
#endif
            if (inside) {
                for (INDEX i = FIRST_TAP_D(front); i < END_TAP_D(front); ++i) {
                    const INDEX at_d = front + i * STEP_D;
                    for (INDEX j = FIRST_TAP_H(top); j < END_TAP_H(top); ++j) {
                        const INDEX at_h = top + j * STEP_H;
                        OVER_ROW {
                            const INDEX at_w = left + k * STEP_W;
                            CELL
#ifdef MAX
                            const INTS wins = WINS(cell);
                            x = wins ? cell : x;
                            place = wins ? (INTS)((i * TAPS_H + j) * TAPS_W + k) : place;
#else
                            x += cell;
#ifdef COLUMNS
                            seen_cells -= seen;
#endif
#endif
                        }
                    }
                }
#if defined(COLUMNS) && defined(AVG_EXCLUDE_PADDING)
                x /= TO_FLOATS(seen_cells);
#elif !defined(MAX)
                x /= DIVISOR(d, h, w);
#endif
                POST_OPS
            }
            x = inside ? x : 0.0f;
            STORE_DST(n, c, d, h, w, x);
#ifdef WORKSPACE
            place = inside ? max(place, (INTS)(0)) : (INTS)(0);
            STORE_WORKSPACE(n, c, d, h, w, place);
#endif
        }
    }
}
