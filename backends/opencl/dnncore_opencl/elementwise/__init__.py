"""Element-wise operations in OpenCL C: algorithms, chains, passes over tensors, window kernels.

It may import `codegen` and the layers below. Every layer above and every operation may import it.
"""
