// Winograd's convolution: products m become tiles DST m DST^T of dst, after post-ops. A work-item
// makes one vector of channels of a tile; products[position][tile][channel] begins at `start`.
// Elements that are not finite are summed up directly, as the filters [position][column][depth] and
// src give them.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void winograd_planes_dst($parameters) {
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint tile = item / vectors;
    const int channel = item % vectors * LANES;
    const uint line = tile / (uint)grid.y;
    const int row = line % (uint)grid.x * OUTPUTS_DOWN,
              column = tile % (uint)grid.y * OUTPUTS_ACROSS;
    const int image = first + (int)(line / (uint)grid.x);
    __global const float *source = products + start + item * LANES;
    floats lines[SPAN_ACROSS * OUTPUTS_DOWN];
#pragma unroll
    for (int c = 0; c < SPAN_ACROSS; c++) {
        floats m[SPAN_DOWN];
#pragma unroll
        for (int r = 0; r < SPAN_DOWN; r++) {
            m[r] = CONST_VECTOR(source + (r * SPAN_ACROSS + c) * plane);
        }
        dst_outputs_down(m, 1, lines + c * OUTPUTS_DOWN);
    }
    floats made[OUTPUTS_DOWN * OUTPUTS_ACROSS];
#pragma unroll
    for (int r = 0; r < OUTPUTS_DOWN; r++) {
        dst_outputs_across(lines + r, OUTPUTS_DOWN, made + r * OUTPUTS_ACROSS);
    }
    REPLACE_WHAT_IS_NOT_FINITE(
        (float *)made, OUTPUTS_DOWN * OUTPUTS_ACROSS * LANES, e,
        direct_sum(src + x.w + image * x.x,
                   (int2)(row + e / LANES / OUTPUTS_ACROSS, column + e / LANES % OUTPUTS_ACROSS)
                       - corner,
                   src_size, (int4)(1, x.y, x.z, 0),
                   filters + f_start + (channel + e % LANES) * depth, f_plane, 1, depth))
    __global float *target = dst + y.w + image * y.x + channel;
#pragma unroll
    for (int r = 0; r < OUTPUTS_DOWN; r++) {
#pragma unroll
        for (int c = 0; c < OUTPUTS_ACROSS; c++) {
            if (row + r >= size.x || column + c >= size.y) continue;
            __global float *pixel = target + (row + r) * y.y + (column + c) * y.z;
#ifdef POST_STEPS
#ifdef POST_READS_DST
            const floats old = CONST_VECTOR(pixel);
#else
            const floats old = (floats)(0);
#endif
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                float *element = (float *)&made[r * OUTPUTS_ACROSS + c] + i;
                *element = post_ops(*element, ((const float *)&old)[i], image, channel + i, 0,
                    row + r, column + c POST_ARGS);
            }
#endif
            VECTOR(pixel) = made[r * OUTPUTS_ACROSS + c];
        }
    }
}
