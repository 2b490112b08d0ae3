"""Convolution of many small groups. Only `convolution` imports it."""
