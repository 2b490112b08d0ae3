// 1 / x, correctly rounded. The error of a device's quotient may be 2.5 units in the last place. Of
// its neighbours, the one with the smallest remainder is nearest. fma computes the remainder
// exactly. LANES stands for the number of elements or for nothing.
static inline floatLANES reciprocalLANES(const floatLANES x) {
    const floatLANES one = 1.0f;
    floatLANES best = one / x, least = fabs(fma(-x, best, one));
    const intLANES middle = as_intLANES(best);
    const intLANES is_rough = (least > 0.0f) & (least < 1.0f);  // not exact, infinite, 0 or NaN
    for (int step = -3; step <= 3; step++) {
        const floatLANES other = as_floatLANES(middle + step);
        const floatLANES remainder = fabs(fma(-x, other, one));
        const intLANES is_nearer = is_rough & (remainder < least);
        best = is_nearer ? other : best;
        least = is_nearer ? remainder : least;
    }
    return best;
}
