// FETCH(p) asks for a line of memory ahead of its use. The language's own prefetch does nothing on
// PoCL and Intel's runtime; their compiler's does. HAS_FETCH: not on a simulator, which lacks it.

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
