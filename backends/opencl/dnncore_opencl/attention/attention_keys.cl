// The gradients of keys and values. A work-item computes one key and its value from all queries that
// see it, in all heads that share it.
__kernel void attention_keys($parameters) {
  __local float query_tile[TILE * DEPTH], diff_tile[TILE * WIDTH], lse_tile[TILE], mean_tile[TILE];
  const int item = (int)get_local_id(0);
  const INDEX group = (INDEX)get_group_id(0);
  const INDEX first = group % BLOCKS * GROUP;
  const INDEX shared = group / BLOCKS % HEADS, n = group / BLOCKS / HEADS;
  const INDEX k = first + item;
  const int exists = k < KEYS;
  float x[DEPTH], y[WIDTH], dx[DEPTH], dy[WIDTH];
  UNROLL
  for (int d = 0; d < DEPTH; ++d) {
    x[d] = exists && d < KEY_SIZE ? READ_KEYS(n, shared, k, d) : 0.0f;
    dx[d] = 0.0f;
  }
  UNROLL
  for (int v = 0; v < WIDTH; ++v) {
    y[v] = exists && v < VALUE_SIZE ? READ_VALUES(n, shared, k, v) : 0.0f;
    dy[v] = 0.0f;
  }
  const INDEX begin = max((INDEX)0, first - DIAGONAL);
  for (INDEX turn = 0; turn < SHARE; ++turn) {
    const INDEX head = shared * SHARE + turn;
    for (INDEX start = begin; start < QUERIES; start += TILE) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = item; i < TILE * DEPTH; i += GROUP) {
        const INDEX q = start + i / DEPTH;
        const int d = i % DEPTH;
        query_tile[i] = q < QUERIES && d < KEY_SIZE ? READ_QUERIES(n, head, q, d) : 0.0f;
      }
      for (int i = item; i < TILE * WIDTH; i += GROUP) {
        const INDEX q = start + i / WIDTH;
        const int v = i % WIDTH;
        diff_tile[i] = q < QUERIES && v < VALUE_SIZE ? READ_DIFF_DST(n, head, q, v) : 0.0f;
      }
      for (int i = item; i < TILE; i += GROUP) {
        const INDEX q = start + i;
        float lse = INFINITY, mean = 0.0f;
        if (q < QUERIES) {
          lse = READ_WORKSPACE(n, head, q, 0);
          lse = lse == -INFINITY ? INFINITY : lse;
          for (INDEX v = 0; v < VALUE_SIZE; ++v) {
            mean = fma(READ_DIFF_DST(n, head, q, v), READ_DST(n, head, q, v), mean);
          }
        }
        lse_tile[i] = lse;
        mean_tile[i] = mean;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int j = 0; j < TILE; ++j) {
        const INDEX q = start + j;
        if (exists && q < QUERIES && k <= q + DIAGONAL) {
          float s = 0.0f, slope = 0.0f;
          UNROLL
          for (int d = 0; d < DEPTH; ++d) s = fma(x[d], query_tile[j * DEPTH + d], s);
          UNROLL
          for (int v = 0; v < WIDTH; ++v) slope = fma(y[v], diff_tile[j * WIDTH + v], slope);
          s = s * SCALE;
#ifdef READ_MASK
          s += READ_MASK(n, head, q, k);
#endif
          const float weight = exp(s - lse_tile[j]);
          const float diff = weight * (slope - mean_tile[j]);
          UNROLL
          for (int d = 0; d < DEPTH; ++d) dx[d] = fma(diff, query_tile[j * DEPTH + d], dx[d]);
          UNROLL
          for (int v = 0; v < WIDTH; ++v) dy[v] = fma(weight, diff_tile[j * WIDTH + v], dy[v]);
        }
      }
    }
  }
  UNROLL
  for (int d = 0; d < DEPTH; ++d) {
    if (exists && d < KEY_SIZE) WRITE_DIFF_KEYS(n, shared, k, d, dx[d] * SCALE);
  }
  UNROLL
  for (int v = 0; v < WIDTH; ++v) {
    if (exists && v < VALUE_SIZE) WRITE_DIFF_VALUES(n, shared, k, v, dy[v]);
  }
}
