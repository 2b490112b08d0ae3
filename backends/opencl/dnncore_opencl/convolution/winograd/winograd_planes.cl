// Definitions for all transforms of Winograd's convolution on GPUs. A transform in 2-D transforms
// all columns, then all rows. A plane is a matrix for the product at one position: of tiles by
// channels, or of filters by channels. OUTPUTS_DOWN and _ACROSS, SPAN_DOWN and _ACROSS, and LANES,
// the channels of a vector, are defines. Vectors are aligned.

#define TAPS 3
#if LANES == 1
typedef float floats;
#else
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#endif
#define VECTOR(pointer) (*(__global floats *)(pointer))
#define CONST_VECTOR(pointer) (*(__global const floats *)(pointer))

// Replaces all of `count` values that are not finite by those of an expression of their index. Only
// the expression needs a loop that is not unrolled.
#define REPLACE_WHAT_IS_NOT_FINITE(values, count, index, expression)                               \
    {                                                                                              \
        int is_finite = 1;                                                                         \
        _Pragma("unroll") for (int i = 0; i < (count); i++) is_finite &= isfinite((values)[i]);    \
        if (!is_finite) {                                                                          \
            _Pragma("nounroll") for (int index = 0; index < (count); index++) {                    \
                float value = 0;                                                                   \
                _Pragma("unroll") for (int i = 0; i < (count); i++)                                \
                    value = i == index ? (values)[i] : value;                                      \
                if (isfinite(value)) continue;                                                     \
                value = expression;                                                                \
                _Pragma("unroll") for (int i = 0; i < (count); i++)                                \
                    (values)[i] = i == index ? value : (values)[i];                                \
            }                                                                                      \
        }                                                                                          \
    }
