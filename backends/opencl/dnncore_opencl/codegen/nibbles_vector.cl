// Vectors of 4-bit elements from an even place on. HALF is half of LANES.

static inline ucharLANES load_u4LANES(__global const uchar *from, const long at) {
    const ucharHALF pairs = vloadHALF(0, from + (at >> 1));
    ucharLANES all;
    all.even = pairs & (uchar)15;
    all.odd = pairs >> (uchar)4;
    return all;
}

static inline charLANES load_s4LANES(__global const char *from, const long at) {
    const charHALF pairs = vloadHALF(0, from + (at >> 1));
    charLANES all;
    all.even = pairs << (char)4;
    all.odd = pairs;
    return all >> (char)4;
}
