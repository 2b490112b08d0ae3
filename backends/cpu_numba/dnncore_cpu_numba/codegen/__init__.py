"""Code generation: instruction sets, LLVM IR, native functions and tasks, which are translated from
Python.

This is the lowest layer. It imports no other package of this backend. All may import it.
"""
