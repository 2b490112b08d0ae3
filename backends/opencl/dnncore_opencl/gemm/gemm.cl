// What products on CPUs share, depthwise ones too: the index arithmetic of `gemm/product.py`.
//
//     c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]
//
// Each of z, n and k is an index of several digits, and every operand has a stride per digit. A
// window (WINDOW) makes b's element zero where a coordinate, a sum of a digit of n and one of k,
// leaves the image: so b is an image whose patches are never copied out.

// Whether all spatial coordinates are within the image.
static inline int is_inside(const int4 at, const int4 size) {
    return (uint)at.y < (uint)size.y && (uint)at.z < (uint)size.z && (uint)at.w < (uint)size.w;
}
