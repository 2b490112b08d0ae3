"""Convolution in three directions; `implementations` lists who computes it, best first.

An operation. `inner_product` imports its direct kernel, and `reorder` its Winograd weights.
"""
