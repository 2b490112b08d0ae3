// DEVICE_FENCE and SEEN for launches of one work-group.

#define DEVICE_FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define SEEN(number) (*(number))
