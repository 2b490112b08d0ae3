#define LANES 16
#define RUN 7
#define MOST_PIXELS 48
#define EACH(DO) DO(0, 0) DO(0, 1) DO(0, 2) DO(0, 3) DO(0, 4) DO(0, 5) DO(0, 6) DO(1, 0) DO(1, 1) DO(1, 2) DO(1, 3) DO(1, 4) DO(1, 5) DO(1, 6)
#define POST_STEPS 1
#define HAS_FETCH 1
#define SIDE_BY_SIDE 1
#define POST_PARAMS , __global const float *post0
#define POST_ARGS , post0
static inline float post_ops(float x, const float old, const int i0, const int i1, const int i2, const int i3, const int i4 POST_PARAMS) {
    x = x + (post0[0 + i1 * 1]);
    return x;
}
// Indices of up to four digits, slowest first, and offsets computed from digits and strides.

#define DOT4(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z + (a).w * (b).w)
#define DOT3(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z)
#define COUNT(size) ((size).x * (size).y * (size).z * (size).w)
#define AT_LEAST_1(size) max(size, (int4)(1))  // Oclgrind misreads a scalar next to a vector

// The digits of an index.
static inline int4 digits(int index, const int4 size) {
    int4 d;
    d.w = index % size.w;
    index /= size.w;
    d.z = index % size.z;
    index /= size.z;
    d.y = index % size.y;
    d.x = index / size.y;
    return d;
}

// A quotient computed with the inverse of the divisor, in units of 2^-32 and rounded up. Inverse 0
// means divisor 1, or divisor 0 if there is nothing to divide.
static inline int quotient(const int n, const int divisor, const uint inverse) {
    const uint q = mul_hi((uint)n, inverse);
    return inverse ? q - (q * divisor > (uint)n) : n;
}

// As digits(), with the inverse of each size.
static inline int4 quick_digits(int index, const int4 size, const uint4 inverse) {
    int4 d;
    int q = quotient(index, size.w, inverse.w);
    d.w = index - q * size.w;
    index = q;
    q = quotient(index, size.z, inverse.z);
    d.z = index - q * size.z;
    index = q;
    d.x = quotient(index, size.y, inverse.y);
    d.y = index - d.x * size.y;
    return d;
}

// The digits of the next index.
static inline int4 next(int4 d, const int4 size) {
    if (++d.w == size.w) {
        d.w = 0;
        if (++d.z == size.z) {
            d.z = 0;
            if (++d.y == size.y) {
                d.y = 0;
                d.x++;
            }
        }
    }
    return d;
}

// The batch's digits and, in w, the part of k, which is the slowest digit of a work-group's number.
static inline int4 batch_digits(const int index, const int4 batch) {
    return digits(index, AT_LEAST_1((int4)(1, batch.x, batch.y, batch.z))).yzwx;
}

// FETCH(p) prefetches a cache line. On PoCL and Intel's runtime OpenCL's own function has no
// effect, so a built-in function of the compiler is used. Without HAS_FETCH, as on a simulator,
// FETCH does nothing.

#ifdef HAS_FETCH
#ifdef __has_builtin
#if __has_builtin(__builtin_prefetch)
#define FETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#endif
#endif
#endif
#ifndef FETCH
#define FETCH(p)
#endif

// Vectors of LANES channels.

#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#define LOAD PASTE(vload, LANES)
#define STORE PASTE(vstore, LANES)

// Convolution for CPUs, forward and backward by data, without a matrix of patches. A work-item
// computes `runs` runs of RUN pixels of a line, two runs at once. Registers hold two vectors of
// channels of EACH pixel of a run. The work-item reads the pixels of src in place, for a block of
// channels and a line of taps. Near the border of the image, or if channels are not contiguous, it
// first copies the pixels to a panel that remains in the first-level cache.
//
// LANES, RUN, MOST_PIXELS and EACH(DO) = DO(0, 0) DO(0, 1) ... DO(1, RUN - 1) are defines.

#define ONCE __attribute__((opencl_unroll_hint(1)))
#define PANEL (MOST_PIXELS * LANES)

