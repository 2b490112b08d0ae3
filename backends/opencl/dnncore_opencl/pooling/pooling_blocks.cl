// The gradient of pooling by blocks of cells of diff_src, STRIDE cells along each dim. The same
// NEAR windows may contain the cells of a block. So the values of a window are read once for the
// whole block, and the tap of a cell is a constant. Windows are defined in pooling_window.cl,
// without dilation. Each sum has the order of pooling_backward.cl.
//
// d, h and w count blocks first, then cells. A block begins where a window would begin, so the
// first blocks may begin in the padding. Cells outside the image are not written.
//
// With PAIRS, windows are words of two elements and of two 16-bit places. If at most two windows
// contain a cell, their sum is computed in words. A sum in f32 that is rounded would be equal,
// because f32 has 24 bits, two more than twice the 11 bits of f16.

#define BEGIN(LETTER, block) ((block) * STRIDE_##LETTER - LEFT_##LETTER % STRIDE_##LETTER)
#define START(LETTER, block, near) ((block) + LEFT_##LETTER / STRIDE_##LETTER - (near))
#define TAP(LETTER, near, cell) (STRIDE_##LETTER * (near) + (cell))
#define SEES(LETTER, near, cell) (TAP(LETTER, near, cell) < TAPS_##LETTER)
#define WINDOWS_OF(LETTER, cell) ((TAPS_##LETTER + STRIDE_##LETTER - 1 - (cell)) / STRIDE_##LETTER)

// Branch-free: if no window begins there, another window is read and ignored.
#define OUTPUT(LETTER, block, near, at, is_window)                                                 \
    const INDEX at = clamp(START(LETTER, block, near), (INDEX)0, (INDEX)(DST_##LETTER - 1));       \
    const int is_window = at == START(LETTER, block, near);

#define OVER(i, count) UNROLLED for (INDEX i = 0; i < count; ++i)
#define OVER_WINDOWS OVER(near_d, NEAR_D) OVER(near_h, NEAR_H) OVER(near_w, NEAR_W)
#define OVER_CELLS OVER(cell_d, STRIDE_D) OVER(cell_h, STRIDE_H) OVER(cell_w, STRIDE_W)
#define OVER_WINDOWS_OF_CELL                                                                       \
    OVER_WINDOWS                                                                                   \
        if (SEES(D, near_d, cell_d) && SEES(H, near_h, cell_h) && SEES(W, near_w, cell_w))
#define TAP_OF_CELL                                                                                \
    ((TAP(D, near_d, cell_d) * TAPS_H + TAP(H, near_h, cell_h)) * TAPS_W + TAP(W, near_w, cell_w))

#ifdef PAIRS
#define WINDOW_DIFFS WORDS
#define WINDOW_PLACES WORDS
#define LOAD_DIFFS(n, c, d, h, w) LOAD_WORDS(diff_dst + DIFF_DST_AT(n, c, d, h, w))
#define LOAD_PLACES(n, c, d, h, w) words_of_bytes(LOAD_WORKSPACE(n, c, d, h, w))
#define PAIRS_AT_TAP(diff, place) (diff & pairs_are_equal(place, PLACES_OF(TAP_OF_CELL)))
#define SUM(x, diff, place) (x + TO_VALUES(AS_USHORTS(PAIRS_AT_TAP(diff, place))))
#else
#define WINDOW_DIFFS FLOATS
#define WINDOW_PLACES INTS
#define LOAD_DIFFS LOAD_DIFF_DST
#define LOAD_PLACES(n, c, d, h, w) TO_INTS(LOAD_WORKSPACE(n, c, d, h, w))
#ifdef MAX
#define SUM(x, diff, place) (place == (INTS)(TAP_OF_CELL) ? x + diff : x)
#else
#define SUM(x, diff, place) (x + diff)
#endif
#endif

__kernel void pooling_blocks($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            const INDEX front = BEGIN(D, d), top = BEGIN(H, h), left = BEGIN(W, w);
            WINDOW_DIFFS diffs[NEAR_D][NEAR_H][NEAR_W];
#ifdef MAX
            WINDOW_PLACES places[NEAR_D][NEAR_H][NEAR_W];
#endif
            if (inside)
                OVER_WINDOWS {
                    OUTPUT(D, d, near_d, at_d, is_window_d)
                    OUTPUT(H, h, near_h, at_h, is_window_h)
                    OUTPUT(W, w, near_w, at_w, is_window_w)
                    const int is_window = is_window_d && is_window_h && is_window_w;
                    WINDOW_DIFFS diff = LOAD_DIFFS(n, c, at_d, at_h, at_w);
#ifdef MAX
                    places[near_d][near_h][near_w] = LOAD_PLACES(n, c, at_d, at_h, at_w);
#else
                    diff *= SHARE(at_d, at_h, at_w);
#endif
                    diffs[near_d][near_h][near_w] = is_window ? diff : (WINDOW_DIFFS)(0);
                }
            OVER_CELLS {
                const INDEX d = front + cell_d, h = top + cell_h, w = left + cell_w;
                if (d < 0 || d >= SRC_D || h < 0 || h >= SRC_H || w < 0 || w >= SRC_W) continue;
#ifdef PAIRS
                if (WINDOWS_OF(D, cell_d) * WINDOWS_OF(H, cell_h) * WINDOWS_OF(W, cell_w) <= 2) {
                    WORDS x = 0;
                    if (inside)
                        OVER_WINDOWS_OF_CELL
                            x = sums_of_pairs(x, PAIRS_AT_TAP(diffs[near_d][near_h][near_w],
                                                              places[near_d][near_h][near_w]));
                    STORE_WORDS(diff_src + DIFF_SRC_AT(n, c, d, h, w), x);
                    continue;
                }
#endif
                FLOATS x = 0.0f;
                if (inside) {
                    OVER_WINDOWS_OF_CELL
                        x = SUM(x, diffs[near_d][near_h][near_w], places[near_d][near_h][near_w]);
                    POST_OPS
                }
                STORE_DIFF_SRC(n, c, d, h, w, x);
            }
        }
    }
}
