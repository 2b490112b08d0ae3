"""Winograd convolution F(4x4, 3x3). `convolution` imports it. `reorder` imports its weights."""
