// Conversions of f16 and bf16, stored as ushorts, from and to float. They use only integers, so the
// device need not support f16 arithmetic. LANES stands for the number of elements or for nothing.

// The float of these bits. NaN is made quiet, as by a conversion in hardware.
static inline floatLANES quietLANES(const uintLANES bits) {
    const floatLANES x = as_floatLANES(bits);
    return x == x ? x : as_floatLANES(bits | 0x400000u);
}

static inline floatLANES f16_to_floatLANES(const ushortLANES value_bits) {
    const uintLANES bits = convert_uintLANES(value_bits), size = bits & 0x7fffu;
    const uintLANES shift = size < 0x7c00u ? (uintLANES)(112u << 23) : (uintLANES)(224u << 23);
    const floatLANES denormal = convert_floatLANES(size) * 0x1p-24f;
    const floatLANES value = size < 0x400u ? denormal : as_floatLANES((size << 13) + shift);
    return quietLANES(as_uintLANES(value) | (bits & 0x8000u) << 16);
}

static inline floatLANES bf16_to_floatLANES(const ushortLANES bits) {
    return quietLANES(convert_uintLANES(bits) << 16);
}

// To nearest, ties to even. 0.5 + x has the ulp of a denormal f16 (below 2^-14).
static inline ushortLANES float_to_f16LANES(const floatLANES x) {
    const uintLANES size = as_uintLANES(x) & 0x7fffffffu, sign = as_uintLANES(x) ^ size;
    const uintLANES denormal = as_uintLANES(as_floatLANES(size) + 0.5f) - 0x3f000000u;
    const uintLANES normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    const uintLANES value = size < 113u << 23 ? denormal : min(normal, (uintLANES)(0x7c00u));
    return convert_ushortLANES((x == x ? value : 0x7e00u) | sign >> 16);
}

static inline ushortLANES float_to_bf16LANES(const floatLANES x) {
    const uintLANES bits = as_uintLANES(x);
    const uintLANES value = bits + 0x7fffu + (bits >> 16 & 1u);
    return convert_ushortLANES((x == x ? value : bits | 0x400000u) >> 16);
}
