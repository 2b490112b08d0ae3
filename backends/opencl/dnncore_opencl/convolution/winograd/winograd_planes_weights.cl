// Winograd's convolution: weights g become WEIGHTS g WEIGHTS^T. A work-item transforms the weights
// of one pair of channels. made[position][column][depth] begins at `start`. Positions are `plane`
// elements apart.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void winograd_planes_weights($parameters) {
    const uint item = get_global_id(0);
    if (item >= plane) return;
    __global const float *taps =
        weights + w_start + (int)(item / depth) * w.x + (int)(item % depth) * w.y;
    floats lines[TAPS * SPAN_DOWN];
#pragma unroll
    for (int c = 0; c < TAPS; c++) {
        floats g[TAPS];
#pragma unroll
        for (int r = 0; r < TAPS; r++) g[r] = taps[r * w.z + c * w.w];
        weights_points_down(g, 1, lines + c * SPAN_DOWN);
    }
#pragma unroll
    for (int r = 0; r < SPAN_DOWN; r++) {
        floats points[SPAN_ACROSS];
        weights_points_across(lines + r, SPAN_DOWN, points);
#pragma unroll
        for (int c = 0; c < SPAN_ACROSS; c++) {
            made[start + item + (r * SPAN_ACROSS + c) * plane] = points[c];
        }
    }
}
