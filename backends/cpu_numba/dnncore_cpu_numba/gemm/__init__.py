"""Matrix products: the microkernel, the tiling of problems, and plans of products in any layout.

This package imports all other layers. Convolution, inner product and matmul import it.
"""
