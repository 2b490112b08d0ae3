// Depthwise convolution of any layout: LANES pixels of a line at once. It is fastest if these
// pixels are contiguous in b. A work-item computes `rows` lines of a channel of an image.

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void depthwise_pixels($parameters) {
    if (COUNT(n) == 0 || batch.z == 0) return;
    const int strips = (n.w + LANES - 1) / LANES;
    const int lines = n.y * n.z, parts = (lines + rows - 1) / rows;
    int rest = get_global_id(0);
    const int first_line = rest % parts * rows;
    rest /= parts;
    const int channel = rest % batch.z, image = rest / batch.z;
    if (image >= n.x) return;
    const int a_at = a_batch.w + channel * a_batch.z;
    const int b_at = b_batch.w + channel * b_batch.z + image * b_n.x;
    const int c_at = c_batch.w + channel * c_batch.z + image * c_n.x;
    const ints places = ramp() * w_n.w;

    for (int line = first_line; line < min(lines, first_line + rows); line++) {
        const int z = line / n.z, y = line % n.z;
        for (int strip = 0; strip < strips; strip++) {
            const int x = strip * LANES, count = min(LANES, n.w - x);
            const int from = b_at + z * b_n.y + y * b_n.z + x * b_n.w;
            floats sums = 0;
            for (int r = 0; r < k.y; r++) {
                if ((uint)(w_at.y + z * w_n.y + r * w_k.y) >= (uint)w_size.y) continue;
                for (int s = 0; s < k.z; s++) {
                    if ((uint)(w_at.z + y * w_n.z + s * w_k.z) >= (uint)w_size.z) continue;
                    for (int t = 0; t < k.w; t++) {
                        const int tap_at = a_at + r * a_k.y + s * a_k.z + t * a_k.w;
                        const float tap = A_VALUE(A_READ(a + tap_at));
                        const int first = w_at.w + x * w_n.w + t * w_k.w;
                        const int last = first + (LANES - 1) * w_n.w;
                        const ints at = first + places;
                        sums += tap
                            * load_lanes(b, from + r * b_k.y + s * b_k.z + t * b_k.w, b_n.w, b_end,
                                         first >= 0 && last < w_size.w,
                                         (at >= 0) & (at < w_size.w));
                    }
                }
            }
            const int at = c_at + z * c_n.y + y * c_n.z + x * c_n.w;
            float lanes[LANES];
            STORE(sums, 0, lanes);
#define FINISHED(i)                                                                                \
    post_ops(lanes[i], OLD(at + (i) * c_n.w), 0, 0, channel, 0, image, z, y, x + (i) POST_ARGS)
            for (int i = 0; i < LANES; i++)
                if (i < count) C_WRITE(c + at + i * c_n.w, FINISHED(i));
        }
    }
}
