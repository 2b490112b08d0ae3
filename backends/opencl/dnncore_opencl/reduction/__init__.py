"""Reduction of dims of a tensor, and sums over channels for gradients of bias."""
