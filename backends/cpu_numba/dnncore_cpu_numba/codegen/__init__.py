"""Code generation: instruction sets, LLVM IR, native functions and the tasks that numba compiles.

The lowest layer: every other package may import it; it imports none of them.
"""
