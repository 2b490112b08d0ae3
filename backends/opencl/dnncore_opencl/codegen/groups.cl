// Items shared by work-items. WORKERS work-items share an item, and a work-group has SPAN items.
// Neighbouring work-items belong to one item. With ACROSS, they have the same share of neighbouring
// items. A single worker computes COUNT of the ITEMS. The result of an item is a ROW. WIDE has
// LANES ROWs.

#if WORKERS == 1
#define SHARED __local ROW *const shared = 0;
#define GROUP_SIZE
#define WORKER 0
#define ITEM get_global_id(0)
#else
#define SHARED __local ROW shared[WORKERS * SPAN];
#define GROUP_SIZE __attribute__((reqd_work_group_size(WORKERS * SPAN, 1, 1)))
#ifdef ACROSS
#define WORKER (int)get_local_id(0) / SPAN
#define ITEM (get_group_id(0) * SPAN + get_local_id(0) % SPAN)
#else
#define WORKER (int)get_local_id(0) % WORKERS
#define ITEM (get_group_id(0) * SPAN + get_local_id(0) / WORKERS)
#endif
#endif

// With several workers, all work-items execute the body, because it has barriers.
#define OVER_ITEMS                                                                                 \
    SHARED                                                                                         \
    const int worker = WORKER;                                                                     \
    const INDEX first = (INDEX)ITEM * COUNT;                                                       \
    const INDEX last = WORKERS == 1 ? min(first + COUNT, ITEMS) : first + COUNT;                   \
    for (INDEX item = first; item < last; ++item)

// A function that combines the lanes of `wide`, `rest`, and the values of the item's other workers.
// All workers get the result. With SHUFFLE, which reads a neighbour's float, steps within SUB_GROUP
// work-items need no barrier.
#define REDUCTION(NAME, COMBINE)                                                                   \
    static inline ROW NAME(const WIDE wide, ROW rest, const int worker, __local ROW *shared)       \
    {                                                                                              \
        const ROW *lanes = (const ROW *)&wide;                                                     \
        for (int i = 0; i < LANES; ++i) rest = COMBINE(rest, lanes[i]);                            \
        COMBINE_WORKERS(COMBINE)                                                                   \
        return rest;                                                                               \
    }

#if WORKERS == 1
#define COMBINE_WORKERS(COMBINE)
#elif defined(SHUFFLE) && !defined(ACROSS)
#define SUB_GROUPS (WORKERS > SUB_GROUP ? WORKERS / SUB_GROUP : 1) // per item
// A shuffle must not be an operand of COMBINE: all work-items must execute it, but COMBINE may skip
// operands.
#define COMBINE_NEIGHBOURS(COMBINE, count)                                                         \
    for (int i = 1; i < count; i *= 2) {                                                           \
        const ROW other = SHUFFLE(rest, i);                                                        \
        rest = COMBINE(rest, other);                                                               \
    }
#define COMBINE_WORKERS(COMBINE)                                                                   \
    COMBINE_NEIGHBOURS(COMBINE, (WORKERS < SUB_GROUP ? WORKERS : SUB_GROUP))                       \
    if (SUB_GROUPS > 1) {                                                                          \
        const int own = get_local_id(0) / SUB_GROUP;                                               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        shared[own] = rest;                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        rest = shared[own / SUB_GROUPS * SUB_GROUPS + worker % SUB_GROUPS];                        \
        COMBINE_NEIGHBOURS(COMBINE, SUB_GROUPS)                                                    \
    }
#else
#ifdef ACROSS
#define STEP SPAN
#else
#define STEP 1
#endif
#define COMBINE_WORKERS(COMBINE)                                                                   \
    __local ROW *mine = shared + get_local_id(0);                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    *mine = rest;                                                                                  \
    for (int i = WORKERS / 2; i > 0; i /= 2) {                                                     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (worker < i) *mine = COMBINE(*mine, mine[i * STEP]);                                    \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    rest = mine[-worker * STEP];
#endif
