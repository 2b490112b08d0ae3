// Winograd's convolution: products m become tiles DST m DST^T of dst, then post-ops are applied. A
// work-item computes one vector of channels of a tile. products[position][tile][channel] begins at
// `start`. Rows of a tile that are not finite are computed again as direct sums from src and the
// transformed weights [position][column][depth].

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
    __global float *target = dst + y.w + image * y.x + channel;
    int rows_left = 0;  // one bit per row that is not finite
#pragma unroll
    for (int r = 0; r < OUTPUTS_DOWN; r++) {
        floats made[OUTPUTS_ACROSS];
        dst_outputs_across(lines + r, OUTPUTS_DOWN, made);
        float total = 0;
#pragma unroll
        for (int i = 0; i < OUTPUTS_ACROSS * LANES; i++) total += ((const float *)made)[i];
        if (!isfinite(total)) {
            rows_left |= 1 << r;
            continue;
        }
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
                ((float *)&made[c])[i] = post_ops(((float *)&made[c])[i], ((const float *)&old)[i],
                    image, channel + i, 0, row + r, column + c POST_ARGS);
            }
#endif
            VECTOR(pixel) = made[c];
        }
    }
    if (!rows_left) return;
    for (int e = 0; e < OUTPUTS_DOWN * OUTPUTS_ACROSS * LANES; e++) {
        const int i = e % LANES, c = e / LANES % OUTPUTS_ACROSS, r = e / LANES / OUTPUTS_ACROSS;
        if (!(rows_left >> r & 1) || row + r >= size.x || column + c >= size.y) continue;
        __global float *element = target + (row + r) * y.y + (column + c) * y.z + i;
        float sum = direct_sum(src + x.w + image * x.x, (int2)(row + r, column + c) - corner,
                               src_size, (int4)(1, x.y, x.z, 0),
                               filters + f_start + (channel + i) * depth, f_plane, 1, depth);
#ifdef POST_STEPS
#ifdef POST_READS_DST
        const float old = *element;
#else
        const float old = 0;
#endif
        sum = post_ops(sum, old, image, channel + i, 0, row + r, column + c POST_ARGS);
#endif
        *element = sum;
    }
}
