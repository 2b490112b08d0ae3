// The functions of maxima_nvidia.cl for all devices.

static inline FLOATS larger(const FLOATS a, const FLOATS b)
{
    return (a > b) | isnan(a) ? a : b;
}
