// Concat on a GPU in one launch, so that whole lines of dst are written at once. dst has rows of
// WIDTH units, and a row is a row of each source in turn. READ sets `x` to unit `t` of a row.

__kernel void concat_rows($parameters)
{
    const INDEX item = get_global_id(0);
    if (item >= ITEMS) return;
    const INDEX row = (UINDEX)item / (UINDEX)WIDTH, t = (UINDEX)item % (UINDEX)WIDTH;
    UNIT x;
    READ
    dst[START + item] = x;
}
