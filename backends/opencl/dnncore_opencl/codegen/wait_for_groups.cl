// Waits until all work-groups with the same get_group_id(1) have called this function `calls` times.
// These work-groups must run at the same time. `arrivals` counts their calls, and is 0 before the
// first one. Call number `last` is the last one: it does not wait, and the count becomes 0 again.

static inline void wait_for_groups(volatile __global uint *arrivals, const int calls, const int last)
{
    const uint expected = calls * get_num_groups(0);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        DEVICE_FENCE();
        const uint before = atomic_inc(arrivals);
        if (calls < last) {
            while (SEEN(arrivals) < expected) {
            }
        } else if (before + 1 == expected)
            *arrivals = 0;
        DEVICE_FENCE();
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}
