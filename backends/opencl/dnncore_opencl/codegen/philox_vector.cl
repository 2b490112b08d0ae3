// LANES elements, whose places are `step` apart, rounded at random.
static inline floatLANES rounded_at_randomLANES(
    floatLANES x, const int seed, const int cut, const long place, const long step)
{
    for (int lane = 0; lane < LANES; lane++)
        ((float *)&x)[lane] = rounded_at_random(((float *)&x)[lane], seed, cut, place + lane * step);
    return x;
}
