// dst = src * base**-beta with base = K + the sum of SCALE * src**2 over a window, the workspace.
// The terms include SCALE, so that none overflows before the base does.

typedef struct {
    FLOATS src, term;
} Place;

#define SEE(place, n, c, d, h, w)                                                                  \
    place.src = LOAD_SRC(n, c, d, h, w);                                                           \
    place.term = SCALE * place.src * place.src;

__kernel void lrn_forward($parameters)
{
    BOXES {
        BOX
        WINDOW
        PLACES {
            PLACE
            FLOATS base = 0.0f, x = 0.0f;
            if (inside) {
                FLOATS sum = 0.0f;
                Place here;
                WINDOW_SUM
                base = K + sum;
                x = TIMES_POWER(here.src, base);
                POST_OPS
            }
            STORE_DST(n, c, d, h, w, x);
#ifdef WORKSPACE
            STORE_WORKSPACE(n, c, d, h, w, base);
#endif
        }
    }
}
