"""Code generation: index arithmetic, division among work-items, vectors, half types (OpenCL C).

It may import `runtime` and `devices`. Every layer above and every operation may import it.
"""
