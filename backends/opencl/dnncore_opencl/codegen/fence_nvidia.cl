// DEVICE_FENCE orders a work-item's accesses for all work-groups, which OpenCL 1.2 cannot express.
// After it, work-items behind the next barrier read what other work-groups wrote before theirs. SEEN
// reads a number that other work-groups change.

#define DEVICE_FENCE() __asm__ volatile("membar.gl;" : : : "memory")
#define SEEN(number) seen(number)

static inline uint seen(const volatile __global uint *number)
{
    uint value;
    __asm__ volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
    return value;
}
