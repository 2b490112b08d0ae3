"""Convolution in three directions; `implementations` lists who computes it, best first."""
