// 4-bit elements, two per byte. The first one is in the lower bits.

static inline uchar load_u4(__global const uchar *from, const long at) {
    return from[at >> 1] >> (at & 1) * 4 & 15;
}

static inline char load_s4(__global const char *from, const long at) {
    return (char)(from[at >> 1] << (1 - (at & 1)) * 4) >> 4;
}

// Only elements of one parity are written per launch, so that no two work-items change the same
// byte.
static inline void store_u4(__global uchar *to, const long at, const uchar value, const int parity) {
    if ((at & 1) != parity) return;
    const int shift = parity * 4;
    to[at >> 1] = (to[at >> 1] & ~(15 << shift)) | (value & 15) << shift;
}

static inline void store_s4(__global char *to, const long at, const char value, const int parity) {
    store_u4((__global uchar *)to, at, (uchar)value, parity);
}
