// Attention. A work-item computes one query with online softmax. A work-group reads tiles of keys
// and values into local memory. DEPTH and WIDTH are the sizes of a key and a value, rounded up.
__kernel void attention_forward($parameters) {
  __local float key_tile[TILE * DEPTH], value_tile[TILE * WIDTH];
  const int item = (int)get_local_id(0);
  const INDEX group = (INDEX)get_group_id(0);
  const INDEX first = group % BLOCKS * GROUP;
  const INDEX head = group / BLOCKS % HEADS, n = group / BLOCKS / HEADS;
  const INDEX shared = head / SHARE, q = first + item;
  const int exists = q < QUERIES;
  float x[DEPTH], sums[WIDTH], score[TILE];
  UNROLL
  for (int d = 0; d < DEPTH; ++d) x[d] = exists && d < KEY_SIZE ? READ_QUERIES(n, head, q, d) : 0.0f;
  UNROLL
  for (int v = 0; v < WIDTH; ++v) sums[v] = 0.0f;
  float top = -INFINITY, total = 0.0f;
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
    float now = top;
    for (int j = 0; j < TILE; ++j) {
      float s = 0.0f;
      UNROLL
      for (int d = 0; d < DEPTH; ++d) s = fma(x[d], key_tile[j * DEPTH + d], s);
      s = s * SCALE;
      const INDEX k = start + j;
      const int is_seen = exists && k < last;
#ifdef READ_MASK
      if (is_seen) s += READ_MASK(n, head, q, k);
#endif
      score[j] = is_seen ? s : -INFINITY;
      now = score[j] > now ? score[j] : now;
    }
    const float shift = now == -INFINITY ? 0.0f : now;
    const float factor = exp(top - shift);
    total *= factor;
    UNROLL
    for (int v = 0; v < WIDTH; ++v) sums[v] *= factor;
    for (int j = 0; j < TILE; ++j) {
      const float weight = exp(score[j] - shift);
      total += weight;
      UNROLL
      for (int v = 0; v < WIDTH; ++v) sums[v] = fma(weight, value_tile[j * WIDTH + v], sums[v]);
    }
    top = now;
  }
  if (exists) {
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    UNROLL
    for (int v = 0; v < WIDTH; ++v) {
      if (v < VALUE_SIZE) WRITE_DST(n, head, q, v, sums[v] * factor);
    }
#ifdef KEEPS
    WRITE_WORKSPACE(n, head, q, 0, total == 0.0f ? -INFINITY : top + log(total));
#endif
  }
}
