// The gradient of queries. A work-item computes one query from all keys that it sees.
__kernel void attention_queries($parameters) {
  __local float key_tile[TILE * DEPTH], value_tile[TILE * WIDTH];
  const int item = (int)get_local_id(0);
  const INDEX group = (INDEX)get_group_id(0);
  const INDEX first = group % BLOCKS * GROUP;
  const INDEX head = group / BLOCKS % HEADS, n = group / BLOCKS / HEADS;
  const INDEX shared = head / SHARE, q = first + item;
  const int exists = q < QUERIES;
  float x[DEPTH], y[WIDTH], dx[DEPTH];
  UNROLL
  for (int d = 0; d < DEPTH; ++d) {
    x[d] = exists && d < KEY_SIZE ? READ_QUERIES(n, head, q, d) : 0.0f;
    dx[d] = 0.0f;
  }
  float mean = 0.0f;
  UNROLL
  for (int v = 0; v < WIDTH; ++v) {
    const int is_inside = exists && v < VALUE_SIZE;
    y[v] = is_inside ? READ_DIFF_DST(n, head, q, v) : 0.0f;
    if (is_inside) mean = fma(y[v], READ_DST(n, head, q, v), mean);
  }
  float lse = exists ? READ_WORKSPACE(n, head, q, 0) : INFINITY;
  lse = lse == -INFINITY ? INFINITY : lse;
  const INDEX seen = min(KEYS, first + GROUP + DIAGONAL);
  for (INDEX start = 0; start < seen; start += TILE) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < TILE * DEPTH; i += GROUP) {
      const INDEX k = start + i / DEPTH;
      const int d = i % DEPTH;
      key_tile[i] = k < KEYS && d < KEY_SIZE ? READ_KEYS(n, shared, k, d) : 0.0f;
    }
    for (int i = item; i < TILE * WIDTH; i += GROUP) {
      const INDEX k = start + i / WIDTH;
      const int v = i % WIDTH;
      value_tile[i] = k < KEYS && v < VALUE_SIZE ? READ_VALUES(n, shared, k, v) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const INDEX last = min(KEYS, q + DIAGONAL + 1);
    for (int j = 0; j < TILE; ++j) {
      const INDEX k = start + j;
      if (exists && k < last) {
        float s = 0.0f, slope = 0.0f;
        UNROLL
        for (int d = 0; d < DEPTH; ++d) s = fma(x[d], key_tile[j * DEPTH + d], s);
        UNROLL
        for (int v = 0; v < WIDTH; ++v) slope = fma(y[v], value_tile[j * WIDTH + v], slope);
        s = s * SCALE;
#ifdef READ_MASK
        s += READ_MASK(n, head, q, k);
#endif
        const float diff = exp(s - lse) * (slope - mean);
        UNROLL
        for (int d = 0; d < DEPTH; ++d) dx[d] = fma(diff, key_tile[j * DEPTH + d], dx[d]);
      }
    }
  }
  UNROLL
  for (int d = 0; d < DEPTH; ++d) {
    if (exists && d < KEY_SIZE) WRITE_DIFF_QUERIES(n, head, q, d, dx[d] * SCALE);
  }
}
