// diff_src = diff_dst * base**-beta
//            - SLOPE * src * the sum of diff_dst * src * base**(-beta - 1) over a window.

#define TERM(n, c, d, h, w)                                                                        \
    (LOAD_DIFF_DST(n, c, d, h, w) * LOAD_SRC(n, c, d, h, w)                                        \
     / (LOAD_WORKSPACE(n, c, d, h, w) * (POWER(LOAD_WORKSPACE(n, c, d, h, w)))))

__kernel void lrn_backward(BUFFERS PARAMETERS)
{
    BOXES {
        BOX
        WINDOW
        PLACES {
            PLACE
            FLOATS x = 0.0f;
            if (inside) {
                FLOATS sum = 0.0f;
                WINDOW_SUM
                const FLOATS base = LOAD_WORKSPACE(n, c, d, h, w);
                x = LOAD_DIFF_DST(n, c, d, h, w) / (POWER(base))
                    - SLOPE * LOAD_SRC(n, c, d, h, w) * sum;
                POST_OPS
            }
            STORE_DIFF_SRC(n, c, d, h, w, x);
        }
    }
}
