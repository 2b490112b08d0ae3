"""Mathematics that kernels of several backends need: pure functions of numbers, without tensors.

`toom_cook.py` computes the matrices of Winograd's convolutions, `phases.py` the pixels of a strided
convolution's gradient. `loops.py` merges loops. Backends may import this package. The reference
does not, because its results must not depend on the mathematics that it checks.
"""
