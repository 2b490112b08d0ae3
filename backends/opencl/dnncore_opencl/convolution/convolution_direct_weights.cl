// Convolution for CPUs, backward by weights, without a matrix of patches. A work-item sums over the
// pixels of some lines of diff_dst. It processes a few lines at a time, which remain in the
// first-level cache. For each tap, registers hold ROWS channels of src times two vectors of
// diff_dst.
//
// The sums of one part of the lines are [group][pair of vectors][block of src's channels][tap]
// [channel][2 * LANES]. LANES, ROWS, MOST_LINES and EACH(DO) = DO(0) ... DO(ROWS - 1) are defines.

#define BLOCK (LANES * 2 * LANES)

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void convolution_direct_weights($parameters) {
    const int4 places = (int4)(out.xyz, 1);
    const int count = out.x * out.y * out.z, first_line = get_group_id(0) * share;
    const int end_line = min(first_line + share, count);
    if (count == 0 || all_pairs == 0) return;
    const int block_shares = (all_blocks + blocks - 1) / blocks;
    const int pair_shares = (all_pairs + pairs - 1) / pairs;
    const int4 own = digits(get_group_id(1), (int4)(1, 1 << 30, pair_shares, block_shares));
    const int group = own.y, first_pair = own.z * pairs, first_block = own.w * blocks;
    const int end_pair = min(first_pair + pairs, all_pairs);
    const int end_block = min(first_block + blocks, all_blocks);
    const int tap_count = taps.y * taps.z * taps.w;
    __global const float *own_src = src + x_channels.x + group * x_channels.y;
    __global const float *own_dst = diff_dst + y_channels.x + group * y_channels.y;
    __global float *part = scratch + scratch_start
        + (get_group_id(0) * get_num_groups(1) / (pair_shares * block_shares) + group) * all_pairs
            * all_blocks * tap_count * BLOCK;

    int4 place = digits(first_line, places);
    for (int line = first_line; line < end_line; line += lines) {
        const int lines_here = min(lines, end_line - line);
        int src_at[MOST_LINES], dst_at[MOST_LINES], src_z[MOST_LINES], src_y[MOST_LINES];
        for (int i = 0; i < lines_here; i++, place = next(place, places)) {
            src_z[i] = w_at.y + w_n.y * place.y;
            src_y[i] = w_at.z + w_n.z * place.z;
            src_at[i] = place.x * x.x + src_z[i] * x.y + src_y[i] * x.z;
            dst_at[i] = DOT4(place, y);
        }
        for (int pair = first_pair; pair < end_pair; pair++) {
            __global const float *pair_dst = own_dst + 2 * pair * y_channels.z;
            const int next_vector = is_odd && pair == all_pairs - 1 ? 0 : y_channels.z;
            for (int block = first_block; block < end_block; block++) {
                __global const float *block_src = own_src + block * x_channels.z;
                __global float *sums = part + (pair * all_blocks + block) * tap_count * BLOCK;
                for (int t = 0; t < tap_count; t++) {
                    const int4 tap = digits(t, (int4)(1, taps.yzw));
                    // For pixels [lowest, highest) of a line, this tap is inside of src.
                    const int start = w_at.w + w_k.w * tap.w;
                    const int lowest = max((w_n.w - 1 - start) / w_n.w, 0);
                    const int after = w_size.w - start + w_n.w - 1;
                    const int highest = after < 0 ? 0 : min(after / w_n.w, out.w);
                    const int tap_at = tap.y * w_k.y * x.y + tap.z * w_k.z * x.z
                        + (start + lowest * w_n.w) * x.w;
                    for (int c = 0; c < LANES; c += ROWS, sums += ROWS * 2 * LANES) {
#define START(r)                                                                                   \
    floats left##r = line > first_line ? LOAD(2 * (r), sums) : 0,                                  \
           right##r = line > first_line ? LOAD(2 * (r) + 1, sums) : 0;
                        EACH(START)
                        for (int i = 0; i < lines_here; i++) {
                            const int z = src_z[i] + tap.y * w_k.y, y_in = src_y[i] + tap.z * w_k.z;
                            if ((uint)z >= (uint)w_size.y || (uint)y_in >= (uint)w_size.z) continue;
                            __global const float *p = block_src + src_at[i] + tap_at + c;
                            __global const float *q = pair_dst + dst_at[i] + lowest * y.w;
                            const int step = w_n.w * x.w;
                            for (int j = lowest; j < highest; j++, p += step, q += y.w) {
                                const floats a = LOAD(0, q), b = LOAD(0, q + next_vector);
#define MULTIPLY(r)                                                                                \
    {                                                                                              \
        const float e = p[r];                                                                      \
        left##r += e * a;                                                                          \
        right##r += e * b;                                                                         \
    }
                                EACH(MULTIPLY)
                            }
                        }
#define KEEP(r)                                                                                    \
    STORE(left##r, 2 * (r), sums);                                                                 \
    STORE(right##r, 2 * (r) + 1, sums);
                        EACH(KEEP)
                    }
                }
            }
        }
    }
}
