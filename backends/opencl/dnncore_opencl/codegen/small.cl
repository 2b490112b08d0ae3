// Conversions of 8-bit floats and of 4-bit integers, from and to float. LANES stands for the number
// of elements or for nothing. f8_e4m3 has no infinity: numbers that are too large become NaN.

static inline floatLANES f8_e5m2_to_floatLANES(const ucharLANES value_bits) {
    const uintLANES bits = convert_uintLANES(value_bits), size = bits & 0x7fu;
    const uintLANES shift = size < 0x7cu ? (uintLANES)(112u << 23) : (uintLANES)(224u << 23);
    const floatLANES denormal = convert_floatLANES(size) * 0x1p-16f;
    const floatLANES value = size < 4u ? denormal : as_floatLANES((size << 21) + shift);
    return as_floatLANES(as_uintLANES(value) | (bits & 0x80u) << 24);
}

static inline floatLANES f8_e4m3_to_floatLANES(const ucharLANES value_bits) {
    const uintLANES bits = convert_uintLANES(value_bits), size = bits & 0x7fu;
    const floatLANES denormal = convert_floatLANES(size) * 0x1p-9f;
    const uintLANES normal = size < 0x7fu ? (size << 20) + (120u << 23) : (uintLANES)(0x7fc00000u);
    const floatLANES value = size < 8u ? denormal : as_floatLANES(normal);
    return as_floatLANES(as_uintLANES(value) | (bits & 0x80u) << 24);
}

// To nearest, ties to even. The added number has the ulp of a denormal result.
static inline ucharLANES float_to_f8_e5m2LANES(const floatLANES x) {
    const uintLANES size = as_uintLANES(x) & 0x7fffffffu, sign = as_uintLANES(x) ^ size;
    const uintLANES denormal = as_uintLANES(as_floatLANES(size) + 0x1p7f) - 0x43000000u;
    const uintLANES normal = (size - (112u << 23) + 0xfffffu + (size >> 21 & 1u)) >> 21;
    const uintLANES value = size < 113u << 23 ? denormal : min(normal, (uintLANES)(0x7cu));
    return convert_ucharLANES((x == x ? value : 0x7eu) | sign >> 24);
}

static inline ucharLANES float_to_f8_e4m3LANES(const floatLANES x) {
    const uintLANES size = as_uintLANES(x) & 0x7fffffffu, sign = as_uintLANES(x) ^ size;
    const uintLANES denormal = as_uintLANES(as_floatLANES(size) + 0x1p14f) - 0x46800000u;
    const uintLANES normal = (size - (120u << 23) + 0x7ffffu + (size >> 20 & 1u)) >> 20;
    const uintLANES value = size < 121u << 23 ? denormal : min(normal, (uintLANES)(0x7fu));
    return convert_ucharLANES((x == x ? value : 0x7fu) | sign >> 24);
}

static inline floatLANES s4_to_floatLANES(const charLANES x) { return convert_floatLANES(x); }

static inline floatLANES u4_to_floatLANES(const ucharLANES x) { return convert_floatLANES(x); }

static inline charLANES float_to_s4LANES(const floatLANES x) {
    const floatLANES value = x == x ? x : (floatLANES)(0.0f);
    return convert_charLANES_sat_rte(clamp(value, -8.0f, 7.0f));
}

static inline ucharLANES float_to_u4LANES(const floatLANES x) {
    const floatLANES value = x == x ? x : (floatLANES)(0.0f);
    return convert_ucharLANES_sat_rte(clamp(value, 0.0f, 15.0f));
}
