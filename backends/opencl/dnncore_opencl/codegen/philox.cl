// Random numbers by seed, offset and place: the generator Philox4x32-10.
static inline uint random_number(const long seed, const long offset, const long place) {
    const long quad = place & ~3L;
    uint4 words = (uint4)((uint)offset, (uint)(offset >> 32), (uint)quad, (uint)(quad >> 32));
    uint2 key = (uint2)((uint)seed, (uint)(seed >> 32));
    for (int i = 0; i < 10; i++) {
        const uint low = words.x * 0xD2511F53u, high = mul_hi(words.x, 0xD2511F53u);
        const uint low2 = words.z * 0xCD9E8D57u, high2 = mul_hi(words.z, 0xCD9E8D57u);
        words = (uint4)(high2 ^ words.y ^ key.x, low2, high ^ words.w ^ key.y, low);
        key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    // Oclgrind returns wrong words for a chain of conditions on place & 3.
    const uint2 pair = place & 2 ? words.zw : words.xy;
    return place & 1 ? pair.y : pair.x;
}

// Whether dropout keeps the element at a place. A conversion outside the range would be undefined.
static inline int is_kept(const float probability, const long seed, const long offset, const long place) {
    return random_number(seed, offset, place) >= (ulong)(fmin(fmax(probability, 0.0f), 1.0f) * 0x1p32f);
}

// Returns x with its last `cut` bits replaced by random bits. Infinity and NaN remain.
static inline float rounded_at_random(const float x, const int seed, const int cut, const long place) {
    const uint bits = as_uint(x), mask = (1u << cut) - 1u;
    if ((bits & 0x7f800000u) == 0x7f800000u) return x;
    return as_float((bits + (random_number(seed, 0, place) & mask)) & ~mask);
}
