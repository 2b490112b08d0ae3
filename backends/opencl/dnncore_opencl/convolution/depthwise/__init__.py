"""Depthwise convolution for CPUs. Only `convolution` imports it."""
