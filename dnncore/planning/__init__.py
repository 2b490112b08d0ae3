"""Mathematics that kernels of several backends need: pure functions of numbers, without tensors.

`toom_cook.py` has the matrices of Winograd's convolutions, `phases.py` the pixels of a strided
convolution's gradient, `loops.py` the merging of loops. Backends may import this package. The
reference does not: its results must not depend on the mathematics that it judges.
"""
