// Convolution with few channels per group, backward by weights.
//
// A work-item sums over tiles of diff_dst. It has TAPS sums of RESULTS channels: either of RESULTS
// groups of one channel (IS_DEPTHWISE), or of output channels of one group and one input channel. A
// work-group has SLOTS vectors of channels. The GROUP / SLOTS work-items with the same vector
// process the tiles of a part in turn, and add their sums in local memory in a fixed order, so
// results do not depend on timing.

#define OTHERS (GROUP / SLOTS)
#define IN_ROUND (ROUND * RESULTS * SLOTS)  // sums that are added at once
// Whether a pixel of a tile is in the result. Others are not multiplied: 0 times infinity is NaN.
#define IS_PIXEL(LETTER, place) (IS_WHOLE_##LETTER || INSIDE(place, RESULT_##LETTER))

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void groups_weights($parameters)
{
    __local float shared[IN_ROUND * OTHERS];
    const int item = get_local_id(0), slot = item % SLOTS, other = item / SLOTS;
    const int block = get_group_id(0) % SLOT_BLOCKS, rest = get_group_id(0) / SLOT_BLOCKS;
    const int chunk_w = rest % CHUNKS_W, chunk_h = rest / CHUNKS_W % CHUNKS_H;
    const int tap_d = rest / (CHUNKS_W * CHUNKS_H) % TAPS_D;
    const int part = rest / (CHUNKS_W * CHUNKS_H * TAPS_D);
    const int vector = block * SLOTS + slot, is_own = vector < VECTORS;
    const int group = GROUP_OF(vector), column = COLUMN_OF(vector);
    const int channel = group * COLUMNS + column;

    FLOATS sums[TAPS];
    UNROLL for (int tap = 0; tap < TAPS; ++tap) sums[tap] = 0.0f;
    const int end = is_own ? min((part + 1) * SHARE, TILES) : 0;
    for (int tile = part * SHARE + other; tile < end; tile += OTHERS) {
        const int4 place = quick_digits(tile, pixels, pixels_inverse);
        const int n = place.x, d = place.y;
        const int2 tile_h = TILE_AT_H(place.z), tile_w = TILE_AT_W(place.w);
        const int z = PLACE_D(d, tap_d), y = tile_h.y + CHUNK_H(chunk_h);
        const int x = tile_w.y + CHUNK_W(chunk_w);
        if (!INSIDE(z, IMAGE_D)) continue;
        DIFF_BITS read[TILE_H][TILE_W];
        UNROLL for (int j = 0; j < TILE_H; ++j)
            UNROLL for (int k = 0; k < TILE_W; ++k) {
                const int h = tile_h.x + j * OUT_STEP_H, w = tile_w.x + k * OUT_STEP_W;
                read[j][k] = 0;
                if (!IS_PIXEL(H, h) || !IS_PIXEL(W, w)) continue;
#if IS_WIDE || RESULTS == 1
                read[j][k] = READ_DIFF(DIFF_AT(n, channel, d, h, w));
#else
                UNROLL for (int lane = 0; lane < RESULTS; ++lane)
                    if (column + lane < COLUMNS)
                        ((DIFF_BIT *)&read[j][k])[lane] =
                            READ_ONE_DIFF(DIFF_AT(n, channel + lane, d, h, w));
#endif
            }
        FLOATS diffs[TILE_H][TILE_W];
        UNROLL for (int j = 0; j < TILE_H; ++j)
            UNROLL for (int k = 0; k < TILE_W; ++k) diffs[j][k] = DIFF_VALUES(read[j][k]);
        const INDEX at = IMAGE_AT(n, group * DEPTH + INNER_OF(vector), z, y, x);
        UNROLL for (int row = 0; row < WINDOW(H); ++row) {
            const int is_row = INSIDE(y + row * IN_STEP_H, IMAGE_H);
            READ_WINDOW(window, is_row, at + row * ROW_STEP, x)
            UNROLL for (int j = 0; j < TILE_H; ++j) {
                const int tap_h = TAP(H, j, row);
                if (!IS_TAP(H, tap_h) || !IS_PIXEL(H, tile_h.x + j * OUT_STEP_H)) continue;
                UNROLL for (int k = 0; k < TILE_W; ++k) {
                    if (!IS_PIXEL(W, tile_w.x + k * OUT_STEP_W)) continue;
                    UNROLL for (int i = 0; i < WINDOW(W); ++i) {
                        const int tap_w = TAP(W, k, i);
                        if (!IS_TAP(W, tap_w)) continue;
                        sums[tap_h * TAPS_W + tap_w] += diffs[j][k] * window[i];
                    }
                }
            }
        }
    }

    // All work-items have loops of equal length, because PoCL 3.0 may run a shorter one beyond its
    // end.
    UNROLL for (int first = 0; first < TAPS; first += ROUND) {
        const int count = min(ROUND, TAPS - first) * RESULTS * SLOTS;
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int i = 0; i < ROUND; ++i) {
            if (first + i >= TAPS) continue;
            UNROLL for (int lane = 0; lane < RESULTS; ++lane)
                shared[((i * RESULTS + lane) * SLOTS + slot) * OTHERS + other] =
                    ((const float *)&sums[first + i])[lane];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int base = 0; base < count * WAYS; base += GROUP) {
            const int i = base + item;
            if (i < count * WAYS) {
                __local float *own = shared + i / WAYS * OTHERS + i % WAYS;
                float sum = 0.0f;
                UNROLL for (int k = 0; k < OTHERS; k += WAYS) sum += own[k];
                *own = sum;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int base = 0; base < count; base += GROUP) {
            const int i = base + item;
            const int its = block * SLOTS + i % SLOTS, lane = i / SLOTS % RESULTS;
            const int tap = first + i / (SLOTS * RESULTS);
            const int g = GROUP_OF(its) + GROUP_LANE(lane);
            const int o = COLUMN_OF(its) + COLUMN_LANE(lane), k = INNER_OF(its);
            const int h = chunk_h * TAPS_H + tap / TAPS_W, w = chunk_w * TAPS_W + tap % TAPS_W;
            float sum = 0.0f;
            if (i < count && its < VECTORS && o < COLUMNS) {
                UNROLL for (int way = 0; way < WAYS; ++way) sum += shared[i * OTHERS + way];
                const INDEX its_place = part * PART + WEIGHTS_AT(g, o, k, tap_d, h, w);
#ifdef POST_READS_DST
                const float old = LOAD_RESULT(its_place);
#else
                const float old = 0.0f;
#endif
                sum = post_ops(sum, old, 0, 0, g, o, PLACE(k, tap_d, h, w) POST_ARGS);
                STORE_RESULT(its_place, sum);
            }
        }
    }
}
