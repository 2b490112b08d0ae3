// Definitions for all transforms of Winograd's convolution on CPUs. A transform in 2-D transforms
// all columns, then all rows. Defines: LANES, the channels of a vector; OUTPUTS of a tile along one
// dim, made of SPAN pixels and TAPS of the filter.

#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#define LOAD PASTE(vload, LANES)
#define STORE PASTE(vstore, LANES)
