// The gradient of max pooling: each cell of diff_src gathers from the windows that see it, so that
// its sum has a fixed order and needs no atomics. Names are those of pooling_forward.cl; the loops
// are those over diff_src.

// The window that begins at `start`, less the padding; -1 if none does.
static inline INDEX window_at(INDEX start, INDEX stride, INDEX count)
{
    return start >= 0 && start % stride == 0 && start / stride < count ? start / stride : -1;
}

__kernel void pooling_backward(
    __global const float *restrict diff_dst, __global const PLACE *restrict workspace,
    __global float *restrict diff_src PARAMETERS)
{
    const INDEX first = (INDEX)get_global_id(0) * COUNT;
    const INDEX last = min(first + COUNT, ITEMS);
    for (INDEX item = first; item < last; ++item) {
        INDEX rest = item;
        DECODE
        for (INDEX r = r_begin; r < r_end; ++r)
        for (INDEX t = t_begin; t < t_end; ++t) {
            COORDINATES
            const int inside = INSIDE;
            FLOATS sum = 0.0f;
            for (int i = 0; i < TAPS_D; ++i) {
                const INDEX at_d = window_at(d + LEFT_D - i * STEP_D, STRIDE_D, DST_D);
                if (!inside || at_d < 0) continue;
                for (int j = 0; j < TAPS_H; ++j) {
                    const INDEX at_h = window_at(h + LEFT_H - j * STEP_H, STRIDE_H, DST_H);
                    if (at_h < 0) continue;
                    for (int k = 0; k < TAPS_W; ++k) {
                        const INDEX at_w = window_at(w + LEFT_W - k * STEP_W, STRIDE_W, DST_W);
                        if (at_w < 0) continue;
                        const INTS place =
                            LOAD_PLACES(workspace + WORKSPACE_AT(n, c, at_d, at_h, at_w));
                        const FLOATS diff =
                            LOAD_FLOATS(diff_dst + DIFF_DST_AT(n, c, at_d, at_h, at_w));
                        sum += place == (i * TAPS_H + j) * TAPS_W + k ? diff : 0.0f;
                    }
                }
            }
            STORE_FLOATS(diff_src + DIFF_SRC_AT(n, c, d, h, w), sum);
        }
    }
}
