// What the transforms of Winograd's convolution share. In 2-D a transform is that of all columns,
// then of all rows. LANES, the channels of a vector, is a define.

#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#define LOAD PASTE(vload, LANES)
#define STORE PASTE(vstore, LANES)
#define OUTPUTS 4
#define SPAN 6
#define TAPS 3
