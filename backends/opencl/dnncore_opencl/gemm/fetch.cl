// FETCH(p) prefetches a cache line. On PoCL and Intel's runtime OpenCL's own function has no
// effect, so a built-in function of the compiler is used. Without HAS_FETCH, as on a simulator,
// FETCH does nothing.

#ifdef HAS_FETCH
#ifdef __has_builtin
#if __has_builtin(__builtin_prefetch)
#define FETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#endif
#endif
#endif
#ifndef FETCH
#define FETCH(p)
#endif
