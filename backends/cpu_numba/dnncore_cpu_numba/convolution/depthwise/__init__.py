"""Convolution of many small groups: groups share vectors. Only `convolution` imports it."""
