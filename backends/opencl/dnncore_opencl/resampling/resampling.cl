// Resampling, forward or BACKWARD, over 1 to 3 spatial dims, with any number of taps (taps.cl). A
// gradient gathers: element i of diff_src reads the elements of diff_dst that depend on it.

#define OVER_TAPS(LETTER, at, tap)                                                                 \
    for (INDEX tap = first_of(at, INNER_##LETTER, OUTER_##LETTER),                                 \
         tap##_end = end_of(at, INNER_##LETTER, OUTER_##LETTER); tap < tap##_end; ++tap)
#ifdef HAS_D
#define OVER_D OVER_TAPS(D, d, i)
#define WEIGHT_D WEIGHT(d, i, INNER_D, OUTER_D)
#else
#define OVER_D for (INDEX i = 0; i < 1; ++i)
#define WEIGHT_D 1.0f
#endif
#ifdef HAS_H
#define OVER_H OVER_TAPS(H, h, j)
#define WEIGHT_H WEIGHT(h, j, INNER_H, OUTER_H)
#else
#define OVER_H for (INDEX j = 0; j < 1; ++j)
#define WEIGHT_H 1.0f
#endif

__kernel void resampling($parameters)
{
    BOXES {
        BOX
        PLACES {
            PLACE
            FLOATS x = (FLOATS)(0);
            if (inside) {
                OVER_D {
                    OVER_H {
                        const float plane = WEIGHT_D * WEIGHT_H;
                        OVER_TAPS(W, w, k) {
#ifdef COPIES
                            x = LOAD(n, c, i, j, k);
#else
                            x += plane * WEIGHT(w, k, INNER_W, OUTER_W) * LOAD(n, c, i, j, k);
#endif
                        }
                    }
                }
                POST_OPS
            }
            x = inside ? x : (FLOATS)(0);
            STORE(n, c, d, h, w, x);
        }
    }
}
