"""Element-wise work: algorithms in OpenCL C, chains of post-ops, and passes over tensors.

`windows` is the same for kernels that read a window of a tensor: pooling and LRN. It imports
`codegen` and the layers below. Every layer above and every operation may import it.
"""
