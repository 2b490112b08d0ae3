"""Matrix products over strided operands, and the families of kernels that make them.

It may import all layers below. Convolution, inner product and matmul import it.
"""
