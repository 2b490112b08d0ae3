// Resampling, forward or BACKWARD, with few taps (taps.cl). A work-item holds the offsets and weights
// of the taps of one pixel and computes this pixel of several images or channels, the loop `t`. With
// STEP 1 there is no such loop. Spatial strides are STEP_x.
//
// Taps beyond the count of a pixel read its last tap. With two taps, both then have half its weight.
// Otherwise they have the weight 0, and their value is replaced by 0, because it may be infinite.

#define TABLE(LETTER, at, places, weights)                                                         \
    INDEX places[TAPS_##LETTER];                                                                   \
    float weights[TAPS_##LETTER];                                                                  \
    {                                                                                              \
        const INDEX begin = first_of(at, INNER_##LETTER, OUTER_##LETTER);                          \
        const INDEX end = end_of(at, INNER_##LETTER, OUTER_##LETTER);                              \
        const INDEX last = LAST_OF(INNER_##LETTER, OUTER_##LETTER);                                \
        OVER(i, TAPS_##LETTER) {                                                                   \
            const INDEX tap = begin + i;                                                           \
            places[i] = clamp(min(tap, end - 1), (INDEX)0, last) * STEP_##LETTER;                  \
            weights[i] = tap < end ? WEIGHT(at, tap, INNER_##LETTER, OUTER_##LETTER) : 0.0f;       \
        }                                                                                          \
        HALVED(weights, TAPS_##LETTER)                                                             \
    }
#define OVER(i, count) _Pragma("unroll") for (int i = 0; i < count; ++i)

#ifdef BACKWARD
#define HALVED(weights, taps)
#else
#define HALVED(weights, taps)                                                                      \
    if (taps == 2 && weights[taps - 1] == 0.0f) weights[0] = weights[taps - 1] = 0.5f;
#endif

#ifdef COPIES
#define TERM(sum, weight, value) value
#elif !defined(BACKWARD)
#define TERM(sum, weight, value) (sum + (weight) * value)
#else
#define TERM(sum, weight, value) (sum + (weight) * ((weight) == 0.0f ? (FLOATS)(0) : value))
#endif

__kernel void resampling_held($parameters)
{
    BOXES {
        BOX
        for (INDEX r = r_begin; r < r_end; ++r)
        for (INDEX start = t_begin; start < t_end; start += STEP) {
            const INDEX t = start;
            COORDINATES
            TABLE(D, d, planes, weights_d)
            TABLE(H, h, rows, weights_h)
            TABLE(W, w, columns, weights_w)
            UNROLLED
            for (INDEX t = start; t < min(start + STEP, t_end); ++t) {
                PLACE
                const INDEX image = IMAGE(n, c);
                FLOATS x = (FLOATS)(0);
                if (inside) {
                    OVER(i, TAPS_D)
                    OVER(j, TAPS_H) {
                        FLOATS sum = (FLOATS)(0);
                        const INDEX row = image + planes[i] + rows[j];
                        OVER(k, TAPS_W) {
                            const FLOATS value = READ(row + columns[k]);
                            sum = TERM(sum, weights_w[k], value);
                        }
                        x = TERM(x, weights_d[i] * weights_h[j], sum);
                    }
                    POST_OPS
                }
                x = inside ? x : (FLOATS)(0);
                STORE(n, c, d, h, w, x);
            }
        }
    }
}
