// The second launch of a product whose k was cut into parts: adds the parts in order.

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void gemm_reduce(__global const float *partial, __global float *c, const int first,
                 const int parts, const int4 batch, const int m, const int4 n, const int4 k,
                 const int4 c_batch, const int c_m, const int4 c_n POST_PARAMS) {
    const int columns = COUNT(n), size = batch.x * batch.y * batch.z * m * columns;
    const int place = get_global_id(0);
    if (place >= size) return;
    float x = 0;
    for (int i = 0; i < parts; i++) x += partial[first + i * size + place];
    const int row = place / columns % m;
    const int4 z = batch_digits(place / columns / m, batch), d = digits(place % columns, n);
    const int at = c_batch.w + DOT3(c_batch, z) + row * c_m + DOT4(c_n, d);
#ifdef POST_READS_DST
    const float old = c[at];
#else
    const float old = 0;
#endif
    c[at] = post_ops(x, old, z.x, z.y, z.z, row, d.x, d.y, d.z, d.w POST_ARGS);
}
