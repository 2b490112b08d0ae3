// The gradient of pooling. Each cell of diff_src gathers from the windows that contain it, so its
// sum has a fixed order and needs no atomics. Windows are defined in pooling_window.cl. At most
// NEAR windows begin where they may contain a cell. Some of them contain it, at tap `tap`.

#define START(LETTER, cell, near) (((cell) + LEFT_##LETTER) / STRIDE_##LETTER - (near))
#define OFFSET(LETTER, cell, at) ((cell) + LEFT_##LETTER - (at) * STRIDE_##LETTER)
#define SEES(LETTER, at, offset)                                                                   \
    ((at) >= 0 && (at) < DST_##LETTER && (offset) % STEP_##LETTER == 0                             \
     && (offset) / STEP_##LETTER < TAPS_##LETTER)

#ifdef UNROLL
// Branch-free: if no window begins there, another window is read and ignored.
#define OVER_NEAR(LETTER, near) UNROLLED for (INDEX near = 0; near < NEAR_##LETTER; ++near)
#define OUTPUT(LETTER, cell, near, at, tap, sees)                                                  \
    const INDEX at = clamp(START(LETTER, cell, near), (INDEX)0, (INDEX)(DST_##LETTER - 1));        \
    const INDEX tap = OFFSET(LETTER, cell, START(LETTER, cell, near)) / STEP_##LETTER;             \
    const int sees = SEES(LETTER, START(LETTER, cell, near),                                       \
                          OFFSET(LETTER, cell, START(LETTER, cell, near)));
#define OVER_OUTPUTS                                                                               \
    OVER_NEAR(D, near_d) OVER_NEAR(H, near_h) OVER_NEAR(W, near_w)
#define EACH_OUTPUT                                                                                \
    OUTPUT(D, d, near_d, at_d, i, sees_d)                                                          \
    OUTPUT(H, h, near_h, at_h, j, sees_h)                                                          \
    OUTPUT(W, w, near_w, at_w, k, sees_w)                                                          \
    const int sees = sees_d && sees_h && sees_w;
#else
#define OVER_ALONG(LETTER, cell, at, tap)                                                          \
    for (INDEX near = 0, at = 0, tap = 0; near < NEAR_##LETTER; ++near)                            \
        if (at = START(LETTER, cell, near), tap = OFFSET(LETTER, cell, at),                        \
            SEES(LETTER, at, tap) && (tap /= STEP_##LETTER, 1))
#define OVER_OUTPUTS                                                                               \
    OVER_ALONG(D, d, at_d, i) OVER_ALONG(H, h, at_h, j) OVER_ALONG(W, w, at_w, k)
#define EACH_OUTPUT const int sees = 1;
#endif

__kernel void pooling_backward($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            FLOATS x = 0.0f;
            if (inside) {
                OVER_OUTPUTS {
                    EACH_OUTPUT
                    const FLOATS diff = LOAD_DIFF_DST(n, c, at_d, at_h, at_w);
#ifdef MAX
                    const INTS place = TO_INTS(LOAD_WORKSPACE(n, c, at_d, at_h, at_w));
                    const int tap = sees ? (i * TAPS_H + j) * TAPS_W + k : -1;
                    x += place == (INTS)(tap) ? diff : 0.0f;
#else
                    x += sees ? diff * SHARE(at_d, at_h, at_w) : (FLOATS)(0.0f);
#endif
                }
                POST_OPS
            }
            STORE_DIFF_SRC(n, c, d, h, w, x);
        }
    }
}
