// result[m] = sum over k of x[m, k]: a group of SIDE x SIDE work-items per row. One side takes the
// fastest digit of k, LANES at a time, the other the rest; then the group adds up its sums as a tree.

__kernel __attribute__((reqd_work_group_size(SIDE * SIDE, 1, 1)))
void row_sums(__global const float *x, __global float *result, const int rows, const int4 k,
              const int4 strides, const int x_at, const int x_row, const int result_at,
              const int result_row) {
    __local float sums[SIDE * SIDE];
    const int row = get_group_id(0), item = get_local_id(0);
    float lanes[LANES];
    for (int j = 0; j < LANES; j++) lanes[j] = 0;
    const int lines = k.x * k.y * k.z;
    for (int line = item / SIDE; line < lines; line += SIDE) {
        const int4 d = digits(line, (int4)(1, k.x, k.y, k.z));
        const int at = x_at + row * x_row + d.y * strides.x + d.z * strides.y + d.w * strides.z;
        int i = item % SIDE * LANES;
        for (; i + LANES <= k.w; i += SIDE * LANES)
            for (int j = 0; j < LANES; j++) lanes[j] += x[at + (i + j) * strides.w];
        for (; i < k.w; i++) lanes[0] += x[at + i * strides.w];
    }
    for (int j = 1; j < LANES; j++) lanes[0] += lanes[j];
    sums[item] = lanes[0];
    for (int gap = SIDE * SIDE / 2; gap > 0; gap /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < gap) sums[item] += sums[item + gap];
    }
    if (item == 0 && row < rows) result[result_at + row * result_row] = sums[0];
}
