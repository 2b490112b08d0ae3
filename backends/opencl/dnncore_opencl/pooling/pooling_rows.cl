// Pooling by MAX, otherwise by average, if windows overlap along H. A work-item computes ROWS
// vertically adjacent outputs and reads their rows of src once. It combines the cells of each row,
// then the rows of each window. Windows are defined in pooling_window.cl, without dilation. Each
// contains a cell. h counts boxes of ROWS first, then outputs.
//
// Among equal cells, the first is the maximum. NaN exceeds all numbers; the place of a NaN is
// computed at the end. Places are relative to the first window's first cell until they are written.

#define OVER(i, count) UNROLLED for (INDEX i = 0; i < count; ++i)

// Branch-free: a tap outside the image reads the nearest cell, which is in the window. This does
// not change a maximum. An average ignores the second read.
#define NEAREST(LETTER, at) clamp(at, (INDEX)0, (INDEX)(SRC_##LETTER - 1))

#ifdef MAX
#define TAKE(x, place, cell, at, is_first)                                                         \
    {                                                                                              \
        place = (INTS)(-(is_first)) | (cell > x) ? (INTS)(at) : place;                             \
        x = (is_first) ? cell : larger(cell, x);                                                   \
    }
#else
#define TAKE(x, place, cell, at, is_first) x = (is_first) ? cell : x + cell;
#endif

__kernel void pooling_rows($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            const INDEX first_row = h * ROWS, top = first_row * STRIDE_H - LEFT_H;
            const INDEX front = d * STRIDE_D - LEFT_D, left = w * STRIDE_W - LEFT_W;
            FLOATS results[ROWS];
            INTS places[ROWS];
            OVER(row, ROWS) {
                results[row] = 0.0f;
                places[row] = 0;
            }
            if (inside)
                OVER(i, TAPS_D) OVER(j, (ROWS - 1) * STRIDE_H + TAPS_H) {
                    const INDEX at_d = NEAREST(D, front + i), at_h = NEAREST(H, top + j);
                    FLOATS x = 0.0f;
                    INTS place = 0;
                    OVER(k, TAPS_W) {
                        const INDEX at_w = NEAREST(W, left + k);
                        FLOATS cell = LOAD_SRC(n, c, at_d, at_h, at_w);
#ifndef MAX
                        if (at_d != front + i || at_h != top + j || at_w != left + k) cell = 0.0f;
#endif
                        const INDEX at =
                            ((at_d - front) * TAPS_H + at_h - top) * TAPS_W + at_w - left;
                        TAKE(x, place, cell, at, k == 0)
                    }
                    OVER(row, ROWS) {
                        const INDEX tap = j - row * STRIDE_H;
                        if (tap >= 0 && tap < TAPS_H)
                            TAKE(results[row], places[row], x, place, i == 0 && tap == 0)
                    }
                }
            OVER(row, ROWS) {
                const INDEX h = first_row + row;
                if (h < DST_H) {
                    FLOATS x = results[row];
                    if (inside) {
#ifndef MAX
                        x *= SHARE(d, h, w);
#endif
                        POST_OPS
                    }
                    STORE_DST(n, c, d, h, w, x);
#ifdef WORKSPACE
                    INTS place = inside ? places[row] - (INTS)(row * STRIDE_H * TAPS_W) : (INTS)(0);
                    if (inside && any(isnan(results[row]))) {
                        const INDEX start = h * STRIDE_H - LEFT_H;
                        OVER_SEEN_BACK(i, j, k, front, start, left) {
                            const FLOATS cell = LOAD_SRC(n, c, front + i, start + j, left + k);
                            const INTS here = (INTS)((i * TAPS_H + j) * TAPS_W + k);
                            place = isnan(cell) ? here : place;
                        }
                    }
                    STORE_WORKSPACE(n, c, d, h, w, place);
#endif
                }
            }
        }
    }
}
