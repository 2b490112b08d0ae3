#define OUTPUTS_DOWN 2
#define OUTPUTS_ACROSS 2
#define SPAN_DOWN 4
#define SPAN_ACROSS 4
#define LANES 4
#define GROUP 256
#define PIXELS_DOWN 4
#define PIXELS_ACROSS 4
#define POINTS_DOWN src_points_down
#define POINTS_ACROSS src_points_across
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

static inline void src_points_down(const floats *x, const int step, floats *y) {
    y[0] = -1.0f * x[0 * step] + x[2 * step];
    const floats even1 = x[2 * step];
    const floats odd1 = x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = -1.0f * x[1 * step] + x[3 * step];
}
static inline void weights_points_down(const floats *x, const int step, floats *y) {
    y[0] = -1.0f * x[0 * step];
    const floats even1 = 0.5f * x[0 * step] + 0.5f * x[2 * step];
    const floats odd1 = 0.5f * x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = x[2 * step];
}
static inline void dst_outputs_down(const floats *x, const int step, floats *y) {
    const floats even1 = x[1 * step] + x[2 * step];
    const floats odd1 = x[1 * step] - x[2 * step];
    y[0] = x[0] + even1;
    y[1] = odd1 + x[3 * step];
}
static inline void dst_points_down(const floats *x, const int step, floats *y) {
    y[0] = x[0 * step];
    const floats even1 = x[0 * step];
    const floats odd1 = x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = x[1 * step];
}
static inline void weights_taps_down(const floats *x, const int step, floats *y) {
    const floats even1 = x[1 * step] + x[2 * step];
    const floats odd1 = x[1 * step] - x[2 * step];
    y[0] = -1.0f * x[0] + 0.5f * even1;
    y[1] = 0.5f * odd1;
    y[2] = 0.5f * even1 + x[3 * step];
}
static inline void src_points_across(const floats *x, const int step, floats *y) {
    y[0] = -1.0f * x[0 * step] + x[2 * step];
    const floats even1 = x[2 * step];
    const floats odd1 = x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = -1.0f * x[1 * step] + x[3 * step];
}
static inline void weights_points_across(const floats *x, const int step, floats *y) {
    y[0] = -1.0f * x[0 * step];
    const floats even1 = 0.5f * x[0 * step] + 0.5f * x[2 * step];
    const floats odd1 = 0.5f * x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = x[2 * step];
}
static inline void dst_outputs_across(const floats *x, const int step, floats *y) {
    const floats even1 = x[1 * step] + x[2 * step];
    const floats odd1 = x[1 * step] - x[2 * step];
    y[0] = x[0] + even1;
    y[1] = odd1 + x[3 * step];
}
static inline void dst_points_across(const floats *x, const int step, floats *y) {
    y[0] = x[0 * step];
    const floats even1 = x[0 * step];
    const floats odd1 = x[1 * step];
    y[1] = even1 + odd1;
    y[2] = even1 - odd1;
    y[3] = x[1 * step];
}
static inline void weights_taps_across(const floats *x, const int step, floats *y) {
    const floats even1 = x[1 * step] + x[2 * step];
    const floats odd1 = x[1 * step] - x[2 * step];
    y[0] = -1.0f * x[0] + 0.5f * even1;
    y[1] = 0.5f * odd1;
    y[2] = 0.5f * even1 + x[3 * step];
}
// Winograd's convolution: tiles of an image become points. A tile d of src becomes SRC d SRC^T.
// Backward by weights, a tile d of diff_dst becomes DST^T d DST. A work-item transforms one vector
// of channels of a tile. made[position][tile][channel] begins at `start`. Positions are `plane`
// elements apart.
//
// Defines: PIXELS_DOWN and _ACROSS, the size of a tile; POINTS_DOWN and _ACROSS, functions.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void winograd_planes_points(
    __global const float *restrict src,
    __global float *restrict made,
    const int start,
    const int plane,
    const uint items,
    const uint vectors,
    const int2 grid,
    const int first,
    const int2 corner,
    const int2 size,
    const int4 x) {
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint tile = item / vectors, channel = item % vectors * LANES;
    const uint line = tile / (uint)grid.y;
    const int row = line % (uint)grid.x * OUTPUTS_DOWN - corner.x;
    const int column = tile % (uint)grid.y * OUTPUTS_ACROSS - corner.y;
    __global const float *image =
        src + x.w + (first + (int)(line / (uint)grid.x)) * x.x + (int)channel;
    floats lines[SPAN_DOWN * PIXELS_ACROSS];
#pragma unroll
    for (int c = 0; c < PIXELS_ACROSS; c++) {
        floats d[PIXELS_DOWN];
        const bool is_across = (uint)(column + c) < (uint)size.y;
#pragma unroll
        for (int r = 0; r < PIXELS_DOWN; r++) {
            const bool is_inside = is_across && (uint)(row + r) < (uint)size.x;
            d[r] = is_inside ? CONST_VECTOR(image + (row + r) * x.y + (column + c) * x.z)
                             : (floats)(0);
        }
        POINTS_DOWN(d, 1, lines + c * SPAN_DOWN);
    }
    __global float *target = made + start + item * LANES;
#pragma unroll
    for (int r = 0; r < SPAN_DOWN; r++) {
        floats points[SPAN_ACROSS];
        POINTS_ACROSS(lines + r, SPAN_DOWN, points);
#pragma unroll
        for (int c = 0; c < SPAN_ACROSS; c++) {
            VECTOR(target + (r * SPAN_ACROSS + c) * plane) = points[c];
        }
    }
}
