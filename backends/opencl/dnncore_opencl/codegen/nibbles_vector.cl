// Vectors of 4-bit elements that begin at an even place, on little-endian processors. A byte
// becomes a word with one element in each byte. HALF is half of LANES.

static inline ucharLANES load_u4LANES(__global const uchar *from, const long at) {
    const ucharHALF bytes = ((__global const struct packed_ucharHALF *)(from + (at >> 1)))->all;
    const ushortHALF pairs = convert_ushortHALF(bytes);
    return as_ucharLANES((pairs | pairs << (ushort)4) & (ushort)0x0f0f);
}

static inline charLANES load_s4LANES(__global const char *from, const long at) {
    return as_charLANES((load_u4LANES((__global const uchar *)from, at) ^ (uchar)8) - (uchar)8);
}
