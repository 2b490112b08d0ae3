// Definitions for all transforms of Winograd's convolution on GPUs. A transform in 2-D transforms
// all columns, then all rows. A plane is a matrix for the product at one position: of tiles by
// channels, or of filters by channels. OUTPUTS_DOWN and _ACROSS, SPAN_DOWN and _ACROSS, and LANES,
// the channels of a vector, are defines. Vectors are aligned.

#define TAPS 3
#if LANES == 1
typedef float floats;
#else
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#endif
#define VECTOR(pointer) (*(__global floats *)(pointer))
#define CONST_VECTOR(pointer) (*(__global const floats *)(pointer))
