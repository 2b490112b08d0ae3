"""Convolution in three directions. `implementations` lists the implementations, best first.

`inner_product` imports its direct kernel, and `reorder` its Winograd weights.
"""
