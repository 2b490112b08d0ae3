"""Code of products by four warps together. Their instructions have many operands.

The instructions require the target sm_90a, for which NVIDIA's OpenCL C compiler generates no code.
So they are comments in its result, PTX, and `runtime/ptx.py` uncovers them.
"""

from __future__ import annotations

from dnncore_opencl.runtime.launch import template


def wide_code(
    instruction: str, tiles: int, columns: int, *, a_along_k: bool, b_along_k: bool
) -> str:
    """Return the definitions for products of `tiles` tiles, each 64 rows by `columns` columns.

    instruction: the name, with `{}` for the number of columns, such as `m64n{}k16.f32.f16.f16`.
    Operands of bytes must be along k.
    """
    is_integer = ".s32." in instruction
    kind = "+r" if is_integer else "+f"
    count = columns // 2  # sums of a work-item per tile
    places = [f"[{i // 4}][{i % 4}]" for i in range(count)]
    registers = ", ".join(f"%{i}" for i in range(count))
    of_tile = ", ".join(f'"{kind}"((c){place})' for place in places)
    of_all = ", ".join(f'"{kind}"(sums[{i}]{place})' for i in range(tiles) for place in places)
    across = "".join(f", {int(not along)}" for along in (a_along_k, b_along_k))
    signs = "" if is_integer else f", 1, 1{across}"
    multiply = (
        "//@@ { .reg .pred p; setp.eq.u32 p, 1, 1;"
        f" wgmma.mma_async.sync.aligned.{instruction.format(columns)} {{{registers}}},"
        f" %{count}, %{count + 1}, p{signs}; }}"
    )
    wait = f"//@@ wgmma.wait_group.sync.aligned %{count * tiles};"
    return (
        "#define WIDE_MULTIPLY_ADD(c, a, b)"
        f' __asm__ volatile("{multiply}" : {of_tile} : "l"(a), "l"(b) : "memory");\n'
        f'#define WIDE_WAIT(left) __asm__ volatile("{wait}" : {of_all} : "n"(left) : "memory");\n'
        f"{template('mma_wide')}"
    )
