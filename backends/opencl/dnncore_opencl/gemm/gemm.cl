// What products on CPUs share, depthwise ones too: the index arithmetic of `gemm/product.py`.
//
//     c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]
//
// Each of z, n and k is an index of several digits, and every operand has a stride per digit. A
// window (WINDOW) makes b's element zero where a coordinate, a sum of a digit of n and one of k,
// leaves the image: so b is an image whose patches are never copied out.

#ifdef WINDOW
#define WINDOW_PARAMS , const int4 w_at, const int4 w_n, const int4 w_k, const int4 w_size
#else
#define WINDOW_PARAMS
#endif

#define GEMM_PARAMS                                                                                \
    __global const float *a, __global const float *b, __global float *c, const int rows,           \
        const int a_end, const int b_end, const int4 batch, const int m, const int4 n,             \
        const int4 k, const int4 a_batch, const int a_m,                                           \
        const int4 a_k, const int4 b_batch, const int4 b_k, const int4 b_n, const int4 c_batch,    \
        const int c_m, const int4 c_n, const int c_part, const int part WINDOW_PARAMS POST_PARAMS

// Whether all spatial coordinates are within the image.
static inline int is_inside(const int4 at, const int4 size) {
    return (uint)at.y < (uint)size.y && (uint)at.z < (uint)size.z && (uint)at.w < (uint)size.w;
}
