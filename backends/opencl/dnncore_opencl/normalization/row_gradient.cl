// The gradient of normalization with respect to src. With g = scale * diff_dst and x = (src - mean)
// * factor, diff_src = (g - average of g - x * average of g * x) * factor. With RMS, mean and the
// average of g are 0. With SAME, all vectors of a worker have the same scale.

#ifdef SAME
#define SCALE_FOR_WIDE(j) own_scale
#else
#define SCALE_FOR_WIDE SCALE_WIDE
#endif
#define SCALE_FOR SCALE
#ifdef HAS_SCALE
#define GRADIENT(diff, j, SUFFIX) ((diff) * SCALE_FOR##SUFFIX(j))
#else
#define GRADIENT(diff, j, SUFFIX) (diff)
#endif
#ifdef RMS
#define TAKEN(x) ((x) * of_products)
#else
#define TAKEN(x) (average + (x) * of_products)
#endif
