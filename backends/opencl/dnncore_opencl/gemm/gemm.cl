// Index arithmetic of products on CPUs, also of depthwise convolutions; see `gemm/product.py`.
//
//     c[z, m, n] = sum over k of a[z, m, k] * b[z, k, n]
//
// Each of z, n and k is an index of several digits, and every operand has a stride per digit. With
// WINDOW, b is an image, and its patches are not copied. A coordinate is a sum of a digit of n and
// a digit of k. If a coordinate is outside the image, b's element is zero.

// Whether all spatial coordinates are inside the image.
static inline int is_inside(const int4 at, const int4 size) {
    return (uint)at.y < (uint)size.y && (uint)at.z < (uint)size.z && (uint)at.w < (uint)size.w;
}
