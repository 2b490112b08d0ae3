// Convolution with few channels per group, forward and backward by data, from an image to a result.
//
// A work-item computes a tile of RESULTS channels of the result. These channels either are RESULTS
// groups of one channel (IS_DEPTHWISE), or belong to one group. A work-group has SLOTS vectors of
// channels and GROUP / SLOTS tiles. Local memory holds its weights as floats. READS channels of the
// image are read at once.

#define HELD (SLOTS * RESULTS * HELD_DEPTH * TAPS)
#define TAP_VECTOR(inner, tap) held[((inner) * TAPS + (tap)) * SLOTS + slot]

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void groups_data($parameters)
{
    __local FLOATS held[HELD / RESULTS];
    const int item = get_local_id(0), slot = item % SLOTS;
#if IS_PIXELS_FIRST
    const int block = get_group_id(0) / PIXEL_BLOCKS, pixel_block = get_group_id(0) % PIXEL_BLOCKS;
#else
    const int block = get_group_id(0) % SLOT_BLOCKS, pixel_block = get_group_id(0) / SLOT_BLOCKS;
#endif
    const int vector = block * SLOTS + slot;
    const int group = GROUP_OF(vector), column = COLUMN_OF(vector);
    const int4 place =
        quick_digits(pixel_block * (GROUP / SLOTS) + item / SLOTS, pixels, pixels_inverse);
    const int is_own = place.x < pixels.x && vector < VECTORS;
    const int n = place.x, d = place.y;
    const int2 tile_h = TILE_AT_H(place.z), tile_w = TILE_AT_W(place.w);

    FLOATS sums[TILE_H][TILE_W];
    UNROLL for (int j = 0; j < TILE_H; ++j)
        UNROLL for (int x = 0; x < TILE_W; ++x) sums[j][x] = 0.0f;

    for (int start = 0; start < DEPTH; start += HELD_DEPTH)
    for (int tap_d = 0; tap_d < TAPS_D; ++tap_d)
    for (int chunk_h = 0; chunk_h < CHUNKS_H; ++chunk_h)
    for (int chunk_w = 0; chunk_w < CHUNKS_W; ++chunk_w) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int base = 0; base < HELD; base += GROUP) {
            const int i = base + item;
            const int tap = i % TAPS, inner = i / TAPS % HELD_DEPTH;
            const int lane = i / (TAPS * HELD_DEPTH) % RESULTS;
            const int other = i / (TAPS * HELD_DEPTH * RESULTS), its = block * SLOTS + other;
            const int g = GROUP_OF(its) + GROUP_LANE(lane), o = COLUMN_OF(its) + COLUMN_LANE(lane);
            const int k = start + inner;
            const int h = chunk_h * TAPS_H + tap / TAPS_W, w = chunk_w * TAPS_W + tap % TAPS_W;
            float value = 0.0f;
            if (i < HELD && its < VECTORS && o < COLUMNS && k < DEPTH)
                value = LOAD_WEIGHT(WEIGHTS_AT(g, o, k, tap_d, h, w));
            const int to = ((inner * TAPS + tap) * SLOTS + other) * RESULTS + lane;
            if (i < HELD) ((__local float *)held)[to] = value;
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        const int z = PLACE_D(d, tap_d), y = tile_h.y + CHUNK_H(chunk_h);
        const int x = tile_w.y + CHUNK_W(chunk_w);
        const int is_plane = is_own && INSIDE(z, IMAGE_D);
        for (int inner = 0; inner < min(DEPTH - start, HELD_DEPTH); inner += READS) {
            const INDEX at = IMAGE_AT(n, group * DEPTH + start + inner, z, y, x);
            UNROLL for (int row = 0; row < WINDOW(H); ++row) {
                const int is_row = is_plane && INSIDE(y + row * IN_STEP_H, IMAGE_H);
                READ_WINDOW(window, is_row, at + row * ROW_STEP, x)
                UNROLL for (int j = 0; j < TILE_H; ++j) {
                    const int tap_h = TAP(H, j, row);
                    if (!IS_TAP(H, tap_h)) continue;
                    UNROLL for (int i = 0; i < WINDOW(W); ++i)
                        UNROLL for (int k = 0; k < TILE_W; ++k) {
                            const int tap_w = TAP(W, k, i);
                            if (!IS_TAP(W, tap_w)) continue;
                            UNROLL for (int r = 0; r < READS; ++r)
                                sums[j][k] += TAP_VECTOR(inner + r, tap_h * TAPS_W + tap_w)
                                    * VALUE(window[i], r);
                        }
                }
            }
        }
    }

    UNROLL for (int j = 0; j < TILE_H; ++j)
        UNROLL for (int k = 0; k < TILE_W; ++k) {
            const int h = tile_h.x + j * OUT_STEP_H, w = tile_w.x + k * OUT_STEP_W;
            if (!is_own || !INSIDE(h, RESULT_H) || !INSIDE(w, RESULT_W)) continue;
            const int channel = group * COLUMNS + column;
            float *lanes = (float *)&sums[j][k];
#if IS_WIDE
            const INDEX at = RESULT_AT(n, channel, d, h, w);
#define AT(lane) (at + (lane))
#else
#define AT(lane) RESULT_AT(n, channel + (lane), d, h, w)
#endif
            UNROLL for (int lane = 0; lane < RESULTS; ++lane) {
                if (!IS_DEPTHWISE && column + lane >= COLUMNS) continue;
#ifdef POST_READS_DST
                const float old = LOAD_RESULT(AT(lane));
#else
                const float old = 0.0f;
#endif
                lanes[lane] = post_ops(lanes[lane], old, n, channel + lane, d, h, w POST_ARGS);
#if !IS_WIDE
                STORE_RESULT(AT(lane), lanes[lane]);
#endif
            }
#if IS_WIDE
            STORE_RESULTS(at, sums[j][k]);
#endif
        }
}
