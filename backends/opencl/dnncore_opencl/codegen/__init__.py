"""Code generation: index arithmetic, shares of work-items, vectors and half types in OpenCL C.

It may import `runtime` and `devices`. Every layer above and every operation may import it.
"""
