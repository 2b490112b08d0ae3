// Winograd's convolution, backward by weights: sums over tiles become WEIGHTS^T u WEIGHTS, after
// post-ops. A work-item makes the taps of one channel of one filter.
//
// sums[slice][position][column][depth] begins at `start`; slices are added up in their order.

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
    __global float *target = weights + w_start + column * w.x + channel * w.y;
#pragma unroll
    for (int r = 0; r < TAPS; r++) {
        floats taps[TAPS];
        weights_taps_across(lines + r, TAPS, taps);
#pragma unroll
        for (int c = 0; c < TAPS; c++) {
            __global float *tap = target + r * w.z + c * w.w;
#ifdef POST_STEPS
#ifdef POST_READS_DST
            const float old = *tap;
#else
            const float old = 0;
#endif
            taps[c] = post_ops(taps[c], old, 0, column, channel, 0, r, c POST_ARGS);
#endif
            *tap = taps[c];
        }
    }
}
