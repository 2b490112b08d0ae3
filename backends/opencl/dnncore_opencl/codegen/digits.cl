// Indices of up to four digits, slowest first, and offsets computed from digits and strides.

#define DOT4(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z + (a).w * (b).w)
#define DOT3(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z)
#define COUNT(size) ((size).x * (size).y * (size).z * (size).w)
#define AT_LEAST_1(size) max(size, (int4)(1))  // Oclgrind misreads a scalar next to a vector

// The digits of an index.
static inline int4 digits(int index, const int4 size) {
    int4 d;
    d.w = index % size.w;
    index /= size.w;
    d.z = index % size.z;
    index /= size.z;
    d.y = index % size.y;
    d.x = index / size.y;
    return d;
}

// A quotient computed with the inverse of the divisor, in units of 2^-32 and rounded up. Inverse 0
// means divisor 1, or divisor 0 if there is nothing to divide.
static inline int quotient(const int n, const int divisor, const uint inverse) {
    const uint q = mul_hi((uint)n, inverse);
    return inverse ? q - (q * divisor > (uint)n) : n;
}

// As digits(), with the inverse of each size.
static inline int4 quick_digits(int index, const int4 size, const uint4 inverse) {
    int4 d;
    int q = quotient(index, size.w, inverse.w);
    d.w = index - q * size.w;
    index = q;
    q = quotient(index, size.z, inverse.z);
    d.z = index - q * size.z;
    index = q;
    d.x = quotient(index, size.y, inverse.y);
    d.y = index - d.x * size.y;
    return d;
}

// The digits of the next index.
static inline int4 next(int4 d, const int4 size) {
    if (++d.w == size.w) {
        d.w = 0;
        if (++d.z == size.z) {
            d.z = 0;
            if (++d.y == size.y) {
                d.y = 0;
                d.x++;
            }
        }
    }
    return d;
}

// The batch's digits and, in w, the part of k, which is the slowest digit of a work-group's number.
static inline int4 batch_digits(const int index, const int4 batch) {
    return digits(index, AT_LEAST_1((int4)(1, batch.x, batch.y, batch.z))).yzwx;
}
