// Windows along one dim: tap i of an output looks at its start + i * step, where the start is the
// output * stride - the padding on the left. FIRST_TAP and END_TAP bound the taps that see a cell.

static inline INDEX first_tap(const INDEX start, const INDEX step)
{
    return start < 0 ? (step - 1 - start) / step : 0;
}

static inline INDEX end_tap(const INDEX start, const INDEX step, const INDEX taps, const INDEX size)
{
    return start < size ? min(taps, (size - start + step - 1) / step) : 0;
}

// The output of which a window starts at `start`, less the padding; -1 if none does.
static inline INDEX output_at(const INDEX start, const INDEX stride, const INDEX count)
{
    return start >= 0 && start % stride == 0 && start / stride < count ? start / stride : -1;
}

#define SEEN_ALONG(LETTER, at)                                                                     \
    max((INDEX)(END_TAP_##LETTER((at) * STRIDE_##LETTER - LEFT_##LETTER)                           \
                - FIRST_TAP_##LETTER((at) * STRIDE_##LETTER - LEFT_##LETTER)), (INDEX)0)

// What an average over the window of an output divides by.
#ifdef AVG_INCLUDE_PADDING
#define DIVISOR(d, h, w) CELLS
#else
#define DIVISOR(d, h, w) ((float)(SEEN_ALONG(D, d) * SEEN_ALONG(H, h) * SEEN_ALONG(W, w)))
#endif
