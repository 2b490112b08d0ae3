"""Mutants: small wrong changes of the source. A test must fail for each of them.

`make mutants` draws places in the reference, in the mathematics of the core, in the kernels' Python
and in the OpenCL templates. In a copy of the source, it changes one operator or constant, or
removes one of several conditions. Then it runs the tests that reach the changed line. `scope.py`
lists the files and their tests, and states what is left out. `equivalent.toml` contains proofs that
some changes have no effect.
"""
