// Vectors of LANES channels.

#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
typedef PASTE(float, LANES) floats;
#define LOAD PASTE(vload, LANES)
#define STORE PASTE(vstore, LANES)
