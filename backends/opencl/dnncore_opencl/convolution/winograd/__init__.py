"""Winograd's convolution. `convolution` imports it, and `reorder` its weights."""