// Copies `channels` channels of pixels [lowest, highest) of a line to a panel of `count` pixels. A
// pixel of the panel has `pitch` floats. The rest of the panel is set to zero.
static inline void fill(__global float *panel, __global const float *line, const int pixel,
                        const int channel, const int channels, const int pitch, const int lowest,
                        const int highest, const int count) {
#ifdef SIDE_BY_SIDE
    ONCE for (int i = 0; i < lowest; i++) STORE((floats)(0), i, panel);
    ONCE for (int i = lowest; i < highest; i++) STORE(LOAD(0, line + i * pixel), i, panel);
    ONCE for (int i = highest; i < count; i++) STORE((floats)(0), i, panel);
#else
    ONCE for (int i = 0; i < count; i++)
        ONCE for (int j = 0; j < channels; j++)
            panel[i * pitch + j] = i >= lowest && i < highest ? line[i * pixel + j * channel] : 0;
#endif
}

// Stores RUN vectors of sums to `pixels` pixels of a line, after post-ops.
__attribute__((noinline))
static void store_run(float *sum, __global float *target, const int4 at, const int pixels,
                      const int pixel, const int first_channel, const int channel, const int lanes,
                      const int is_blocked POST_PARAMS) {
#ifdef POST_STEPS
    for (int j = 0; j < pixels; j++) {
        for (int i = 0; i < lanes; i++) {
#ifdef POST_READS_DST
            const float old = target[j * pixel + i * channel];
#else
            const float old = 0;
#endif
            sum[j * LANES + i] = post_ops(sum[j * LANES + i], old, at.x, first_channel + i, at.y,
                                          at.z, at.w + j POST_ARGS);
        }
    }
#endif
    if (channel == 1 && (lanes == LANES || is_blocked)) {
        for (int j = 0; j < pixels; j++) {
            for (int i = lanes; i < LANES; i++) sum[j * LANES + i] = 0;
            STORE(LOAD(j, sum), 0, target + j * pixel);
        }
    } else {
        for (int i = 0; i < lanes; i++)
            for (int j = 0; j < pixels; j++) target[j * pixel + i * channel] = sum[j * LANES + i];
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void convolution_direct(
    __global const float *src,
    __global const float *weights,
    __global float *dst,
    __global float *scratch,
    const int scratch_start,
    const int runs,
    const int chunk,
    const int panels,
    const int columns,
    const int depth,
    const int span,
    const int4 out,
    const int4 taps,
    const int4 w_at,
    const int4 w_n,
    const int4 w_k,
    const int4 w_size,
    const int copied,
    const int is_blocked,
    const int4 x,
    const int4 x_channels,
    const int4 u,
    const int4 u_channels,
    const int4 y,
    const int4 y_channels,
    __global const float *post0) {
    const int4 places = (int4)(out.xyz, (out.w + RUN - 1) / RUN);
    const int count = COUNT(places);
    if (count == 0 || columns == 0) return;
    const int all_panels = (columns + 2 * LANES - 1) / (2 * LANES);
    const int shares = (all_panels + panels - 1) / panels;
    const int group = get_group_id(1) / shares, first_panel = get_group_id(1) % shares * panels;
    const int end_panel = min(first_panel + panels, all_panels);
    const int first_run = get_group_id(0) * runs, end_run = min(first_run + runs, count);
    __global const float *own_src = src + x_channels.x + group * x_channels.y;
    __global const float *own_weights = weights + u_channels.x + group * u_channels.y;
    const int item = get_group_id(1) * get_num_groups(0) + get_group_id(0);
    __global float *panel = scratch + scratch_start + item * 2 * PANEL;

#ifdef SIDE_BY_SIDE
    const int pitch = LANES, is_apart = x.w != LANES && span == LANES;
#else
    const int pitch = min(depth, LANES), is_apart = span == LANES;
#endif
    // The pixels of src that a run reads, at distance `copied`. The first is `back` before the
    // pixel of the run's first pixel and first tap. The values give their places in src and in the
    // panel: `step` between pixels of dst, `shift` between taps.
    const int reach = (taps.w - 1) * w_k.w, back = max(0, -reach);
    const int width = ((RUN - 1) * w_n.w + abs(reach)) / copied + 1;
    const int panel_step = w_n.w / copied * pitch, panel_shift = w_k.w / copied * pitch;
    const int panel_back = back / copied * pitch;
    for (int first = first_run; first < end_run; first += chunk) {
        const int end = min(first + chunk, end_run);
        for (int column = first_panel; column < end_panel; column++) {
            const int first_column = column * 2 * LANES;
            const int vectors = first_column + LANES < columns ? 2 : 1;
            const int next_vector = vectors == 2 ? u_channels.z : 0;
            __global const float *column_weights = own_weights + 2 * column * u_channels.z;
            int4 following = digits(first, places);
            for (int run = first; run < end; run += 2) {
                const int runs_here = min(2, end - run);
                int4 place[2], corner[2];
                int lowest[2], highest[2], at[2], is_copied = is_apart;
                for (int r = 0; r < 2; r++) {
                    place[r] = r < runs_here ? following : place[0];
                    following = next(following, places);
                    corner[r] = w_at + w_n * place[r] * (int4)(1, 1, 1, RUN);
                    const int start = corner[r].w - back;
                    lowest[r] = clamp((copied - 1 - start) / copied, 0, width);
                    highest[r] = width;
                    if (start + (width - 1) * copied >= w_size.w)
                        highest[r] = max((w_size.w - start + copied - 1) / copied, lowest[r]);
                    at[r] = place[r].x * x.x + start * x.w;
                    is_copied |= lowest[r] > 0 || highest[r] < width;
                }
#define DECLARE(run, j) floats left##run##_##j = 0, right##run##_##j = 0;
                EACH(DECLARE)
                const int own_span = is_copied ? LANES : span;
                for (int block = 0; block < depth; block += own_span) {
                    const int channels = min(depth - block, own_span);
                    __global const float *block_src = own_src + block / LANES * x_channels.z;
                    __global const float *z_weights = column_weights + block / LANES * u_channels.w;
                    for (int tz = 0; tz < taps.y; tz++, z_weights += u.y) {
                        __global const float *y_weights = z_weights;
                        for (int ty = 0; ty < taps.z; ty++, y_weights += u.z) {
                            int is_inside[2], from[2];
                            for (int r = 0; r < 2; r++) {
                                const int4 d = corner[r] + (int4)(0, tz, ty, 0) * w_k;
                                is_inside[r] =
                                    (uint)d.y < (uint)w_size.y && (uint)d.z < (uint)w_size.z;
                                from[r] = at[r] + d.y * x.y + d.z * x.z;
                            }
                            if (!is_inside[0] && !is_inside[1]) continue;
                            __global const float *p0, *q0;
                            int step, shift;
                            if (is_copied || !is_inside[0] || !is_inside[1]) {
                                ONCE for (int r = 0; r < 2; r++)
                                    fill(panel + r * PANEL, block_src + from[r], x.w * copied,
                                         x_channels.w, channels, pitch,
                                         is_inside[r] ? lowest[r] : 0,
                                         is_inside[r] ? highest[r] : 0, width);
                                p0 = panel + panel_back;
                                q0 = p0 + PANEL;
                                step = panel_step;
                                shift = panel_shift;
                            } else {
                                p0 = block_src + from[0] + back * x.w;
                                q0 = block_src + from[1] + back * x.w;
                                step = w_n.w * x.w;
                                shift = w_k.w * x.w;
                            }
#define FETCH_PIXEL(run, j) FETCH((run ? q0 : p0) + x_channels.z + (j) * step);
                            if (!is_copied) { EACH(FETCH_PIXEL) }  // of the next block
                            __global const float *p1 = p0 + 4 * step, *q1 = q0 + 4 * step;
                            for (int s = 0; s < taps.w; s++) {
                                __global const float *w = y_weights + s * u.w;
                                const int moved = s * shift;
                                for (int i = moved; i < moved + channels; i++, w += LANES) {
                                    const floats left = LOAD(0, w);
                                    const floats right = LOAD(0, w + next_vector);
#define MULTIPLY(run, j)                                                                           \
    {                                                                                              \
        const float e = (run ? (j) < 4 ? q0 : q1 : (j) < 4 ? p0 : p1)[i + (j) % 4 * step];         \
        left##run##_##j += e * left;                                                               \
        right##run##_##j += e * right;                                                             \
    }
                                    EACH(MULTIPLY)
                                }
                            }
                        }
                    }
                }
                float sums[4 * RUN * LANES];
#define KEEP(run, j)                                                                               \
    STORE(left##run##_##j, (run) * RUN + (j), sums);                                               \
    STORE(right##run##_##j, (run + 2) * RUN + (j), sums);
                EACH(KEEP)
                for (int i = 0; i < 2 * vectors; i++) {
                    const int r = i % 2, own_column = first_column + i / 2 * LANES;
                    if (r >= runs_here) continue;
                    int4 d = place[r];
                    d.w *= RUN;
                    __global float *target = dst + y_channels.x + group * y_channels.y
                        + own_column / LANES * y_channels.z + DOT4(d, y);
                    store_run(sums + i * RUN * LANES, target, d, min(RUN, out.w - d.w), y.w,
                              group * columns + own_column, y_channels.w,
                              min(LANES, columns - own_column), is_blocked POST_ARGS);
                }
            }
        }
    }
}
