// The gradient of a depthwise convolution's weights: c[channel, tap] = sum over the image's pixels
// k of a[channel, k] * b[channel, k and tap].
//
// A work-item proceeds line by line, so a line of a and one of b remain in the first-level cache
// for all taps. It sums `part` pixels for `rows` taps, at most MAX_TAPS. It sums either LANES
// channels that are contiguous in a and b (ALONG_CHANNELS), or one channel in LANES partial sums.

#if ALONG_CHANNELS
#define BLOCKS ((batch.z + LANES - 1) / LANES)
#define CHANNEL(block) FIRST_CHANNEL(block)
#else
#define BLOCKS batch.z
#define CHANNEL(block) (block)
#endif
#define CHAINS 4  // independent sums, to hide latency

// Returns the smallest x >= 0 with from + x * step >= bound.
static inline int reaching(const int bound, const int from, const int step) {
    return from >= bound ? 0 : (bound - from + step - 1) / step;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void depthwise_weights($parameters) {
    const int n_size = COUNT(n), k_size = COUNT(k), blocks = BLOCKS;
    if (n_size == 0 || blocks == 0) return;
    const int shares = (n_size + rows - 1) / rows, items = blocks * shares;
    const int item = get_group_id(0) % items, slice = get_group_id(0) / items;
    const int block = item % blocks, first_n = item / blocks * rows;
    const int channel = CHANNEL(block), taps = min(rows, n_size - first_n);
    const int a_at = a_batch.w + channel * a_batch.z, b_at = b_batch.w + channel * b_batch.z;

    const ints lanes = ramp();

    // Per tap: its sum, its place in b and in the window, and the pixels that it reaches.
    floats sums[MAX_TAPS];
    int n_at[MAX_TAPS], n_y[MAX_TAPS], n_z[MAX_TAPS], begin[MAX_TAPS], end[MAX_TAPS];
    int4 d = digits(first_n, n);
    for (int i = 0; i < taps; i++, d = next(d, n)) {
        const int4 at = w_at + w_n * d;
        sums[i] = 0;
        n_at[i] = DOT4(b_n, d);
        n_y[i] = at.y;
        n_z[i] = at.z;
        begin[i] = reaching(0, at.w, w_k.w);
        end[i] = min(k.w, reaching(w_size.w, at.w, w_k.w));
    }
    const int first_k = slice * part, end_k = min(k_size, first_k + part);
    for (int line = first_k; line < end_k; line += k.w) {
        const int4 p = digits(line, k);
        const int left = a_at + DOT4(a_k, p), window_y = w_k.y * p.y, window_z = w_k.z * p.z;
        for (int i = 0; i < taps; i++) {
            if ((uint)(n_y[i] + window_y) >= (uint)w_size.y
                || (uint)(n_z[i] + window_z) >= (uint)w_size.z)
                continue;
            const int right = b_at + n_at[i] + DOT4(b_k, p);
            int x = begin[i];
#if ALONG_CHANNELS
#define PRODUCT(x)                                                                                 \
    A_VECTOR_VALUE(A_VECTOR_READ(a + left + (x) * a_k.w))                                          \
        * B_VECTOR_VALUE(B_VECTOR_READ(b + right + (x) * b_k.w))
            floats chains[CHAINS];
            for (int j = 0; j < CHAINS; j++) chains[j] = 0;
            for (; x + CHAINS <= end[i]; x += CHAINS)
                for (int j = 0; j < CHAINS; j++) chains[j] += PRODUCT(x + j);
            for (; x < end[i]; x++) chains[0] += PRODUCT(x);
            sums[i] += (chains[0] + chains[1]) + (chains[2] + chains[3]);
#else
            floats sum = 0;
            for (; x < end[i]; x += LANES) {
                const int whole = x + LANES <= end[i];
                const ints inside = lanes < end[i] - x;
                sum += load_lanes(a, left + x * a_k.w, a_k.w, a_end, whole, inside)
                    * load_lanes(b, right + x * b_k.w, b_k.w, b_end, whole, inside);
            }
            sums[i] += sum;
#endif
        }
    }
    d = digits(first_n, n);
    for (int i = 0; i < taps; i++, d = next(d, n)) {
        float *sum = (float *)(sums + i);
        const int at = c_batch.w + channel * c_batch.z + slice * c_part + DOT4(c_n, d);
#if ALONG_CHANNELS
        for (int j = DONE_LANES(block); j < LANES; j++) {
            const int place = at + j * c_batch.z;
            C_WRITE(c + place, post_ops(sum[j], OLD(place), 0, 0, channel + j, 0, d.x, d.y, d.z,
                                        d.w POST_ARGS));
        }
#else
        for (int j = 1; j < LANES; j++) sum[0] += sum[j];
        C_WRITE(c + at, post_ops(sum[0], OLD(at), 0, 0, channel, 0, d.x, d.y, d.z, d.w POST_ARGS));
#endif
    }
}
