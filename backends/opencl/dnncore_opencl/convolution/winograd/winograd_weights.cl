// Winograd's convolution: weights g become WEIGHTS g WEIGHTS^T. A work-item transforms weights of
// one vector of the result's channels for all `depth` other channels.
// made[position][block][depth][lane] begins at `start`. Lanes past `columns` are zero.

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void winograd_weights($parameters) {
    if (columns == 0) return;
    const int blocks = (columns + LANES - 1) / LANES, plane = blocks * depth * LANES;
    const int first = get_group_id(0) * LANES, lanes = min(LANES, columns - first);
    for (int k = 0; k < depth; k++) {
        float taps[TAPS * TAPS * LANES];
        for (int t = 0; t < TAPS * TAPS; t++) {
            __global const float *from =
                weights + w_start + first * w.x + k * w.y + t / TAPS * w.z + t % TAPS * w.w;
            for (int i = 0; i < LANES; i++) taps[t * LANES + i] = i < lanes ? from[i * w.x] : 0;
        }
        floats g[TAPS * TAPS], lines[SPAN * TAPS];
        for (int t = 0; t < TAPS * TAPS; t++) g[t] = LOAD(t, taps);
        for (int c = 0; c < TAPS; c++) weights_points(g + c, TAPS, lines + c * SPAN);
        __global float *target = made + start + (get_group_id(0) * depth + k) * LANES;
        for (int r = 0; r < SPAN; r++) {
            floats points[SPAN];
            weights_points(lines + r, SPAN, points);
            for (int c = 0; c < SPAN; c++) STORE(points[c], 0, target + (r * SPAN + c) * plane);
        }
    }
}
