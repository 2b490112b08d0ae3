// Maxima by an instruction of NVIDIA's GPUs; NaN counts as the largest.

static inline FLOATS larger(const FLOATS a, const FLOATS b)
{
    FLOATS result;
    const float *left = (const float *)&a, *right = (const float *)&b;
    float *to = (float *)&result;
    _Pragma("unroll") for (int i = 0; i < LANES; ++i)
        __asm__("max.NaN.f32 %0, %1, %2;" : "=f"(to[i]) : "f"(left[i]), "f"(right[i]));
    return result;
}
