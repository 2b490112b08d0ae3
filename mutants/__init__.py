"""Mutants: small wrong changes of the source, each of which a test must notice.

`make mutants` draws places in the reference, in the mathematics of the core, in the kernels' Python
and in OpenCL's templates. In a copy of the source it changes one operator or constant, or removes
one of several conditions, and runs the tests that reach the changed line. `scope.py` lists the
files and the tests, and what is left out. `equivalent.toml` has the proofs of changes that change
no behaviour.
"""
