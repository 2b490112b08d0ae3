/* Products of M x K and K x N matrices, one for each work-item. The matrices of a tensor lie one
   after the other. M, N and K are defines, so all loops but the launch are unrolled. */
__kernel void small_matmul(
    __global const float *restrict src, __global const float *restrict weights,
    __global float *restrict dst,
    const long src_start, const long weights_start, const long dst_start, const long count)
{
    const long item = get_global_id(0);
    if (item >= count) return;
    src += src_start + item * (M * K);
    weights += weights_start + item * (K * N);
    dst += dst_start + item * (M * N);

    for (int m = 0; m < M; m++) {
        float sums[N];
        #pragma unroll
        for (int n = 0; n < N; n++) sums[n] = 0.0f;
        #pragma unroll
        for (int k = 0; k < K; k++) {
            const float factor = src[m * K + k];
            #pragma unroll
            for (int n = 0; n < N; n++) sums[n] += factor * weights[k * N + n];
        }
        #pragma unroll
        for (int n = 0; n < N; n++) dst[m * N + n] = sums[n];
    }
}
