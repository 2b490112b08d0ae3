// 1 / x, correctly rounded. A device may divide with an error of 2.5 units in the last place. Of its
// neighbours, the quotient with the least remainder is nearest; fma gives the remainder exactly.
static inline float reciprocal(const float x) {
    float best = 1.0f / x, least = fabs(fma(-x, best, 1.0f));
    if (!(least > 0.0f && least < 1.0f)) return best;  // exact, infinite, 0 or NaN
    const int middle = as_int(best);
    for (int step = -3; step <= 3; step++) {
        const float other = as_float(middle + step), remainder = fabs(fma(-x, other, 1.0f));
        if (remainder < least) {
            best = other;
            least = remainder;
        }
    }
    return best;
}
