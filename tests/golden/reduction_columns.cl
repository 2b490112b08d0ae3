#define START 0.0f
#define COMBINE(a, b) ((a) + (b))
#define TERM(x, TYPE) x
#define FINISH(x, TYPE) x
#define POWER(x, TYPE) ((x) * (x))
#define ROOT(x, TYPE) sqrt((x))
#define SIZE p0
#define EPS p1
#define KEPT const INDEX vector = rest; const INDEX k0 = vector * 4; const INDEX src_at = 0 + k0; 
#define EXISTS 1
#define INSIDE 1
#define BOX const INDEX r_box = 0; const INDEX t_box = rest; const INDEX r_begin = r_box * p2; const INDEX r_end = min(r_begin + p2, p3); const INDEX t_begin = t_box * p4; const INDEX t_end = min(t_begin + p4, p5); const INDEX box_at = src_at;
#define TERM_AT box_at + t * p6
#define IS_TERM 1
#define SRC float
#define DST float
#define SIDE 4
#define LANES 1
#define ROW float4
#define WIDE float4
#define LOAD(pointer) (*(__global const float4 *)(pointer))
#define LOAD_WIDE(pointer) (*(__global const float4 *)(pointer))
#define LOAD_DST(pointer) (*(__global const float4 *)(pointer))
#define STORE(pointer, value) *(__global float4 *)(pointer) = value
#define WORKERS 8
#define SPAN 32
#define ACROSS 
#define ELEMENTS p7
#define LEFT_AT(item) 0 + (item) * 4
#define BOXES p8
#define BOXES_PER_PART p9
#define ITEMS p10
#define COUNT p11
#define INDEX int
#define UINDEX uint
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

// Each element of a result is combined from terms. An item (groups.cl) is a part of the boxes of
// terms of one element, or of SIDE contiguous elements. Its workers process it in WIDE vectors of
// terms, and the rest in single ROWs. Boxes are combined one after the other, so long sums lose few
// digits.
//
// KEPT computes from `rest` where an element's terms begin in src. EXISTS: whether the element
// exists. INSIDE: whether it is not padding, which is zero. BOX sets a box's bounds. A kernel with
// DST_AT applies the epilogue. A kernel without it stores an item's result at LEFT_AT for the next
// stage.

REDUCTION(combined, COMBINE)

#if WORKERS > 1
#define UNROLLED _Pragma("unroll 4") // so that loads do not wait for each other
#else
#define UNROLLED
#endif
#define OVER_TERMS(start, step)                                                                    \
    UNROLLED                                                                                       \
    for (INDEX t = start + worker * step; t + step <= t_end; t += WORKERS * step)                  \
        if (IS_TERM)

__kernel GROUP_SIZE
void reduction(
    __global const SRC *src,
    __global DST *dst,
    const float p0,
    const float p1,
    const int p2,
    const int p3,
    const int p4,
    const int p5,
    const int p6,
    const int p7,
    const int p8,
    const int p9,
    const int p10,
    const int p11)
{
    OVER_ITEMS {
        const INDEX part = item / ELEMENTS, element = item % ELEMENTS;
        INDEX rest = element;
        KEPT
        const int exists = item < ITEMS && EXISTS, inside = exists && INSIDE;
        const INDEX end = inside ? min((part + 1) * BOXES_PER_PART, BOXES) : 0;
        WIDE wide = START;
        ROW single = START;
        for (INDEX box = part * BOXES_PER_PART; box < end; ++box) {
            INDEX rest = box;
            BOX
            WIDE wide_in_box = START;
            ROW single_in_box = START;
            for (INDEX r = r_begin; r < r_end; ++r) {
                OVER_TERMS(t_begin, LANES) {
                    const WIDE x = LOAD_WIDE(src + TERM_AT);
                    wide_in_box = COMBINE(wide_in_box, TERM(x, WIDE));
                }
                OVER_TERMS(t_end - (t_end - t_begin) % LANES, 1) {
                    const ROW x = LOAD(src + TERM_AT);
                    single_in_box = COMBINE(single_in_box, TERM(x, ROW));
                }
            }
            wide = COMBINE(wide, wide_in_box);
            single = COMBINE(single, single_in_box);
        }
        ROW x = combined(wide, single, worker, shared);
        if (worker > 0) continue;
        if (!exists) continue;
#ifdef DST_AT
        const INDEX dst_at = DST_AT;
        if (inside) {
#ifdef READS_DST
            const ROW old = LOAD_DST(dst + dst_at);
#endif
            x = FINISH(x, ROW);
            POST_OPS
        } else {
            x = 0.0f;
        }
        STORE(dst + dst_at, x);
#ifdef PADDING
        for (INDEX pad = 1; pad < PADDING; ++pad) {
            INDEX rest = pad;
            PAD
            STORE(dst + dst_at + pad_at, (ROW)(0.0f));
        }
#endif
#else
        STORE(dst + LEFT_AT(item), x);
#endif
    }
}
