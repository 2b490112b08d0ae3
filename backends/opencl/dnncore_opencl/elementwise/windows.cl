// Definitions for kernels over the places of a result. A work-item computes COUNT of the ITEMS,
// which are boxes of the two innermost loops. DECODE computes their bounds from `rest`. Each
// iteration computes one place: LANES elements, the first of which has the COORDINATES n, c, d, h,
// w. INSIDE: whether these are elements and not padding, which is zero. POST_OPS changes x.

#define BOXES                                                                                      \
    const INDEX first = (INDEX)get_global_id(0) * COUNT;                                           \
    const INDEX last = min(first + COUNT, ITEMS);                                                  \
    for (INDEX item = first; item < last; ++item)

#define BOX                                                                                        \
    INDEX rest = item;                                                                             \
    DECODE

#define PLACES                                                                                     \
    for (INDEX r = r_begin; r < r_end; ++r)                                                        \
    for (INDEX t = t_begin; t < t_end; ++t)

#define PLACE                                                                                      \
    COORDINATES                                                                                    \
    const int inside = INSIDE;
