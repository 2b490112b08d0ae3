// The gradient of pooling in blocks of cells of diff_src, STRIDE of them along each dim, which the
// same NEAR windows may see: so what a window holds is read once for the whole block, and the tap
// by which it sees a cell is a constant of the text. Windows are those of pooling_window.cl, with
// taps side by side. Each sum has the order of pooling_backward.cl.
//
// d, h and w count blocks first, then cells. A block begins where a window would, so that the first
// ones may begin in the padding; what lies outside the image is not written.

#define BEGIN(LETTER, block) ((block) * STRIDE_##LETTER - LEFT_##LETTER % STRIDE_##LETTER)
#define START(LETTER, block, near) ((block) + LEFT_##LETTER / STRIDE_##LETTER - (near))
#define TAP(LETTER, near, cell) (STRIDE_##LETTER * (near) + (cell))
#define SEES(LETTER, near, cell) (TAP(LETTER, near, cell) < TAPS_##LETTER)

// Without a branch: where no window begins, one that does is looked at and not counted.
#define OUTPUT(LETTER, block, near, at, is_window)                                                 \
    const INDEX at = clamp(START(LETTER, block, near), (INDEX)0, (INDEX)(DST_##LETTER - 1));       \
    const int is_window = at == START(LETTER, block, near);

#define OVER(i, count) UNROLLED for (INDEX i = 0; i < count; ++i)
#define OVER_WINDOWS OVER(near_d, NEAR_D) OVER(near_h, NEAR_H) OVER(near_w, NEAR_W)
#define OVER_CELLS OVER(cell_d, STRIDE_D) OVER(cell_h, STRIDE_H) OVER(cell_w, STRIDE_W)

__kernel void pooling_blocks(BUFFERS PARAMETERS)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            const INDEX front = BEGIN(D, d), top = BEGIN(H, h), left = BEGIN(W, w);
            FLOATS sums[STRIDE_D][STRIDE_H][STRIDE_W];
            OVER_CELLS sums[cell_d][cell_h][cell_w] = 0.0f;
            if (inside)
                OVER_WINDOWS {
                    OUTPUT(D, d, near_d, at_d, is_window_d)
                    OUTPUT(H, h, near_h, at_h, is_window_h)
                    OUTPUT(W, w, near_w, at_w, is_window_w)
                    const int is_window = is_window_d && is_window_h && is_window_w;
                    const FLOATS diff = LOAD_DIFF_DST(n, c, at_d, at_h, at_w);
#ifdef MAX
                    const INTS place = TO_INTS(LOAD_WORKSPACE(n, c, at_d, at_h, at_w));
#else
                    const FLOATS part = is_window ? diff * SHARE(at_d, at_h, at_w) : (FLOATS)(0.0f);
#endif
                    OVER_CELLS
                        if (SEES(D, near_d, cell_d) && SEES(H, near_h, cell_h)
                            && SEES(W, near_w, cell_w)) {
                            const int i = TAP(D, near_d, cell_d), j = TAP(H, near_h, cell_h);
                            const int k = TAP(W, near_w, cell_w);
#ifdef MAX
                            const int tap = is_window ? (i * TAPS_H + j) * TAPS_W + k : -1;
                            const FLOATS sum = sums[cell_d][cell_h][cell_w];
                            sums[cell_d][cell_h][cell_w] = place == (INTS)(tap) ? sum + diff : sum;
#else
                            sums[cell_d][cell_h][cell_w] += part;
#endif
                        }
                }
            OVER_CELLS {
                const INDEX d = front + cell_d, h = top + cell_h, w = left + cell_w;
                if (d >= 0 && d < SRC_D && h >= 0 && h < SRC_H && w >= 0 && w < SRC_W) {
                    FLOATS x = sums[cell_d][cell_h][cell_w];
                    if (inside) {
                        POST_OPS
                    }
                    STORE_DIFF_SRC(n, c, d, h, w, x);
                }
            }
        }
    }
}
