// Winograd's convolution: tiles of an image become points. A tile d of src becomes SRC d SRC^T.
// Backward by weights, a tile d of diff_dst becomes DST^T d DST. A work-item transforms one vector
// of channels of a tile. made[position][tile][channel] begins at `start`. Positions are `plane`
// elements apart.
//
// Defines: PIXELS_DOWN and _ACROSS, the size of a tile; POINTS_DOWN and _ACROSS, functions.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void winograd_planes_points($parameters) {
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
