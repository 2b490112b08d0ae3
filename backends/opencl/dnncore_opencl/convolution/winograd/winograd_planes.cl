// Definitions for all transforms of Winograd's convolution on GPUs. 2-D transforms transform first
// all columns, then all rows. A plane is one matrix of the product at one position: tiles by
// channels, or weights, columns by depth. Defines: OUTPUTS_DOWN and _ACROSS, SPAN_DOWN and _ACROSS,
// and LANES, the channels of a vector. Vectors are aligned.

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

// Replaces each of `count` values that is not finite by `expression`, which may use `index`. The
// loop over `expression` is not unrolled.
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
