"""Winograd's convolution F(4x4, 3x3). `convolution` imports it, and `reorder` its weights."""
