"""Convolution of many small groups, which share vectors. Only `convolution` imports it."""
