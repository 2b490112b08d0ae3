// Definitions for all kernels of depthwise convolutions. These are products (see `gemm.cl`) with
// one row per batch.
//
// A batch is a channel. A line has the elements along the fastest digit of the image. LANES values
// are computed at once, along channels or along a line. LANES is a define. A work-group is one
// work-item. `gemm/elements.py` names the functions that read and write.

#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
#if LANES == 1
typedef float floats;
typedef int ints;
#define LOAD(i, p) ((p)[i])
#define STORE(v, i, p) ((p)[i] = (v))
#else
typedef PASTE(float, LANES) floats;
typedef PASTE(int, LANES) ints;
#define LOAD PASTE(vload, LANES)
#define STORE PASTE(vstore, LANES)
#endif

// 0, 1, 2, ...
static inline ints ramp(void) {
    int lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return LOAD(0, lanes);
}

// Reads p[start], p[start + step], ... for the lanes that are `inside`, 0 for others. p ends at
// `end`.
static inline floats load_lanes(__global const B_TYPE *p, const int start, const int step,
                                const int end, const int all_inside, const ints inside) {
#if LANES > 1
    floats x;
    if (step == 1 && start >= 0 && start <= end - LANES) {
        x = B_VECTOR_VALUE(B_VECTOR_READ(p + start));
    } else if (step == 2 && start >= 0 && start <= end - 2 * LANES) {
        const floats low = B_VECTOR_VALUE(B_VECTOR_READ(p + start));
        const floats high = B_VECTOR_VALUE(B_VECTOR_READ(p + start + LANES));
        x = (floats)(low.even, high.even);
    } else {
        float lanes[LANES];
        int wanted[LANES];
        STORE(inside, 0, wanted);
        for (int i = 0; i < LANES; i++) lanes[i] = wanted[i] ? B_VALUE(B_READ(p + start + i * step)) : 0.0f;
        return LOAD(0, lanes);
    }
    return all_inside ? x : inside ? x : (floats)(0);
#else
    return inside ? B_VALUE(B_READ(p + start)) : 0.0f;
#endif
}

// The first channel of block `block`. The last block overlaps the previous one, which computes
// `DONE_LANES` of its channels.
#define FIRST_CHANNEL(block) min((block) * LANES, batch.z - LANES)
#define DONE_LANES(block) ((block) * LANES - FIRST_CHANNEL(block))

#ifdef POST_READS_DST
#define OLD(at) C_VALUE(C_READ(c + (at)))
#else
#define OLD(at) 0.0f
#endif
