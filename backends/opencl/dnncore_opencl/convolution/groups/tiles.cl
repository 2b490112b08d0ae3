// Definitions for kernels of convolutions with few channels per group.
//
// A tile is TILE_H x TILE_W pixels of the result. Along a dim, its pixels are OUT_STEP apart, and
// the pixels of the image that they depend on are IN_STEP apart. With these steps dilated kernels
// are dense, and TAP is a constant. TAPS_H x TAPS_W taps are computed at once.
//
// Kernels do not return early if there is nothing to do, because PoCL 3.0 then drops conditions
// after barriers. Instead, divisors are at least 1.

#ifndef UNROLL
#define UNROLL _Pragma("unroll")
#endif
#define INSIDE(place, size) ((uint)(place) < (uint)(size))
#define TAPS (TAPS_H * TAPS_W)
#define NOWHERE (1 << 29)  // a pixel outside of all images

// The tap by which pixel `out` of a tile depends on pixel `in` of its window.
#if IS_BACKWARD
#define TAP(LETTER, out, in) ((out) - RATIO_##LETTER * ((in) - (TAPS_##LETTER - 1) / RATIO_##LETTER))
#define WINDOW(LETTER) ((TILE_##LETTER - 1) / RATIO_##LETTER + (TAPS_##LETTER - 1) / RATIO_##LETTER + 1)
#else
#define TAP(LETTER, out, in) ((in) - RATIO_##LETTER * (out))
#define WINDOW(LETTER) (RATIO_##LETTER * (TILE_##LETTER - 1) + TAPS_##LETTER)
#endif
#define IS_TAP(LETTER, tap) ((tap) >= 0 && (tap) < TAPS_##LETTER)

// The group and channels of a vector of RESULTS channels, and of a lane. INNERS consecutive vectors
// differ only in the image's channel.
#if IS_DEPTHWISE
#define GROUP_OF(vector) ((vector) * RESULTS)
#define COLUMN_OF(vector) 0
#define INNER_OF(vector) 0
#define GROUP_LANE(lane) (lane)
#define COLUMN_LANE(lane) 0
#else
#define GROUP_OF(vector) ((vector) / (VECTORS_OF_GROUP * INNERS))
#define COLUMN_OF(vector) ((vector) / INNERS % VECTORS_OF_GROUP * RESULTS)
#define INNER_OF(vector) ((vector) % INNERS)
#define GROUP_LANE(lane) 0
#define COLUMN_LANE(lane) (lane)
#endif

// Declares the values of a row of a window. Its first pixel has coordinate x and is at `first`.
#define READ_WINDOW(window, is_row, first, x)                                                      \
    IMAGE_BITS bits[WINDOW(W)];                                                                    \
    UNROLL for (int i = 0; i < WINDOW(W); ++i) {                                                   \
        bits[i] = 0;                                                                               \
        if (is_row && INSIDE(x + i * IN_STEP_W, IMAGE_W))                                          \
            bits[i] = READ_IMAGE(first + i * PIXEL_STEP);                                          \
    }                                                                                              \
    VALUES window[WINDOW(W)];                                                                      \
    UNROLL for (int i = 0; i < WINDOW(W); ++i) window[i] = IMAGE_VALUES(bits[i]);

// Both functions return the first pixel of tile `block` in the result, and that of its window in
// the image.
static inline int2 forward_tile(
    const int block, const int tile, const int out_step, const int stride, const int padding)
{
    const int first = block / out_step * (out_step * tile) + block % out_step;
    return (int2)(first, first * stride - padding);
}

// With g = gcd(stride, spacing), ratio = stride / g and in_step = spacing / g, a tap of a pixel of
// the result reads the image's `pixel` if ratio * pixel + in_step * tap = (first + padding) / g.
// inverse: the inverse of ratio modulo in_step.
static inline int2 backward_tile(
    const int block, const int tile, const int spacing, const int common, const int ratio,
    const int in_step, const int inverse, const int padding, const int taps)
{
    const int rest = block % spacing, along = rest / common;
    const int origin = along * inverse % in_step;
    const int shift = (along - ratio * origin) / in_step;
    const int least = (padding - rest + spacing - 1) / spacing;
    const int at = (least + shift + ratio) / ratio - 1 + block / spacing * (tile / ratio);
    const int first = rest + spacing * (at * ratio - shift) - padding;
    const int seen = origin + in_step * (at - (taps - 1) / ratio);
    return (int2)(first, rest % common ? NOWHERE : seen);
}

// The pixel along the image's depth for a tap that is `reach` away from the first one, else
// NOWHERE.
static inline int backward_place(const int reach, const int stride)
{
    return reach < 0 || reach % stride ? NOWHERE : reach / stride;
}
