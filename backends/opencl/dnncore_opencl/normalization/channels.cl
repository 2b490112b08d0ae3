// Group normalization by channels: a row (rows.cl) is a channel of an image, and the SPAN rows of a
// work-group are the channels of a set. So scale and shift are numbers of a row.

#if SPAN > 1
#define SETS __local float joined[2 * SPAN];
#else
#define SETS __local float *const joined = 0;
#endif

// The place of this row in its set.
#define CHANNEL ((int)get_local_id(0) / WORKERS)

// Shares two numbers per channel with the whole set. All work-items execute it.
static inline void share(
    const float a, const float b, const int worker, __local float *const joined)
{
#if SPAN > 1
    barrier(CLK_LOCAL_MEM_FENCE);
    if (worker == 0) {
        joined[CHANNEL] = a;
        joined[SPAN + CHANNEL] = b;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

#if SPAN > 1
#define OF_CHANNEL(number, k, own) joined[number * SPAN + k]
#else
#define OF_CHANNEL(number, k, own) own
#endif

#if HELD > 0
#define SEVERAL
#else
#define SEVERAL _Pragma("unroll 4") // so that loads do not wait for each other
#endif
