"""Convolution in three directions; `implementations` lists who computes it, best first.

An operation: no layer imports it. `reorder` imports its Winograd weights.
"""
