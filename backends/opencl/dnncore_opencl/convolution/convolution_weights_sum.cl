// The last stage of `convolution_direct_weights`. It adds the parts in order, applies post-ops and
// writes diff_weights. A work-item computes all taps of a block of channels times a pair of
// vectors.
//
// LANES is a define. The layout of diff_weights is `start`, then the strides of a group, a block of
// output channels, an output channel, a block of input channels and an input channel.

#define BLOCK (LANES * 2 * LANES)

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void convolution_weights_sum($parameters) {
    if (columns == 0) return;
    const int4 own = digits(get_group_id(0), (int4)(1, groups, pairs, blocks));
    const int tap_count = taps.y * taps.z * taps.w;
    const int part = groups * pairs * blocks * tap_count * BLOCK;
    __global const float *sums = scratch + scratch_start + get_group_id(0) * tap_count * BLOCK;
    for (int t = 0; t < tap_count; t++) {
        const int4 tap = digits(t, (int4)(1, taps.yzw));
        for (int c = 0; c < LANES; c++, sums += 2 * LANES) {
            const int channel = own.w * LANES + c;
            if (channel >= end_depth) continue;
            float x[2 * LANES];
            for (int i = 0; i < 2 * LANES; i++) x[i] = 0;
            for (int p = 0; p < parts; p++)
                for (int i = 0; i < 2 * LANES; i++) x[i] += sums[p * part + i];
            for (int v = 0; v < 2; v++) {
                const int column = own.z * 2 * LANES + v * LANES;
                __global float *target = diff_weights + start + own.y * w_group
                    + column / LANES * w_channels.x + own.w * w_channels.z + c * w_channels.w
                    + DOT4(tap, w);
                const int lanes = channel < depth ? clamp(columns - column, 0, LANES) : 0;
                float *from = x + v * LANES;
#ifdef POST_STEPS
                for (int i = 0; i < lanes; i++) {
#ifdef POST_READS_DST
                    const float old = target[i * w_channels.y];
#else
                    const float old = 0;
#endif
                    from[i] = post_ops(from[i], old, own.y, column + i, channel, tap.y, tap.z,
                                       tap.w POST_ARGS);
                }
#endif
                const int end = clamp(end_column - column, 0, LANES);
                for (int i = 0; i < end; i++) target[i * w_channels.y] = i < lanes ? from[i] : 0;
            }
        }
    }
}
