// Conversions to float that permit a second rounding. LANES stands for the number of elements or
// for nothing.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// Returns a float whose last bit is set if further bits were cut off. So a second rounding gives
// the same result as one rounding of the exact value.
static inline floatLANES int_to_odd_floatLANES(const intLANES x) {
    const floatLANES value = convert_floatLANES_rtz(x);
    return as_floatLANES(as_intLANES(value) | ((convert_intLANES(value) != x) & 1));
}

#ifdef cl_khr_fp64
static inline floatLANES double_to_odd_floatLANES(const doubleLANES x) {
    const floatLANES value = convert_floatLANES(x);
    const doubleLANES back = convert_doubleLANES(value);
    const intLANES bits = as_intLANES(value) - (convert_intLANES(fabs(back) > fabs(x)) & 1);
    return as_floatLANES(bits | (convert_intLANES(back != x) & 1));
}
#endif
