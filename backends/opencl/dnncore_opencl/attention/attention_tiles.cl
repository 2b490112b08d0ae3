// Tiles of attention in local memory, and products of tiles on tensor cores.
//
// A tile has a line of 8-element chunks for each row of a tensor. Chunks are permuted within a line,
// so that lanes do not conflict for a bank. `mma_ptx.cl` and `mma_plain.cl` have the instructions.

#define WARPS 4

#define KEY_CHUNKS (2 * DEPTH_STEPS)  // of a query or a key; a step has 16 elements
#define VALUE_CHUNKS (2 * WIDTH_STEPS)
#define LINE(chunks) ((chunks) <= 4 ? 4 : (chunks) <= 8 ? 8 : (chunks) <= 16 ? 16 : 32)
#define KEY_LINE LINE(KEY_CHUNKS)
#define VALUE_LINE LINE(VALUE_CHUNKS)
#define SWAP(line, of_line) ((of_line) > 4 ? (line) & 7 : (line) >> 1 & 3)

#if IS_F16
#define PAIR f16_pair
#else
#define PAIR bf16_pair
#endif

// Starts the copy of `lines` rows of a tensor with `size` rows, from row `first` on. Elements past
// the end of the tensor or of a row are 0. step: from row to row, in chunks.
#define COPY_ROWS(to, lines, chunks, from, step, first, size, elements)                            \
    {                                                                                              \
        const int chunk = item % LINE(chunks), bytes = clamp((elements) - chunk * 8, 0, 8) * 2;    \
        if (chunk < (chunks))                                                                      \
            UNROLL for (int i = 0; i < (lines) * LINE(chunks) / ITEMS; i++) {                      \
                const int line = item / LINE(chunks) + i * (ITEMS / LINE(chunks));                 \
                const int swapped = chunk ^ SWAP(line, LINE(chunks)), row = (first) + line;        \
                copy_chunk(place + ((to) + line * LINE(chunks) + swapped) * 16, from,              \
                           row * (step) + chunk, row < (size) ? bytes : 0);                        \
            }                                                                                      \
    }

// The places from which a lane loads factors of products: for LOAD_LEFT, 16 rows and 16 elements;
// for LOAD_RIGHT, 16 rows and 16 elements of the transposed factor; for LOAD_ACROSS, 16 elements and
// 16 rows. at: the tile's first chunk. line: a multiple of 16.
#define LEFT_LINE (lane & 15)
#define LEFT_CHUNK (lane >> 4)
#define RIGHT_LINE ((lane & 7) + (lane >> 4) * 8)
#define RIGHT_CHUNK (lane >> 3 & 1)
#define TILE_PLACE(SIDE, at, line, step, of_line)                                                  \
    (place + SIDE##_LINE * ((of_line) * 16) + ((at) + (line) * (of_line)) * 16                     \
     + ((SIDE##_CHUNK ^ SWAP(lane, of_line)) * 16 ^ (step) * 32))
#define LOAD_LEFT(a, at, line, step, of_line)                                                      \
    LOAD_ROWS((a)[0], (a)[1], (a)[2], (a)[3], TILE_PLACE(LEFT, at, line, step, of_line));
#define LOAD_RIGHT(b, at, line, step, of_line)                                                     \
    LOAD_ROWS((b)[0], (b)[1], (b)[2], (b)[3], TILE_PLACE(RIGHT, at, line, step, of_line));
#define LOAD_ACROSS(b, at, line, step, of_line)                                                    \
    LOAD_COLUMNS((b)[0], (b)[1], (b)[2], (b)[3], TILE_PLACE(LEFT, at, line, step, of_line));

// The left factor made of sums of 16 columns, rounded.
#define ROUND_LEFT(a, c0, c1)                                                                      \
    {                                                                                              \
        (a)[0] = PAIR((c0)[0], (c0)[1]);                                                           \
        (a)[1] = PAIR((c0)[2], (c0)[3]);                                                           \
        (a)[2] = PAIR((c1)[0], (c1)[1]);                                                           \
        (a)[3] = PAIR((c1)[2], (c1)[3]);                                                           \
    }

// Writes a row of sums times a factor. side: 0 for the lane's upper row, 1 for the lower one.
#define WRITE_ROW(to, sums, steps, side, factor, elements)                                         \
    UNROLL for (int w = 0; w < 2 * (steps); w++) {                                                 \
        const int column = w * 8 + (lane & 3) * 2;                                                 \
        const uint bits = PAIR((sums)[w][2 * (side)] * (factor), (sums)[w][2 * (side) + 1] * (factor)); \
        if (column + 1 < (elements))                                                               \
            *(__global uint *)((to) + column) = bits;                                              \
        else if (column < (elements))                                                              \
            (to)[column] = (ushort)bits;                                                           \
    }
