// Winograd's convolution: a tile d of src becomes SRC d SRC^T. A work-item computes `tiles` tiles
// of one block of channels. made[position][block][tile][lane] begins at `start`.
//
// All 2-D transforms on CPUs transform first all columns, then all rows. Defines: LANES, the
// channels of a vector. OUTPUTS, the outputs of a tile along one dim. They depend on SPAN pixels
// and TAPS weights.

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void winograd_src($parameters) {
    const int from = first + get_group_id(0) * tiles, to = min(from + tiles, end);
    const int plane = blocks * (end - first) * LANES;
    for (int tile = from; tile < to; tile++) {
        const int row = tile / grid.y % grid.x * OUTPUTS - corner.x;
        const int column = tile % grid.y * OUTPUTS - corner.y;
        __global const float *image =
            src + x_start + tile / (grid.x * grid.y) * x.x + get_group_id(1) * x.y;
        floats d[SPAN * SPAN], lines[SPAN * SPAN];
        for (int r = 0; r < SPAN; r++) {
            for (int c = 0; c < SPAN; c++) {
                const int y = row + r, z = column + c;
                const int is_inside = (uint)y < (uint)size.x && (uint)z < (uint)size.y;
                d[r * SPAN + c] =
                    is_inside ? LOAD(0, image + y * x.z + z * x.w) : (floats)(0);
            }
        }
        __global float *target =
            made + start + (get_group_id(1) * (end - first) + tile - first) * LANES;
        for (int c = 0; c < SPAN; c++) src_points(d + c, SPAN, lines + c * SPAN);
        for (int r = 0; r < SPAN; r++) {
            floats points[SPAN];
            src_points(lines + r, SPAN, points);
            for (int c = 0; c < SPAN; c++) STORE(points[c], 0, target + (r * SPAN + c) * plane);
        }
    }
}
