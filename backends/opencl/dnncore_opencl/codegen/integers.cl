// Conversions between integers and float. They round to nearest, ties to even, and saturate. NaN
// becomes 0. LANES stands for the number of elements or for nothing.

static inline floatLANES s32_to_floatLANES(const intLANES x) { return convert_floatLANES(x); }

static inline floatLANES s8_to_floatLANES(const charLANES x) { return convert_floatLANES(x); }

static inline floatLANES u8_to_floatLANES(const ucharLANES x) { return convert_floatLANES(x); }

static inline floatLANES not_nanLANES(const floatLANES x) {
    return x == x ? x : (floatLANES)(0.0f);
}

static inline intLANES float_to_s32LANES(const floatLANES x) {
    return convert_intLANES_sat_rte(not_nanLANES(x));
}

static inline charLANES float_to_s8LANES(const floatLANES x) {
    return convert_charLANES_sat_rte(not_nanLANES(x));
}

static inline ucharLANES float_to_u8LANES(const floatLANES x) {
    return convert_ucharLANES_sat_rte(not_nanLANES(x));
}
