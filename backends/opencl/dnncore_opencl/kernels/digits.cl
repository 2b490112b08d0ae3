// Indices of up to four digits, slowest first, and the offsets that strides make of them.

#define DOT4(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z + (a).w * (b).w)
#define DOT3(a, b) ((a).x * (b).x + (a).y * (b).y + (a).z * (b).z)
#define COUNT(size) ((size).x * (size).y * (size).z * (size).w)

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
