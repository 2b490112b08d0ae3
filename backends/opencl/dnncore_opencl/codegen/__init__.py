"""Code generation: index arithmetic, shares of work-items, vectors and half types in OpenCL C.

It imports `devices` and `runtime`. Every layer above and every operation may import it.
"""
