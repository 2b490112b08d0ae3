// Items that work-items share. WORKERS work-items share each, and a group has SPAN of them;
// neighbours in a group are workers of one item or, ACROSS items, have one share of neighbouring
// ones. A worker alone takes COUNT of the ITEMS. What an item gives is a ROW; WIDE is LANES ROWs.

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

// With several workers all go through the body, as it has barriers, also where there is no item.
#define OVER_ITEMS                                                                                 \
    SHARED                                                                                         \
    const int worker = WORKER;                                                                     \
    const INDEX first = (INDEX)ITEM * COUNT;                                                       \
    const INDEX last = WORKERS == 1 ? min(first + COUNT, ITEMS) : first + COUNT;                   \
    for (INDEX item = first; item < last; ++item)

// A function that combines the lanes of `wide`, `rest`, and what the item's other workers have. Each
// worker of several gets it. With SHUFFLE, which reads a neighbour's float, steps go without a
// barrier as far as SUB_GROUP work-items run together.
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
#define SUB_GROUPS (WORKERS > SUB_GROUP ? WORKERS / SUB_GROUP : 1) // of an item
// As all must take part in a shuffle, none is an operand of COMBINE, which may choose.
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
