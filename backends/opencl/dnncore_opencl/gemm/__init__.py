"""Matrix products over strided operands, and the families of kernels that make them.

It imports all other layers. Convolution, inner product and matmul import it.
"""
