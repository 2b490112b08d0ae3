// The gradient of pooling over H and W on GPUs, if the rows of a plane are contiguous. A work-group
// holds a tile in local memory: ROWS rows of each of PLANES planes. It processes the windows that
// overlap the tile and adds each diff_dst to its cells. Windows of one phase are PHASES_H or
// PHASES_W apart and share no cell, so sums have a fixed order and need no atomics. Windows are
// defined in pooling_window.cl.
//
// Rows of windows are listed phase by phase. The list contains the places of their diff_dst and
// workspace, the place of their plane in the tile, their first row in the tile, and the divisor of
// averages.

#define EXTENT_H ((TAPS_H - 1) * STEP_H + 1)
#define EXTENT_W ((TAPS_W - 1) * STEP_W + 1)
#define OVER(i, first, last, step) for (INDEX i = first; i < last; i += step)

// How many of the first `count` windows of a row or column are in a phase.
#define IN_PHASE(phase, count, phases) (((count) - (phase) + (phases) - 1) / (phases))

static inline INDEX before_phase(const INDEX phase, const INDEX count, const INDEX phases)
{
    INDEX sum = 0;
    for (INDEX i = 0; i < phase; ++i) sum += IN_PHASE(i, count, phases);
    return sum;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void pooling_planes($parameters)
{
    __local float tile[CELLS_HELD];
    __local INDEX diffs[ROWS_HELD], places[ROWS_HELD], planes[ROWS_HELD], tops[ROWS_HELD];
    __local float seen[ROWS_HELD];
    __local INDEX written[ROWS_HELD];
    const int own = get_local_id(0);
    INDEX rest = get_group_id(0);
    if (rest >= ITEMS) return;
    const INDEX tiles = (SRC_H + ROWS - 1) / ROWS;
    const INDEX begin_h = rest % tiles * ROWS, begin_plane = rest / tiles * PLANES;
    const INDEX plane_count = min((INDEX)PLANES, PLANES_OF_ALL - begin_plane);
    const INDEX row_count = min((INDEX)ROWS, SRC_H - begin_h);
    const INDEX near = begin_h + LEFT_H - EXTENT_H + 1;
    const INDEX first = near > 0 ? (near + STRIDE_H - 1) / STRIDE_H : 0;
    const INDEX last = min((begin_h + row_count - 1 + LEFT_H) / STRIDE_H, (INDEX)DST_H - 1);
    const INDEX count = max(last - first + 1, (INDEX)0);

    OVER(i, own, plane_count * count, GROUP) {
        const INDEX plane = i / count, at = i % count, phase = at % PHASES_H;
        const INDEX n = (begin_plane + plane) / CHANNELS, c = (begin_plane + plane) % CHANNELS;
        const INDEX h = first + at, d = 0, w = 0;
        const INDEX place = before_phase(phase, count, PHASES_H) * plane_count
            + plane * IN_PHASE(phase, count, PHASES_H) + at / PHASES_H;
        diffs[place] = DIFF_DST_AT(n, c, d, h, w);
#ifdef MAX
        places[place] = WORKSPACE_AT(n, c, d, h, w);
#endif
        planes[place] = plane * row_count * SRC_W;
        tops[place] = h * STRIDE_H - LEFT_H - begin_h;
        seen[place] = SEEN_ALONG(H, h);
    }
    OVER(i, own, plane_count * row_count, GROUP) {
        const INDEX plane = begin_plane + i / row_count, d = 0, w = 0;
        const INDEX n = plane / CHANNELS, c = plane % CHANNELS, h = begin_h + i % row_count;
        written[i] = DIFF_SRC_AT(n, c, d, h, w);
    }
    OVER(i, own, plane_count * row_count * SRC_W, GROUP) tile[i] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (INDEX phase_h = 0; phase_h < min((INDEX)PHASES_H, count); ++phase_h) {
        const INDEX begin = before_phase(phase_h, count, PHASES_H) * plane_count;
        const INDEX end = begin + IN_PHASE(phase_h, count, PHASES_H) * plane_count;
        for (INDEX phase_w = 0; phase_w < min((INDEX)PHASES_W, (INDEX)DST_W); ++phase_w) {
            OVER(row, begin + own / WINDOWS_SIDE, end, GROUP / WINDOWS_SIDE)
            OVER(w, phase_w + own % WINDOWS_SIDE * PHASES_W, DST_W, WINDOWS_SIDE * PHASES_W) {
                const float diff = DIFF_AT(diffs[row] + w * DIFF_STEP);
                const INDEX top = tops[row], left = w * STRIDE_W - LEFT_W;
                __local float *plane = tile + planes[row];
#ifdef MAX
                const INDEX place = PLACE_AT(places[row] + w * PLACE_STEP);
                const INDEX h = top + place / TAPS_W * STEP_H;
                const INDEX x = left + place % TAPS_W * STEP_W;
                if (h >= 0 && h < row_count && x >= 0 && x < SRC_W) plane[h * SRC_W + x] += diff;
#else
#ifdef AVG_INCLUDE_PADDING
                const float share = diff * (1.0f / CELLS);
#else
                const float share = diff * (1.0f / (seen[row] * SEEN_ALONG(W, w)));
#endif
                OVER(h, top, top + EXTENT_H, STEP_H)
                    OVER(x, left, left + EXTENT_W, STEP_W)
                        if (h >= 0 && h < row_count && x >= 0 && x < SRC_W)
                            plane[h * SRC_W + x] += share;
#endif
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    OVER(row, own / CELLS_SIDE, plane_count * row_count, GROUP / CELLS_SIDE)
    OVER(x, own % CELLS_SIDE * LANES, SRC_W, CELLS_SIDE * LANES) {
        FLOATS value;
        float *cells = (float *)&value;
        for (int i = 0; i < LANES; ++i) cells[i] = tile[row * SRC_W + x + i];
        WRITE(written[row] + x, value);
    }
}
