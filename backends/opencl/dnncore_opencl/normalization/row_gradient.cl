// The gradient of normalization with respect to src. With g = scale * diff_dst and
// x = (src - mean) * factor, diff_src = (g - average of g - x * average of g * x) * factor. With RMS,
// mean and the average of g are 0.

#ifdef HAS_SCALE
#define GRADIENT(diff, j, SUFFIX) ((diff) * SCALE##SUFFIX(j))
#else
#define GRADIENT(diff, j, SUFFIX) (diff)
#endif
#ifdef RMS
#define TAKEN(x) ((x) * of_products)
#else
#define TAKEN(x) (average + (x) * of_products)
#endif
