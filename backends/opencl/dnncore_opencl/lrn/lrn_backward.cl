// diff_src = diff_dst * base**-beta
//            - SLOPE * src * the sum of UNIT * diff_dst * src * base**(-beta - 1) over a window.
// UNIT is a power of two that keeps the terms from overflow and underflow.

typedef struct {
    FLOATS src, scaled, term;
} Place;

#define SEE(place, n, c, d, h, w)                                                                  \
    {                                                                                              \
        const FLOATS base = LOAD_WORKSPACE(n, c, d, h, w);                                         \
        place.src = LOAD_SRC(n, c, d, h, w);                                                       \
        place.scaled = TIMES_POWER(LOAD_DIFF_DST(n, c, d, h, w), base);                            \
        place.term = place.scaled * (UNIT * place.src / base);                                     \
    }

__kernel void lrn_backward($parameters)
{
    BOXES {
        BOX
        WINDOW
        PLACES {
            PLACE
            FLOATS x = 0.0f;
            if (inside) {
                FLOATS sum = 0.0f;
                Place here;
                WINDOW_SUM
                x = here.scaled - SLOPE * here.src * sum;
                POST_OPS
            }
            STORE_DIFF_SRC(n, c, d, h, w, x);
        }
    }
}
