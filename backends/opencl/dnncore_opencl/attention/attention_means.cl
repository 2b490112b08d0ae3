// The sum of diff_dst * dst of each query. Eight work-items read a row in chunks of 8 elements.

#define LANES_OF_ROW 8
#define PRODUCTS(a, b)                                                                             \
    (NUMBER_OF((ushort)(a)) * NUMBER_OF((ushort)(b))                                               \
     + NUMBER_OF((ushort)((a) >> 16)) * NUMBER_OF((ushort)((b) >> 16)))

__kernel void attention_means($parameters) {
    __local float parts[GROUP];
    const int item = (int)get_local_id(0), lane = item % LANES_OF_ROW;
    const INDEX row = ((INDEX)get_group_id(0) * GROUP + item) / LANES_OF_ROW;
    float sum = 0.0f;
    if (row < ROWS) {
        const INDEX q = row % max(QUERIES, (INDEX)1), index = row / max(QUERIES, (INDEX)1);
        const INDEX head = index % HEADS, n = index / HEADS;
        __global const ushort *x = dst + DST_AT(n, head, q, 0);
        __global const ushort *y = diff_dst + DIFF_DST_AT(n, head, q, 0);
        for (int v = lane * 8; v < VALUE_SIZE; v += LANES_OF_ROW * 8) {
            if (v + 8 <= VALUE_SIZE) {
                const uint4 a = *(__global const uint4 *)(x + v);
                const uint4 b = *(__global const uint4 *)(y + v);
                sum += PRODUCTS(a.x, b.x) + PRODUCTS(a.y, b.y) + PRODUCTS(a.z, b.z)
                    + PRODUCTS(a.w, b.w);
            } else {
                for (int i = v; i < VALUE_SIZE; i++) sum = fma(NUMBER_OF(x[i]), NUMBER_OF(y[i]), sum);
            }
        }
    }
    parts[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0 && row < ROWS) {
        for (int i = 1; i < LANES_OF_ROW; i++) sum += parts[item + i];
        mean[row] = sum;
    }
}
