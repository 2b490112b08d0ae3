"""Matrix products over strided operands, and the families of kernels that compute them.

It may import all layers below. Convolution, inner product and matmul import it.
"""
