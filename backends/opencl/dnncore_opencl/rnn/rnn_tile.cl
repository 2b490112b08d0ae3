// A work-group computes ALL_UNITS units of ROWS images of the batch. PRODUCTS computes the sums
//
//     total[g] = sum over k < depth of source[n, k] * weights[k, g, unit]
//
// OVER_CELLS runs its body for each cell of the tile, and THIS_CELL makes n, unit and total. On a
// GPU, SLICES work-items share the sums of EACH units, which are UNITS apart; each reads STRIP
// neighbouring k at once. On a CPU, one work-item computes all units of the tile in vectors.
//
// Each buffer has the element where it begins, and the step from row to row. A step of 0 means that
// the tensor is absent.
//
// PERSISTENT: one launch for several steps. A tensor moves by a number of elements from step to step. A
// work-group keeps its weights in registers, and after each step it waits for the work-groups that
// compute the other units of its images.

#ifdef PERSISTENT
#define MOVED(name) (long)time * name##_move
#define AT_LAST if (time == steps - 1)
#else
#define MOVED(name) 0
#define AT_LAST
#endif

#define AT(name, row) (name + name##_at + MOVED(name) + (long)(row)*name##_step)
#define HAS(name) (name##_step != 0)
#define READ(name, row, column) (HAS(name) ? AT(name, row)[column] : 0.0f)
#define STORE(name, row, column, value)                                                            \
    if (HAS(name)) AT(name, row)[column] = value

#define UNROLLED _Pragma("unroll") for
#define ALL_ROWS UNROLLED(int r = 0; r < ROWS; ++r)
#define ALL_GATES UNROLLED(int g = 0; g < GATES; ++g)

#define ALL_UNITS (UNITS * EACH)

#define START                                                                                      \
    const int start = get_group_id(0) * ALL_UNITS;                                                 \
    WORKER

#ifdef PERSISTENT
#define OVER_STEPS                                                                                 \
    KEPT_WEIGHTS                                                                                   \
    const int band = get_group_id(1), bands = get_num_groups(1);                                   \
    volatile __global uint *arrived = arrivals + arrivals_at + band * ARRIVALS_APART;              \
    for (int time = 0; time < steps; wait_for_groups(arrived, ++time, steps))                      \
        for (int first = band * ROWS; first < batch; first += bands * ROWS)
#else
#define OVER_STEPS const int first = get_group_id(1) * ROWS;
#endif

#define PLACE                                                                                      \
    const int r = at / ALL_UNITS, n = first + r, unit = start + at % ALL_UNITS;                    \
    if (n >= batch || unit >= width) continue;                                                     \
    float total[GATES];

#if SLICES == 1
#define GROUP_SIZE
#define WORKER

static inline UNITS_TYPE units_at(const __global float *weights, const int count)
{
    if (count >= UNITS) return LOAD_UNITS(weights);
    float values[UNITS];
    for (int i = 0; i < UNITS; ++i) values[i] = i < count ? weights[i] : 0.0f;
    return *(UNITS_TYPE *)values;
}

#define PRODUCTS                                                                                   \
    UNITS_TYPE sums[ROWS][GATES];                                                                  \
    ALL_ROWS ALL_GATES sums[r][g] = 0.0f;                                                          \
    for (int k = 0; k < depth; ++k) {                                                              \
        UNITS_TYPE values[GATES];                                                                  \
        ALL_GATES values[g] = units_at(AT(weights, k) + g * gate_step + start, width - start);     \
        ALL_ROWS {                                                                                 \
            const float x = AT(source, min(first + r, batch - 1))[k];                              \
            ALL_GATES sums[r][g] += x * values[g];                                                 \
        }                                                                                          \
    }

#define OVER_CELLS for (int at = 0; at < ROWS * ALL_UNITS; ++at)
#define THIS_CELL                                                                                  \
    PLACE                                                                                          \
    ALL_GATES total[g] = ((const float *)&sums[r][g])[at % UNITS];

#else
#define WORKERS (UNITS * SLICES)
#define GROUP_SIZE __attribute__((reqd_work_group_size(WORKERS, 1, 1)))
#define COLUMNS (GATES * EACH)
#define SUMS (ROWS * COLUMNS * UNITS)
#define ALL_COLUMNS UNROLLED(int j = 0; j < COLUMNS; ++j)

