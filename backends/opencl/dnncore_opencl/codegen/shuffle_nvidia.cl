// SHUFFLE by NVIDIA's instruction: the value of the work-item in the same warp whose number differs
// in one bit. All work-items of the warp must execute it.

#define SUB_GROUP 32
#define SHUFFLE(value, bit) shuffled(value, bit)

static inline float shuffled(const float value, const int bit)
{
    float other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;"
                     : "=f"(other) : "f"(value), "r"(bit));
    return other;
}
