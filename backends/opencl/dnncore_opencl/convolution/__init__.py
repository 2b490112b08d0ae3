"""Convolution in three directions; `implementations` lists who computes it, best first.

An operation: no layer imports it. `inner_product` imports its direct kernel, `reorder` its Winograd
weights.
"""
