// Vectors of 4-bit elements from an even place on, on little-endian processors: a byte becomes a
// word with an element in each of its bytes. HALF is half of LANES.

static inline ucharLANES load_u4LANES(__global const uchar *from, const long at) {
    const ucharHALF bytes = ((__global const struct packed_ucharHALF *)(from + (at >> 1)))->all;
    const ushortHALF pairs = convert_ushortHALF(bytes);
    return as_ucharLANES((pairs | pairs << (ushort)4) & (ushort)0x0f0f);
}

static inline charLANES load_s4LANES(__global const char *from, const long at) {
    return as_charLANES((load_u4LANES((__global const uchar *)from, at) ^ (uchar)8) - (uchar)8);
}
