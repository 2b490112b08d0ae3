// The gradient of pooling: each cell of diff_src gathers from the windows that see it, so that its
// sum has a fixed order and needs no atomics. Windows are those of pooling_window.cl.

__kernel void pooling_backward(BUFFERS PARAMETERS)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            FLOATS x = 0.0f;
            for (INDEX i = 0; inside && i < TAPS_D; ++i) {
                const INDEX at_d = output_at(d + LEFT_D - i * STEP_D, STRIDE_D, DST_D);
                if (at_d < 0) continue;
                for (INDEX j = 0; j < TAPS_H; ++j) {
                    const INDEX at_h = output_at(h + LEFT_H - j * STEP_H, STRIDE_H, DST_H);
                    if (at_h < 0) continue;
                    for (INDEX k = 0; k < TAPS_W; ++k) {
                        const INDEX at_w = output_at(w + LEFT_W - k * STEP_W, STRIDE_W, DST_W);
                        if (at_w < 0) continue;
                        const FLOATS diff = LOAD_DIFF_DST(n, c, at_d, at_h, at_w);
#ifdef MAX
                        const INTS place = TO_INTS(LOAD_WORKSPACE(n, c, at_d, at_h, at_w));
                        x += place == (INTS)((i * TAPS_H + j) * TAPS_W + k) ? diff : 0.0f;
#else
                        x += diff / DIVISOR(at_d, at_h, at_w);
#endif
                    }
                }
            }
            if (inside) {
                POST_OPS
            }
            STORE_DIFF_SRC(n, c, d, h, w, x);
        }
    }
}
