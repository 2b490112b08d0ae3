"""Code generation: instruction sets, LLVM IR, native functions and the tasks that numba compiles.

This is the lowest layer. It imports no other package of this backend. All may import it.
"""
