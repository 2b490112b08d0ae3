// DEVICE_FENCE orders the accesses of a work-group for all work-groups, which OpenCL 1.2 cannot
// express. One work-item executes it, between two barriers of its work-group. SEEN reads a number that
// other work-groups change.

#define DEVICE_FENCE() __asm__ volatile("membar.gl;" : : : "memory")
#define SEEN(number) seen(number)

static inline uint seen(const volatile __global uint *number)
{
    uint value;
    __asm__ volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
    return value;
}
