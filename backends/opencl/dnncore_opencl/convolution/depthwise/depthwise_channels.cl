// Depthwise convolution if channels are contiguous in b: LANES channels of STRIP pixels at once.
//
// A work-item computes `rows` lines of an image. First it gathers the taps of its channels, at most
// MAX_TAPS.

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void depthwise_channels($parameters) {
    if (COUNT(n) == 0 || batch.z == 0) return;
    const int blocks = (batch.z + LANES - 1) / LANES, strips = (n.w + STRIP - 1) / STRIP;
    const int lines = n.y * n.z, parts = (lines + rows - 1) / rows;
    int rest = get_global_id(0);
    const int block = rest % blocks;
    rest /= blocks;
    const int first_line = rest % parts * rows, image = rest / parts;
    if (image >= n.x) return;
    const int channel = FIRST_CHANNEL(block);
    const int a_at = a_batch.w + channel * a_batch.z;
    const int b_at = b_batch.w + channel * b_batch.z + image * b_n.x;
    const int c_at = c_batch.w + channel * c_batch.z + image * c_n.x;

    floats taps[MAX_TAPS];
    int place = 0;
    for (int r = 0; r < k.y; r++)
        for (int s = 0; s < k.z; s++)
            for (int t = 0; t < k.w; t++, place++)
                for (int i = 0; i < LANES; i++)
                    ((float *)(taps + place))[i] =
                        A_VALUE(A_READ(a + a_at + i * a_batch.z + r * a_k.y + s * a_k.z
                                           + t * a_k.w));
#define TAP(r, s, t) taps[((r) * k.z + (s)) * k.w + (t)]

    for (int line = first_line; line < min(lines, first_line + rows); line++) {
        const int z = line / n.z, y = line % n.z;
        for (int strip = 0; strip < strips; strip++) {
            const int x = strip * STRIP, count = min(STRIP, n.w - x);
            const int from = b_at + z * b_n.y + y * b_n.z + x * b_n.w;
            floats sums[STRIP];
            for (int j = 0; j < STRIP; j++) sums[j] = 0;
            for (int r = 0; r < k.y; r++) {
                if ((uint)(w_at.y + z * w_n.y + r * w_k.y) >= (uint)w_size.y) continue;
                for (int s = 0; s < k.z; s++) {
                    if ((uint)(w_at.z + y * w_n.z + s * w_k.z) >= (uint)w_size.z) continue;
                    for (int t = 0; t < k.w; t++) {
                        const floats tap = TAP(r, s, t);
                        const int first = w_at.w + x * w_n.w + t * w_k.w;
                        __global const B_TYPE *here = b + from + r * b_k.y + s * b_k.z + t * b_k.w;
                        if (count == STRIP && first >= 0
                            && first + (STRIP - 1) * w_n.w < w_size.w) {
                            for (int j = 0; j < STRIP; j++)
                                sums[j] += tap * B_VECTOR_VALUE(B_VECTOR_READ(here + j * b_n.w));
                        } else {
                            for (int j = 0; j < STRIP; j++)
                                if (j < count && (uint)(first + j * w_n.w) < (uint)w_size.w)
                                    sums[j] += tap * B_VECTOR_VALUE(B_VECTOR_READ(here + j * b_n.w));
                        }
                    }
                }
            }
            float all_lanes[STRIP * LANES];
            for (int j = 0; j < STRIP; j++) STORE(sums[j], j, all_lanes);
            for (int j = 0; j < count; j++) {
                const int at = c_at + z * c_n.y + y * c_n.z + (x + j) * c_n.w;
                float *lanes = all_lanes + j * LANES;
#define FINISHED(i)                                                                                \
    post_ops(lanes[i], OLD(at + (i) * c_batch.z), 0, 0, channel + (i), 0, image, z, y,             \
             x + j POST_ARGS)
                if (c_batch.z == 1 && DONE_LANES(block) == 0) {
                    for (int i = 0; i < LANES; i++) lanes[i] = FINISHED(i);
                    C_VECTOR_WRITE(c + at, LOAD(0, lanes));
                } else {
                    for (int i = DONE_LANES(block); i < LANES; i++)
                        C_WRITE(c + at + i * c_batch.z, FINISHED(i));
                }
            }
        }
    }
}