#if STRIP == 4
#define STRIP_TYPE float4
#define ADD_STRIP(sum, x, values, j)                                                               \
    sum += x.s0 * values[0][j];                                                                    \
    sum += x.s1 * values[1][j];                                                                    \
    sum += x.s2 * values[2][j];                                                                    \
    sum += x.s3 * values[3][j];
#else
#define STRIP_TYPE float
#define ADD_STRIP(sum, x, values, j) sum += x * values[0][j];
#endif

// Sum j of a row is that of gate j / EACH and of unit j % EACH.
#define WORKER                                                                                     \
    __local float shared[SLICES * SUMS];                                                           \
    const int worker = get_local_id(0), slice = worker / UNITS, lane = worker % UNITS;             \
    int places[COLUMNS];                                                                           \
    ALL_COLUMNS                                                                                    \
        places[j] = (j / EACH) * gate_step                                                         \
            + max(min(start + j % EACH * UNITS + lane, width - 1), 0);

#define WEIGHT(k, j) (weights + weights_at + (long)(k)*weights_step)[places[j]]
#define ALL_STRIP UNROLLED(int i = 0; i < STRIP; ++i)
#define SOURCE_STRIP(r, k)                                                                         \
    *(const __global STRIP_TYPE *)(AT(source, min(first + r, batch - 1)) + k)

#ifdef PERSISTENT
#define ALL_TURNS UNROLLED(int t = 0; t < TURNS; ++t)
#define TURN const int k = (t * SLICES + slice) * STRIP;
#define KEPT_WEIGHTS                                                                               \
    float kept[TURNS][STRIP][COLUMNS];                                                             \
    ALL_TURNS {                                                                                    \
        TURN                                                                                       \
        ALL_STRIP ALL_COLUMNS kept[t][i][j] = k < depth ? WEIGHT(k + i, j) : 0.0f;                 \
    }

#define ADD_PRODUCTS                                                                               \
    ALL_TURNS {                                                                                    \
        TURN                                                                                       \
        ALL_ROWS {                                                                                 \
            const STRIP_TYPE x = k < depth ? SOURCE_STRIP(r, k) : (STRIP_TYPE)0.0f;                \
            ALL_COLUMNS { ADD_STRIP(sums[r][j], x, kept[t], j) }                                   \
        }                                                                                          \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);

#else
#define ADD_PRODUCTS                                                                               \
    for (int k = slice * STRIP; k < depth; k += SLICES * STRIP) {                                  \
        float values[STRIP][COLUMNS];                                                              \
        ALL_STRIP ALL_COLUMNS values[i][j] = WEIGHT(k + i, j);                                     \
        ALL_ROWS {                                                                                 \
            const STRIP_TYPE x = SOURCE_STRIP(r, k);                                               \
            ALL_COLUMNS { ADD_STRIP(sums[r][j], x, values, j) }                                    \
        }                                                                                          \
    }
#endif

// First PARTS work-items per sum add slices; each cell adds their results.
#define PART (SLICES / PARTS * SUMS)
#define PRODUCTS                                                                                   \
    float sums[ROWS][COLUMNS];                                                                     \
    ALL_ROWS ALL_COLUMNS sums[r][j] = 0.0f;                                                        \
    ADD_PRODUCTS                                                                                   \
    ALL_ROWS ALL_COLUMNS                                                                           \
        shared[slice * SUMS + (r * COLUMNS + j) * UNITS + lane] = sums[r][j];                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    for (int i = worker; i < SUMS * PARTS; i += WORKERS) {                                         \
        const int place = i / SUMS * PART + i % SUMS;                                              \
        float sum = 0.0f;                                                                          \
        UNROLLED(int s = 0; s < SLICES / PARTS; ++s) sum += shared[place + s * SUMS];              \
        shared[place] = sum;                                                                       \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);

#define OVER_CELLS for (int at = worker; at < ROWS * ALL_UNITS; at += WORKERS)
#define THIS_CELL                                                                                  \
    PLACE                                                                                          \
    ALL_GATES {                                                                                    \
        const int place = (r * GATES + g) * ALL_UNITS + at % ALL_UNITS;                            \
        total[g] = 0.0f;                                                                           \
        UNROLLED(int p = 0; p < PARTS; ++p) total[g] += shared[p * PART + place];                  \
    }
#endif

static inline float logistic(const float z) { return 1.0f / (1.0f + exp(-z)); }

#define RELU 0
#define LOGISTIC 1
