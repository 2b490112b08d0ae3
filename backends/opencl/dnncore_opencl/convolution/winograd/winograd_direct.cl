// The direct sum of one element of dst, used where Winograd's result is not finite, because its
// intermediate values overflow earlier. The weights are computed from the transformed weights.
//
// image: an image of src, whose channels are in blocks of WIDTH. at: the position of the first tap
// in the image. steps: the strides of a block of channels, a row and a pixel. filter: the first
// transformed weight of position 0, with stride `plane` between positions and `channel` between
// channels. unit: the sum is computed in multiples of it.

#define LARGE_UNIT 0x1p32f

static float sum_in_units(const float unit, __global const float *image, const int2 at,
                          const int2 size, const int4 steps, __global const float *filter,
                          const int plane, const int channel, const int depth) {
    float sum = 0;
    for (int k = 0; k < depth && sum == sum; k++) {
        __global const float *pixels = image + k / WIDTH * steps.x + k % WIDTH;
        for (int t = 0; t < 3 * 3; t++) {
            const int r = t / 3, c = t % 3, y = at.x + r, z = at.y + c;
            if ((uint)y >= (uint)size.x || (uint)z >= (uint)size.y) continue;
            float tap = 0;
            for (int i = 0; i < 4; i++) {
                const float factor = tap_factors_down[r][i / 2] * tap_factors_across[c][i % 2];
                const int point = tap_points_down[r][i / 2] * SPAN_ACROSS
                    + tap_points_across[c][i % 2];
                if (factor != 0) tap += factor * filter[point * plane + k * channel];
            }
            sum = fma(tap, pixels[y * steps.y + z * steps.z] / unit, sum);
        }
    }
    return sum * unit;
}

// A large unit prevents overflow of partial sums.
static float direct_sum(__global const float *image, const int2 at, const int2 size,
                        const int4 steps, __global const float *filter, const int plane,
                        const int channel, const int depth) {
    float sum = 0, unit = 1;
    for (int i = 0; i < 2; i++, unit = LARGE_UNIT) {
        sum = sum_in_units(unit, image, at, size, steps, filter, plane, channel, depth);
        if (isfinite(sum)) break;
    }
    return sum;
}
