// Winograd's convolution, backward by weights: sums u over tiles become WEIGHTS^T u WEIGHTS, then
// post-ops are applied. A work-item computes the taps for one output and one input channel.
//
// sums[slice][position][column][depth] begins at `start`. Slices are added in order. Taps that are
// not finite are computed again as direct sums over all images.

// The gradient of a tap for two channels. size: of src, then of diff_dst. A large unit prevents
// overflow of partial sums.
static float direct_gradient(__global const float *src, const int4 x, __global const float *diff_dst,
                             const int4 y, const int2 tap, const int4 size, const int images) {
    float sum = 0, unit = 1;
    for (int i = 0; i < 2; i++, unit = 0x1p32f) {
        sum = 0;
        for (int image = 0; image < images; image++)
            for (int row = 0; row < size.z && sum == sum; row++) {
                if ((uint)(row + tap.x) >= (uint)size.x) continue;
                for (int column = 0; column < size.w; column++)
                    if ((uint)(column + tap.y) < (uint)size.y)
                        sum = fma(diff_dst[image * y.x + row * y.y + column * y.z] / unit,
                                  src[image * x.x + (row + tap.x) * x.y + (column + tap.y) * x.z],
                                  sum);
            }
        sum *= unit;
        if (isfinite(sum)) break;
    }
    return sum;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void winograd_planes_taps($parameters) {
    const uint item = get_global_id(0);
    if (item >= plane) return;
    __global const float *source = sums + start + item;
    floats lines[SPAN_ACROSS * TAPS];
#pragma unroll
    for (int c = 0; c < SPAN_ACROSS; c++) {
        floats u[SPAN_DOWN];
#pragma unroll
        for (int r = 0; r < SPAN_DOWN; r++) {
            u[r] = 0;
            for (int slice = 0; slice < slices; slice++)
                u[r] += source[((slice * SPAN_DOWN + r) * SPAN_ACROSS + c) * plane];
        }
        weights_taps_down(u, 1, lines + c * TAPS);
    }
    const int column = item / depth, channel = item % depth;
    float made[TAPS * TAPS];
#pragma unroll
    for (int r = 0; r < TAPS; r++) {
        weights_taps_across(lines + r, TAPS, made + r * TAPS);
    }
    REPLACE_WHAT_IS_NOT_FINITE(
        made, TAPS * TAPS, t,
        direct_gradient(src + x.w + channel, x, diff_dst + y.w + column, y,
                        (int2)(t / TAPS, t % TAPS) - corner, size, images))
    __global float *target = weights + w_start + column * w.x + channel * w.y;
#pragma unroll
    for (int t = 0; t < TAPS * TAPS; t++) {
        __global float *tap = target + t / TAPS * w.z + t % TAPS * w.w;
#ifdef POST_STEPS
#ifdef POST_READS_DST
        const float old = *tap;
#else
        const float old = 0;
#endif
        made[t] = post_ops(made[t], old, 0, column, channel, 0, t / TAPS, t % TAPS POST_ARGS);
#endif
        *tap = made[t];
    }
}
