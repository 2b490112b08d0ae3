// Winograd's convolution: products m become tiles DST m DST^T of dst, then post-ops are applied. A
// work-item computes `tiles` tiles of one block of channels. products[position][block][tile][lane]
// begins at `start`. Channels past the last one are zero. Elements that are not finite are computed
// again as direct sums from src and the transformed weights [position][block][depth][lane].

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void winograd_dst($parameters) {
    const int from = first + get_group_id(0) * tiles, to = min(from + tiles, end);
    const int plane = blocks * (end - first) * LANES;
    const int lanes = min(LANES, channels - (int)get_group_id(1) * LANES);
    for (int tile = from; tile < to; tile++) {
        const int image = tile / (grid.x * grid.y);
        const int row = tile / grid.y % grid.x * OUTPUTS, column = tile % grid.y * OUTPUTS;
        __global const float *source =
            products + start + (get_group_id(1) * (end - first) + tile - first) * LANES;
        floats m[SPAN], lines[SPAN * OUTPUTS];
        for (int c = 0; c < SPAN; c++) {
            for (int r = 0; r < SPAN; r++) m[r] = LOAD(0, source + (r * SPAN + c) * plane);
            dst_outputs(m, 1, lines + c * OUTPUTS);
        }
        for (int r = 0; r < min(OUTPUTS, size.x - row); r++) {
            __global float *target = dst + y_start + image * y.x + get_group_id(1) * y.y
                + (row + r) * y.z + column * y.w;
            floats made[OUTPUTS];
            dst_outputs(lines + r, OUTPUTS, made);
            float *elements = (float *)made;
            for (int c = 0; c < min(OUTPUTS, size.y - column); c++) {
                for (int i = 0; i < lanes; i++) {
                    float *element = elements + c * LANES + i;
                    if (isfinite(*element)) continue;
                    *element = direct_sum(
                        src + x_start + image * x.x, (int2)(row + r, column + c) - corner, src_size,
                        (int4)(x.y, x.z, x.w, 0),
                        filters + f_start + (int)get_group_id(1) * depth * LANES + i,
                        f_plane, LANES, depth);
                }
#ifdef POST_STEPS
                for (int i = 0; i < lanes; i++) {
#ifdef POST_READS_DST
                    const float old = target[c * y.w + i];
#else
                    const float old = 0;
#endif
                    elements[c * LANES + i] = post_ops(elements[c * LANES + i], old, image,
                        (int)get_group_id(1) * LANES + i, 0, row + r, column + c POST_ARGS);
                }
#endif
                for (int i = lanes; i < LANES; i++) elements[c * LANES + i] = 0;
                STORE(made[c], 0, target + c * y.w);
            }
        }
    }
}
