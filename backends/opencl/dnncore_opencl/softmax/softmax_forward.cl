// Softmax or, with LOG, log-softmax by rows (rows.cl): dst = exp(src - largest) / total.
// FINISH_WIDE and FINISH are the steps from x to the stored value.
//
// With HOLDS_EXP, the exponentials of a held row are also held, in the registers of the row if it
// has floats (EXACT_SRC). Otherwise they are computed again. If a row is not held, its exponentials
// are stored in dst, if dst has floats (EXACT_DST) and its old value is not needed.

#if HELD > 0 && defined(HOLDS_EXP) && !defined(EXACT_SRC) && !defined(LOG)
#define HOLD_EXP(exps) WIDE exps[HELD]
#else
#define HOLD_EXP(exps)
#endif
#if HELD > 0
#if defined(HOLDS_EXP) && defined(EXACT_SRC)
#define TAKE_EXP(exps, i, j, value) held[i] = value
#define EXP_AGAIN(exps, i, j) held[i]
#elif defined(HOLDS_EXP)
#define TAKE_EXP(exps, i, j, value) exps[i] = value
#define EXP_AGAIN(exps, i, j) exps[i]
#else
#define TAKE_EXP(exps, i, j, value)
#define EXP_AGAIN(exps, i, j) exp(READ_AGAIN(SRC, held, i, j) - largest)
#endif
#define STORE_EXP(j, value)
#define LOAD_EXP(j) exp(SRC(j) - largest)
#elif defined(EXACT_DST) && !defined(READS_DST)
#define TAKE_EXP(exps, i, j, value) STORE_WIDE(j, value)
#define EXP_AGAIN(exps, i, j) DST_WIDE(j)
#define STORE_EXP(j, value) STORE(j, value)
#define LOAD_EXP(j) DST(j)
#else
#define TAKE_EXP(exps, i, j, value)
#define EXP_AGAIN(exps, i, j) exp(SRC_WIDE(j) - largest)
#define STORE_EXP(j, value)
#define LOAD_EXP(j) exp(SRC(j) - largest)
#endif

// With HAS_LSE, the first worker also stores the logarithm of the sum of exponentials.
#ifdef HAS_LSE
#define STATISTICS(total)                                                                          \
    if (worker == 0 && length > 0) {                                                               \
        KEEP_LSE(largest + log(total))                                                                 \
    }
#else
#define STATISTICS(total)
#endif

#pragma OPENCL FP_CONTRACT OFF // otherwise a scaled x minus the largest one could be above 0
__kernel GROUP_SIZE void softmax_forward($parameters)
{
    OVER_ITEMS {
        ROW_PLACE
        HOLD(SRC, held);
        HOLD_EXP(exps);
        WIDE wide = -INFINITY;
        ROW largest = -INFINITY;
        VECTORS {
            const WIDE value = READ(SRC, held, i, j);
            wide = LARGER(wide, value);
        }
        REST {
            const ROW value = SRC(j);
            largest = LARGER(largest, value);
        }
        largest = max_of(wide, largest, worker, shared);
        ROW total = 0.0f;
        wide = 0.0f;
        WIDE run = 0.0f;
#ifdef LOG
        VECTORS {
            run += exp(READ_AGAIN(SRC, held, i, j) - largest);
            END_RUN(wide, run, j)
        }
        wide += run;
        REST total += exp(SRC(j) - largest);
        total = sum_of(wide, total, worker, shared);
        STATISTICS(total)
        total = log(total);
        VECTORS {
            WIDE x = READ_AGAIN(SRC, held, i, j) - largest - total;
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
        REST {
            ROW x = SRC(j) - largest - total;
            FINISH
            STORE(j, x);
        }
#else
        VECTORS {
            const WIDE value = exp(READ_AGAIN(SRC, held, i, j) - largest);
            run += value;
            END_RUN(wide, run, j)
            TAKE_EXP(exps, i, j, value);
        }
        wide += run;
        REST {
            const ROW value = exp(SRC(j) - largest);
            total += value;
            STORE_EXP(j, value);
        }
        total = sum_of(wide, total, worker, shared);
        STATISTICS(total)
        const ROW scale = 1.0f / total;
        VECTORS {
            WIDE x = EXP_AGAIN(exps, i, j) * scale;
            FINISH_WIDE
            STORE_WIDE(j, x);
        }
        REST {
            ROW x = LOAD_EXP(j) * scale;
            FINISH
            STORE(j, x);
        }
#endif
        PADDING { STORE_PADDING(j); }
    }
}
