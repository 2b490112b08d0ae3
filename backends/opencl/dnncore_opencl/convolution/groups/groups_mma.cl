// Convolution of f16 or bf16 with few channels per group, forward and backward by data, on the
// tensor cores of NVIDIA's GPUs from compute capability 8.0 on.
//
// A warp computes 32 pixels of the result, in two tiles of 16, for all COLUMNS channels of a group,
// in tiles of 8. It sums over taps and over 16 channels of the image at once. A work-group holds
// the weights of a group of channels in local memory, as pairs of neighbours along DEPTH.
// `mma_ptx.cl` has the instructions. `mma_plain.cl` has them in plain OpenCL C for tests.
//
// In a tile, lane l has the elements of pixels l / 4 and l / 4 + 8. It has the channels 2 (l % 4)
// and 2 (l % 4) + 1 of the result, and of the image also the channels 8 after these.

#define WARPS (GROUP / 32)
#define TILES 2
#define STEPS ((DEPTH + 15) / 16)
#define COLUMN_TILES ((COLUMNS + 7) / 8)
#define ROW (STEPS * 8 + 4)  // words per column of weights; 4 extra words avoid bank conflicts

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void groups_mma($parameters)
{
    __local uint held[COLUMN_TILES * 8 * ROW * TAPS];
    EXCHANGE
    if (pixels.x == 0) return;
    const int item = get_local_id(0), lane = item % 32;
    const int group = get_group_id(0) % GROUPS_OF_CHANNELS;
    const int block = get_group_id(0) / GROUPS_OF_CHANNELS;
    for (int i = item; i < COLUMN_TILES * 8 * STEPS * 8 * TAPS; i += GROUP) {
        const int tap = i % TAPS, pair = i / TAPS % (STEPS * 8), o = i / (TAPS * STEPS * 8);
        uint bits = 0;
        UNROLL for (int j = 0; j < 2; ++j) {
            const int k = 2 * pair + j;
            if (o < COLUMNS && k < DEPTH)
                bits |= (uint)weights[WEIGHTS_AT(group, o, k, 0, tap / TAPS_W, tap % TAPS_W)]
                    << 16 * j;
        }
        held[(tap * COLUMN_TILES * 8 + o) * ROW + pair] = bits;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float sums[TILES][COLUMN_TILES][4];
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int o = 0; o < COLUMN_TILES; ++o)
            UNROLL for (int i = 0; i < 4; ++i) sums[t][o][i] = 0.0f;
    int4 places[TILES][2];
    INDEX starts[TILES][2];
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int i = 0; i < 2; ++i) {
            const int pixel = (block * WARPS + item / 32) * 16 * TILES + t * 16 + lane / 4 + i * 8;
            places[t][i] = quick_digits(pixel, pixels, pixels_inverse);
            starts[t][i] = IMAGE_AT(places[t][i].x, group * DEPTH + lane % 4 * 2, 0, 0, 0);
        }

    for (int tap_h = 0; tap_h < TAPS_H; ++tap_h)
    for (int tap_w = 0; tap_w < TAPS_W; ++tap_w) {
        const int tap = tap_h * TAPS_W + tap_w;
        INDEX at[TILES][2];
        int is_seen[TILES][2];
        UNROLL for (int t = 0; t < TILES; ++t)
            UNROLL for (int i = 0; i < 2; ++i) {
                const int y = PLACE_H(places[t][i].z, tap_h), x = PLACE_W(places[t][i].w, tap_w);
                is_seen[t][i] = places[t][i].x < pixels.x && INSIDE(y, IMAGE_H) && INSIDE(x, IMAGE_W);
                at[t][i] = starts[t][i] + y * ROW_STEP + x * PIXEL_STEP;
            }
        UNROLL for (int step = 0; step < STEPS; ++step) {
            uint a[TILES][4];
            UNROLL for (int t = 0; t < TILES; ++t)
                UNROLL for (int i = 0; i < 4; ++i) {
                    const int k = step * 16 + i / 2 * 8;
                    a[t][i] = 0;
#if IS_ALONG
                    if (is_seen[t][i % 2] && k + lane % 4 * 2 < DEPTH)
                        a[t][i] = *(__global const uint *)(IMAGE + at[t][i % 2] + k);
#else
                    UNROLL for (int j = 0; j < 2; ++j) {
                        ushort bits = 0;
                        if (is_seen[t][i % 2] && k + lane % 4 * 2 + j < DEPTH)
                            bits = IMAGE[at[t][i % 2] + (k + j) * CHANNEL_STEP];
                        a[t][i] |= (uint)bits << 16 * j;
                    }
#endif
                }
            UNROLL for (int o = 0; o < COLUMN_TILES; ++o) {
                __local const uint *of_column =
                    held + (tap * COLUMN_TILES * 8 + o * 8 + lane / 4) * ROW + step * 8 + lane % 4;
                const uint b[2] = {of_column[0], of_column[4]};
                UNROLL for (int t = 0; t < TILES; ++t) MULTIPLY_ADD(sums[t][o], a[t], b)
            }
        }
    }

    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int o = 0; o < COLUMN_TILES; ++o)
            UNROLL for (int i = 0; i < 4; ++i) {
                const int4 p = places[t][i / 2];
                const int column = o * 8 + lane % 4 * 2 + i % 2, channel = group * COLUMNS + column;
                if (p.x >= pixels.x || column >= COLUMNS) continue;
                const INDEX to = RESULT_AT(p.x, channel, 0, p.z, p.w);
#ifdef POST_READS_DST
                const float old = LOAD_RESULT(to);
#else
                const float old = 0.0f;
#endif
                const float x = post_ops(sums[t][o][i], old, p.x, channel, 0, p.z, p.w POST_ARGS);
                STORE_RESULT(to, x);
            }
}
