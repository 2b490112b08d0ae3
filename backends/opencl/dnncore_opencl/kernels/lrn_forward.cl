// dst = src * base**-beta with base = K + SCALE * the sum of src**2 over a window, the workspace.

#define TERM(n, c, d, h, w) square(LOAD_SRC(n, c, d, h, w))

static inline FLOATS square(const FLOATS x)
{
    return x * x;
}

__kernel void lrn_forward(BUFFERS PARAMETERS)
{
    BOXES {
        BOX
        WINDOW
        PLACES {
            PLACE
            FLOATS base = 0.0f, x = 0.0f;
            if (inside) {
                FLOATS sum = 0.0f;
                WINDOW_SUM
                base = K + SCALE * sum;
                x = LOAD_SRC(n, c, d, h, w) / (POWER(base));
                POST_OPS
            }
            STORE_DST(n, c, d, h, w, x);
#ifdef WORKSPACE
            STORE_WORKSPACE(n, c, d, h, w, base);
#endif
        }
    }
}
