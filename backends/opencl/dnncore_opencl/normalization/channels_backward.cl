// All gradients of group normalization by channels (channels.cl), as in row_gradient.cl. The sums
// of each channel of each image are left for a second stage: those for shift, then those for scale.

__kernel GROUP_SIZE void channels_backward($parameters)
{
    SETS
    OVER_ITEMS {
        ROW_PLACE
        HOLD(SRC, held_src);
        HOLD(DIFF_DST, held_diff);
        float centre = 0.0f, spread = 0.0f, own_scale = 1.0f;
        if (length > 0) {
            centre = TAKE_MEAN;
            spread = TAKE_VARIANCE;
#ifdef HAS_SCALE
            own_scale = TAKE_SCALE;
#endif
        }
        const float factor = 1.0f / sqrt(spread + EPSILON);
        WIDE wide_g = 0.0f, run_g = 0.0f, wide_x = 0.0f, run_x = 0.0f;
        ROW total_g = 0.0f, total_x = 0.0f;
        UP {
            FILL(SRC, held_src)
            FILL(DIFF_DST, held_diff)
            SEVERAL VECTORS {
                const WIDE g = READ_AGAIN(DIFF_DST, held_diff, i, j);
                run_g += g;
                run_x += g * ((READ_AGAIN(SRC, held_src, i, j) - centre) * factor);
                END_RUN(wide_g, run_g, j)
                END_RUN(wide_x, run_x, j)
            }
        }
        wide_g += run_g;
        wide_x += run_x;
        REST {
            const ROW g = DIFF_DST(j);
            total_g += g;
            total_x += g * ((SRC(j) - centre) * factor);
        }
        const ROW sum_g = sum_of(wide_g, total_g, worker, shared);
        const ROW sum_x = sum_of(wide_x, total_x, worker, shared);
#ifdef LEAVES
        if (worker == 0 && length > 0) {
            left[START + item] = sum_g;
            left[START + ITEMS + item] = sum_x;
        }
#endif
        const float own_g = sum_g * own_scale, own_x = sum_x * own_scale;
        share(own_g, own_x, worker, joined);
        float average = 0.0f, of_products = 0.0f;
        for (int k = 0; k < SPAN; ++k) {
            average += OF_CHANNEL(0, k, own_g);
            of_products += OF_CHANNEL(1, k, own_x);
        }
        average *= SHARE;
        of_products *= SHARE;
        DOWN {
            REFILL(SRC, held_src, PARTS - 1)
            REFILL(DIFF_DST, held_diff, PARTS - 1)
            SEVERAL VECTORS {
                const WIDE g = READ_AGAIN(DIFF_DST, held_diff, i, j) * own_scale;
                const WIDE normalized = (READ_AGAIN(SRC, held_src, i, j) - centre) * factor;
                WIDE x = (g - (average + normalized * of_products)) * factor;
                FINISH_WIDE
                STORE_WIDE(j, x);
            }
        }
        REST {
            const ROW g = DIFF_DST(j) * own_scale;
            const ROW normalized = (SRC(j) - centre) * factor;
            ROW x = (g - (average + normalized * of_products)) * factor;
            FINISH
            STORE(j, x);
        }
    }
}
