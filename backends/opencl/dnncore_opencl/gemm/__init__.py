"""Matrix products over strided operands, and the families of kernels that make them."""
