"""Element-wise work in OpenCL C: algorithms, chains, passes over tensors, kernels of windows.

It may import `codegen` and the layers below. Every layer above and every operation may import it.
"""
